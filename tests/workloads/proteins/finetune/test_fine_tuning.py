"""Runs that fine-tune: what they change, write, resume, and the same losses in every mode."""

from __future__ import annotations

import csv
import json
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file, save_file
from transformers import (
    AutoModelForSequenceClassification,
    AutoModelForTokenClassification,
    PretrainedConfig,
)

from seqlm.proteins.alphabet import CLS, EOS
from seqlm.proteins.finetune.labelled import LabelledSplit
from seqlm.proteins.finetune.objective import FineTuning
from seqlm.proteins.finetune.prediction_file import Predictions
from seqlm.proteins.model.pretrained import of_config
from seqlm.runs.run_file import load_config
from seqlm.training.checkpoint_reader import Reader, weights_of
from tests.workloads.proteins.finetune.labelled_proteins import write_task_file
from tests.workloads.training.forked_processes import train_in_turn
from tests.workloads.training.training_runs import changed_parameters, lines, losses, train_here

BOTH_FAMILIES = True

MAX_RESIDUES = 126
MODES = {
    "lora": (1, "lora.lr=1e-2"),
    "full": (1, ""),
    "lora-ddp-2": (2, "lora.lr=1e-2"),
    "full-ddp-2": (2, ""),
    "lora-fsdp-2": (2, "lora.lr=1e-2 parallel.mode=fsdp"),
    "full-fsdp-2": (2, "parallel.mode=fsdp"),
    "lora-fsdp-2-recomputing": (
        2,
        "lora.lr=1e-2 parallel.mode=fsdp train.activation_checkpointing=true",
    ),
}
"""Number of processes and settings; what is trained comes first in the name."""


