"""Runs on questions and answers: the same losses in every mode, resumed, merged, better than before."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from seqlm.commands.evaluate import main as evaluate
from seqlm.language.objective import CausalLM
from seqlm.language.rouge import MEASURES
from seqlm.runs.run_file import load_config
from tests.workloads.language.question_runs import NUM_STEPS
from tests.workloads.training.forked_processes import train_in_turn
from tests.workloads.training.training_runs import changed_parameters, lines, losses, train_here

MODES = {
    "full": (1, "chat.questions=0"),
    "lora": (1, "lora.lr=1e-2 chat.questions=0"),
    "full-fsdp-2": (2, "parallel.mode=fsdp chat.questions=3"),
    "lora-ddp-2": (2, "lora.lr=1e-2 chat.questions=0"),
    "lora-fsdp-2-recomputing": (
        2,
        "lora.lr=1e-2 parallel.mode=fsdp train.activation_checkpointing=true chat.questions=0",
    ),
}
"""Number of processes and settings; what is trained comes first in the name."""


@pytest.fixture(scope="module")
def runs(run_file: Path) -> Path:
    """The folder of ``MODES``; those of one process are trained in this one."""
    for name, (number, settings) in MODES.items():
        if number == 1:
            train_here(run_file, f"name={name}", *settings.split())
    several = [
        f"name={name} {settings}" for name, (number, settings) in MODES.items() if number == 2
    ]
    train_in_turn(run_file, {2: several})
    return run_file.parent / "runs"


@pytest.fixture(scope="module")
def answers(run_file: Path) -> Path:
    """Folder of a run that is long enough to have learnt how an answer is put."""
    train_here(run_file, "name=answers", "train.max_steps=40")
    return run_file.parent / "runs/answers"


def results(run_dir: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((run_dir / "all_results.json").read_text())
    return found


@pytest.mark.long
@pytest.mark.parametrize("trained", ["full", "lora"])
def test_losses_fall_and_are_the_same_in_every_mode(runs: Path, trained: str) -> None:
    alone = losses(runs / trained)
    # Beside random weights that stay as they are adapters come less far.
    assert len(alone) == NUM_STEPS and alone[NUM_STEPS] < alone[1] - (
        0.5 if trained == "full" else 0.1
    )
    for name in MODES:
        if name.startswith(trained):
            there = losses(runs / name)
            assert max(abs(alone[step] - there[step]) for step in alone) < 1e-4, name
            assert results(runs / name)["test_loss"] == pytest.approx(
                results(runs / trained)["test_loss"], abs=1e-4
            )


def test_the_tuned_model_answers_better_than_before(answers: Path) -> None:
    found = results(answers)
    assert found["share_of_ceiling"] > 0 and 0 < found["length_weighted_mean_length"] <= 96
    for name in MEASURES:
        assert found[name] > found[f"base_{name}"] + 0.3, found
    written = json.loads((answers / "answers.json").read_text())["answers"]
    assert found["answered"] > found["base_answered"] == 0, "random weights never come to the mark"
    assert len(written) == 6 and written[0]["reference"].startswith("Examine the ")
    assert "<think>" not in written[0]["tuned"], "what comes before the answer is not compared"
    logged = [line for line in lines(answers, "eval") if "rouge1" in line]
    assert [line["rougeLsum"] for line in logged] == [found["rougeLsum"]]
    report = (answers / "report.html").read_text()
    assert "ROUGE-Lsum" in report and written[0]["reference"] in report and "Residues" not in report


@pytest.mark.long
def test_processes_share_the_questions(runs: Path) -> None:
    written = json.loads((runs / "full-fsdp-2/answers.json").read_text())["answers"]
    assert len({answer["question"] for answer in written}) == 3


def test_the_model_of_a_run_is_evaluated_again(answers: Path, run_file: Path) -> None:
    train_here(
        run_file, "name=answers", "chat.questions=2", "evaluate.split=validation", stage=evaluate
    )
    scores = json.loads((answers / "evaluation-validation.json").read_text())
    assert scores["eval_loss"] == pytest.approx(results(answers)["eval_loss"], abs=1e-5)
    assert scores["rouge1"] > scores["base_rouge1"]
    with pytest.raises(ValueError, match="the run unheard-of has not finished"):
        train_here(run_file, "name=unheard-of", stage=evaluate)


@pytest.mark.long
def test_a_resumed_run_is_the_uninterrupted_one(
    runs: Path, run_file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for trained, part in (
        ("full", "model/model.safetensors"),
        ("lora", "adapter/adapter_model.safetensors"),
    ):
        settings = [f"name={trained}-resumed", *MODES[trained][1].split()]
        train_here(run_file, *settings, "train.max_steps=5")
        train_here(run_file, *settings)
        assert losses(runs / f"{trained}-resumed") == losses(runs / trained)
        one, other = (load_file(runs / name / part) for name in (f"{trained}-resumed", trained))
        assert one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)
    said = "".join(capsys.readouterr())
    assert "tokens/s" in said and "residues" not in said


def test_adapters_change_nothing_but_themselves(run_file: Path) -> None:
    config = load_config(run_file, ["lora={targets: [query, intermediate]}", "name=touched"])
    changed = changed_parameters(CausalLM(config))
    modules = ("self_attn.q_proj", "mlp.gate_proj", "mlp.up_proj")
    assert changed == {
        f"model.layers.{layer}.{module}.lora_{part}.default.weight"
        for layer in range(2)
        for module in modules
        for part in "AB"
    }


@pytest.mark.long
def test_merged_model_and_adapter_are_what_was_trained(
    runs: Path, run_file: Path, tiny_qwen: Path
) -> None:
    tokens = torch.arange(5, 65)[None]
    for name in ("lora", "lora-fsdp-2-recomputing"):
        merged = AutoModelForCausalLM.from_pretrained(runs / name / "model").eval()
        base = AutoModelForCausalLM.from_pretrained(tiny_qwen)
        with torch.no_grad():
            untuned = base(tokens).logits
            adapted = PeftModel.from_pretrained(base, runs / name / "adapter").eval()
            torch.testing.assert_close(
                merged(tokens).logits, adapted(tokens).logits, rtol=0, atol=1e-5
            )
            assert (merged(tokens).logits - untuned).abs().max() > 0.1
    named = f"inference.model={runs / 'lora/model'}"
    train_here(run_file, "name=lora", named, "chat.questions=0", stage=evaluate)
    scores = json.loads((runs / "lora/evaluation-validation.json").read_text())
    assert scores["eval_loss"] == pytest.approx(results(runs / "lora")["eval_loss"], abs=1e-5)
    adapter = json.loads((runs / "lora/adapter/adapter_config.json").read_text())
    assert (adapter["base_model_name_or_path"], adapter["revision"]) == (str(tiny_qwen), None)
    settings = [folder / "generation_config.json" for folder in (runs / "lora/model", tiny_qwen)]
    assert settings[0].read_text() == settings[1].read_text()
    tokenizer = AutoTokenizer.from_pretrained(runs / "lora/model")
    assert tokenizer.decode(tokenizer("Examine the heart.")["input_ids"]) == "Examine the heart."


@pytest.mark.long
def test_four_bit_weights_are_trained_beside_and_merged_as_they_were(run_file: Path) -> None:
    four_bit = "lora.quantize=nf4 lora.lr=1e-2 chat.questions=0"
    settings = ["name=nf4", *four_bit.split()]
    train_here(run_file, *settings, "train.max_steps=4")
    train_here(run_file, *settings)
    run_dir = run_file.parent / "runs/nf4"
    found = losses(run_dir)
    assert found[NUM_STEPS] < found[1] - 0.1
    several = [
        f"name=nf4-ddp {four_bit}",
        f"name=nf4-fsdp {four_bit} parallel.mode=fsdp train.max_steps=5",
        f"name=nf4-fsdp {four_bit} parallel.mode=fsdp train.activation_checkpointing=true",
        f"name=nf4-bf16 {four_bit} parallel.mode=fsdp train.precision=bf16 train.max_steps=3",
    ]
    train_in_turn(run_file, {2: several})
    for name, tolerance in (("nf4-ddp", 1e-4), ("nf4-fsdp", 1e-4), ("nf4-bf16", 5e-2)):
        there = losses(run_file.parent / "runs" / name)
        assert len(there) == (3 if name == "nf4-bf16" else NUM_STEPS)
        assert max(abs(found[step] - there[step]) for step in there) < tolerance, name
    train_here(run_file, "name=nf4", "chat.questions=0", stage=evaluate)
    merged = json.loads((run_dir / "evaluation-validation.json").read_text())
    assert merged["eval_loss"] == pytest.approx(results(run_dir)["eval_loss"], abs=1e-5)