@pytest.fixture(scope="module")
def run_file(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_task_file(tmp_path_factory.mktemp("binary"), tiny_model, "binary")


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


@pytest.mark.long
@pytest.mark.parametrize("trained", ["lora", "full"])
def test_losses_are_the_same_in_every_mode(runs: Path, trained: str) -> None:
    alone = losses(runs / trained)
    assert len(alone) == 8 and alone[8] < alone[1] - 0.05, (
        "there must be something learnt to compare"
    )
    for name in MODES:
        if name.startswith(trained):
            there = losses(runs / name)
            assert max(abs(alone[step] - there[step]) for step in alone) < 1e-5, name
            scores = json.loads((runs / name / "all_results.json").read_text())
            assert scores["test_loss"] == pytest.approx(
                lines(runs / trained, "eval")[-1]["eval_loss"], abs=1e-5
            )


def test_adapters_change_nothing_but_themselves_and_the_head(
    run_file: Path, tiny_config: PretrainedConfig
) -> None:
    config = load_config(run_file, ["lora={targets: [query, output]}", "name=touched"])
    changed = changed_parameters(FineTuning(config))
    adapted = of_config(tiny_config).adapted
    layers = [f"{adapted.layers}.{index}" for index in range(2)]
    names = (*adapted.modules["query"], *adapted.modules["output"])
    modules = [f"{layer}.{name}" for layer in layers for name in names]
    assert changed == {
        *(f"{module}.lora_{part}.default.weight" for module in modules for part in "AB"),
        *(
            f"classifier.{layer}.{part}"
            for layer in ("dense", "out_proj")
            for part in ("weight", "bias")
        ),
    }


def outputs_of(model: torch.nn.Module, split: LabelledSplit) -> torch.Tensor:
    """Return transformers' logits of each protein alone, without CLS and EOS for a residue task."""
    found = []
    places, _ = split.draw(0, split.num_units, 0, 0)
    for place in places:
        tokens = np.concatenate([[CLS], split.token_ids(place)[:MAX_RESIDUES], [EOS]]).astype(
            np.int64
        )
        with torch.no_grad():
            logits = model(torch.from_numpy(tokens)[None]).logits
        found.append(logits if split.schema.kind != "residue" else logits[0, 1:-1])
    return torch.cat(found)


@pytest.mark.long
def test_merged_model_and_adapter_give_what_was_trained(
    runs: Path, run_file: Path, tiny_model: Path
) -> None:
    """The run's own scores are of the model with adapters."""
    split = LabelledSplit(load_config(run_file).data.path, "test")
    for name in ("lora", "lora-fsdp-2"):
        scored = torch.from_numpy(Predictions.load(runs / name / "predictions-test.npz").outputs)
        assert scored.std() > 1e-3, "the proteins differ"
        merged = AutoModelForSequenceClassification.from_pretrained(runs / name / "model").eval()
        assert merged.config.id2label == {0: "membrane"}
        torch.testing.assert_close(outputs_of(merged, split), scored, rtol=0, atol=1e-5)
        base = AutoModelForSequenceClassification.from_pretrained(tiny_model, num_labels=1)
        adapted = PeftModel.from_pretrained(base, runs / name / "adapter").eval()
        torch.testing.assert_close(outputs_of(adapted, split), scored, rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", ["multiclass", "regression", "residue"])
def test_continues_from_a_fine_tuned_model_with_its_head(
    kind: str, tiny_model: Path, tmp_path: Path
) -> None:
    run_file = write_task_file(tmp_path, tiny_model, kind)
    first = FineTuning(load_config(run_file, ["train.seed=1"]))
    weights = first.weights()
    first.write_model(tmp_path / "runs/first", weights, torch.device("cpu"))
    model = tmp_path / "runs/first/model"
    if kind == "regression":
        assert load_file(model / "model.safetensors")["classifier.out_proj.bias"] > 50, "degrees"
    for settings in ("lora=null", "lora={}"):
        state = FineTuning(load_config(run_file, [f"model.init_from={model}", settings])).weights()
        plain = {
            name.replace(".base_layer.", "."): value
            for name, value in state.items()
            if ".lora_" not in name
        }
        for name in weights.keys() - {
            "esm.contact_head.regression.weight",
            "esm.contact_head.regression.bias",
        }:
            torch.testing.assert_close(plain[name], weights[name], rtol=1e-4, atol=1e-5)
    other = write_task_file(tmp_path / "other", model, "binary")
    state = FineTuning(load_config(other)).weights()
    for name in state:
        assert name.startswith("classifier.") or torch.equal(state[name], weights[name]), name
    assert len(state["classifier.out_proj.bias"]) == 1, "another task has a head of its own"


@pytest.mark.long
def test_resumed_run_is_the_uninterrupted_one(runs: Path, run_file: Path) -> None:
    train_here(run_file, "name=resumed", "lora.lr=1e-2", "train.max_steps=5")
    checkpoint = runs / "resumed/checkpoints/step-00000005"
    train_here(run_file, "name=resumed", "lora.lr=1e-2")
    assert losses(runs / "resumed") == losses(runs / "lora")
    for part in ("model/model.safetensors", "adapter/adapter_model.safetensors"):
        one, other = (load_file(runs / name / part) for name in ("resumed", "lora"))
        assert one.keys() == other.keys() and all(
            torch.equal(one[key], other[key]) for key in one
        ), part
    with pytest.raises(ValueError, match="holds adapters and a head without the model"):
        weights_of(checkpoint)
    names = [name for name in Reader(checkpoint).read_metadata().state_dict_metadata]
    held = {name for name in names if name.startswith("model.")}
    assert held and all(".lora_" in name or ".classifier." in name for name in held), (
        "no frozen weights"
    )


@pytest.mark.long
def test_another_start_is_no_resumption(runs: Path, run_file: Path) -> None:
    for change, message in (
        ("lora.rank=4", "lora.rank: checkpoint 16, now 4"),
        ("lora.alpha=4", "lora.alpha: checkpoint 32, now 4"),
        ("task.class_weights=balanced", "task.class_weights: checkpoint 'none', now 'balanced'"),
    ):
        with pytest.raises(ValueError, match=f"belongs to another run:\n  {message}"):
            train_here(run_file, "name=lora", "lora.lr=1e-2", "train.max_steps=9", change)
    assert len(losses(runs / "lora")) == 8


def change_one_weight(model: Path) -> None:
    weights = load_file(model / "model.safetensors")
    name = next(
        name for name in weights if name.endswith(("output.dense.bias", "input_layernorm.bias"))
    )
    weights[name][3] += 1e-3
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    (model / "SHA256SUMS").unlink()  # on purpose, not by accident


@pytest.mark.long
def test_other_weights_of_the_same_name_are_no_resumption(
    run_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    """A checkpoint of adapters does not hold them."""
    base = shutil.copytree(tiny_model, tmp_path / "model")
    settings = ["name=other", "lora.lr=1e-2", f"model.init_from={base}", "optim.warmup_steps=0"]
    train_here(run_file, *settings, "train.max_steps=1")
    change_one_weight(base)
    with pytest.raises(ValueError, match="weights to start from"):
        train_here(run_file, *settings, "train.max_steps=2")


def test_adapters_are_not_merged_into_other_weights_than_they_were_trained_beside(
    run_file: Path, tiny_model: Path, tmp_path: Path
) -> None:
    base = shutil.copytree(tiny_model, tmp_path / "model")
    objective = FineTuning(load_config(run_file, ["lora={}", f"model.init_from={base}"]))
    state = objective.weights()
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        objective.write_model(tmp_path / "whole", state, torch.device("cpu"))
    change_one_weight(base)
    with pytest.raises(ValueError, match="has changed since this run started from it"):
        objective.write_model(tmp_path / "run", state, torch.device("cpu"))
    assert not (tmp_path / "run").exists()


@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "settings"),
    [
        ("multiclass", "lora.lr=1e-2 task.class_weights=balanced"),
        ("multilabel", ""),
        ("regression", "lora.lr=1e-2"),
        ("residue", "lora.lr=1e-2"),
    ],
)
def test_every_kind_of_task_is_trained_and_written(
    kind: str, settings: str, tiny_model: Path, tmp_path: Path
) -> None:
    run_file = write_task_file(tmp_path, tiny_model, kind)
    train_here(run_file, *settings.split())
    config = load_config(run_file, settings.split())
    run_dir = tmp_path / "runs" / config.name
    found = losses(run_dir)
    assert found[8] < found[1], "it learns"
    auto = (
        AutoModelForTokenClassification if kind == "residue" else AutoModelForSequenceClassification
    )
    model = auto.from_pretrained(run_dir / "model").eval()
    split = LabelledSplit(config.data.path, "test")
    assert tuple(model.config.id2label.values()) == split.schema.output_names
    predictions = Predictions.load(run_dir / "predictions-test.npz")
    scored = torch.from_numpy(predictions.outputs)
    torch.testing.assert_close(outputs_of(model, split), scored, rtol=1e-5, atol=1e-5)
    assert predictions.ids.tolist() == split.ids(np.arange(split.num_units))
    with (run_dir / "predictions-test.csv").open(newline="") as file:
        assert [line["id"] for line in csv.DictReader(file)] == predictions.ids.tolist()
    results = json.loads((run_dir / "all_results.json").read_text())
    assert results["task"] == kind and results["classes"] == list(split.schema.output_names)
    assert results["share_of_ceiling"] > 0 and results["steady_residues_per_second"] > 0
    if kind == "regression":
        assert 50 < scored.mean() < 80, "in the units of the table"
        labels = predictions.labels
        rmse = float(np.sqrt(np.nanmean((predictions.outputs - labels) ** 2)))
        assert results["test_rmse"] == pytest.approx(rmse, rel=1e-5)


@pytest.mark.long
def test_four_bit_weights_are_trained_beside_and_merged_as_they_were(run_file: Path) -> None:
    train_here(run_file, "name=nf4", "lora.quantize=nf4", "train.max_steps=4")
    train_here(run_file, "name=nf4", "lora.quantize=nf4")
    run_dir = run_file.parent / "runs/nf4"
    scored = torch.from_numpy(Predictions.load(run_dir / "predictions-test.npz").outputs)
    merged = AutoModelForSequenceClassification.from_pretrained(run_dir / "model").eval()
    split = LabelledSplit(load_config(run_file).data.path, "test")
    torch.testing.assert_close(outputs_of(merged, split), scored, rtol=0, atol=1e-5)


def test_bad_settings_have_a_message(
    run_file: Path, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    other = write_task_file(tmp_path, tiny_model, "multiclass")
    for settings, message in (
        (["lora.quantize=nf4"], "needs bitsandbytes, and that is not installed"),
        (
            [f"data.path={load_config(other).data.path}"],
            "holds labels of a multiclass task, and task.kind is binary",
        ),
        (["data.path=/nonexistent"], "/nonexistent holds no labelled proteins"),
    ):
        with pytest.raises(ValueError, match=message):
            train_here(run_file, "name=bad", *settings)


@pytest.mark.parametrize("package", ["peft", "sklearn"])
def test_packages_that_a_run_needs_later_are_looked_for_at_its_start(
    run_file: Path, package: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, package, None)  # which makes importing it fail
    with pytest.raises(ModuleNotFoundError) as raised:
        train_here(run_file, "name=without", "lora={}")
    assert raised.value.name == package
    assert not (run_file.parent / "runs/without/metrics.jsonl").exists()


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["task=null", "lora={}"], "lora: adapters are for fine-tuning"),
        (
            ["task={}"],
            "task.kind: is missing; allowed are binary, multiclass, multilabel, regression, residue",
        ),
        (["task.kind=ranking"], "task.kind: got 'ranking'; allowed are binary"),
        (
            ["task.classes=[false, true]"],
            "task.classes: got [False, True]; expected text; put words",
        ),
        (
            ["task.kind=regression", "task.class_weights=balanced"],
            "task.class_weights: got balanced with kind regression, which has no classes",
        ),
        (["lora.rank=0"], "lora.rank: got 0; must be at least 1"),
        (["lora.targets=[keys]"], "lora.targets: got ['keys']; allowed are query, key, value"),
        (["lora.targets=[]"], "lora.targets: got an empty list"),
        (["lora={lr: 3}"], "lora.lr: got 3.0; allowed above 0, below 1"),
        (["lora={}", "optim.name=muon"], "optim.name: got muon with lora"),
    ],
)
def test_a_run_file_that_cannot_be_is_refused(
    run_file: Path, overrides: list[str], message: str
) -> None:
    with pytest.raises(ValueError) as raised:
        load_config(run_file, overrides)
    assert message in str(raised.value)
