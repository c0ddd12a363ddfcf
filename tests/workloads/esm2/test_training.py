"""Whole runs by torchrun: the same losses in every mode, and nothing lost to a crash."""

from __future__ import annotations

import json
import math
import random
import resource
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from transformers import AutoModelForMaskedLM

from workloads.esm2.tracking import read_metrics

Losses = dict[int, float]
RECORDED = "tests.workloads.esm2.recorded_training"
MODES = {
    "ddp of one": (1, "ddp"),
    "ddp of two": (2, "ddp"),
    "ddp of three, one idle in the second round": (3, "ddp"),
    "fsdp of one": (1, "fsdp"),
    "fsdp of two": (2, "fsdp"),
}


def losses(run_dir: Path) -> Losses:
    steps = [
        (line["step"], line["loss"])
        for line in read_metrics(run_dir / "metrics.jsonl")
        if line["kind"] == "train"
    ]
    assert len(dict(steps)) == len(steps), "a step is logged twice"
    return dict(steps)


def events(run_dir: Path) -> list[str]:
    return [line["event"] for line in read_metrics(run_dir / "metrics.jsonl") if line["kind"] == "event"]


def wait_for_step(run_dir: Path, step: int, process: Any) -> None:
    """Until the log of a running training has reached a step."""
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline:
        assert process.poll() is None, process.communicate()[0]
        path = run_dir / "metrics.jsonl"
        if path.exists() and any(line["step"] >= step for line in read_metrics(path)):
            return
        time.sleep(0.02)
    raise AssertionError(f"step {step} was not reached")


def largest_difference(a: Losses, b: Losses) -> float:
    assert a.keys() == b.keys() and len(a) >= 30
    return max(abs(a[step] - b[step]) for step in a)


@pytest.mark.parametrize(("optimizer", "tolerance"), [("adamw", 1e-5), ("muon", 1e-4)])
def test_batches_and_losses_are_the_same_in_every_mode(
    start: Callable[..., Any],
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
    optimizer: str,
    tolerance: float,
) -> None:
    curves: dict[str, Losses] = {}
    batches: dict[str, list[Any]] = {}
    for index, (mode, (processes, parallel)) in enumerate(MODES.items()):
        folder = run_file.parent / f"record{index}"
        folder.mkdir()
        monkeypatch.setenv("RECORD_TO", str(folder))
        process = start(
            run_file,
            f"name=mode{index}",
            f"parallel.mode={parallel}",
            f"optim.name={optimizer}",
            processes=processes,
            module=RECORDED,
        )
        output, _ = process.communicate(timeout=240)
        assert process.returncode == 0, output
        curves[mode] = losses(run_file.parent / "runs" / f"mode{index}")
        batches[mode] = recorded_packs(folder, processes, packs_per_step=4, num_steps=30)
    alone = curves.pop("ddp of one")
    assert alone[30] < alone[1] - 0.3, "the run must learn something for the comparison to mean anything"
    for mode, curve in curves.items():
        assert largest_difference(alone, curve) < tolerance, mode
    packs = batches.pop("ddp of one")
    assert len({json.dumps(pack) for pack in packs}) == 120, "no two packs are alike"
    for mode, others in batches.items():
        assert others == packs, mode


def recorded_packs(folder: Path, processes: int, *, packs_per_step: int, num_steps: int) -> list[Any]:
    """Ids and targets of every pack, put into the plan's order from what each process recorded."""
    ranks = [
        [json.loads(line) for line in (folder / f"rank-{rank}.jsonl").read_text().splitlines()]
        for rank in range(processes)
    ]
    rounds = -(-packs_per_step // processes)
    return [
        ranks[index % processes][step * rounds + index // processes]
        for step in range(num_steps)
        for index in range(packs_per_step)
    ]


def test_fsdp_with_recomputed_activations(train: Callable[..., None], run_file: Path) -> None:
    train(run_file, "name=alone")
    train(run_file, "name=lean", "parallel.mode=fsdp", "train.activation_checkpointing=true", processes=2)
    runs = run_file.parent / "runs"
    assert largest_difference(losses(runs / "alone"), losses(runs / "lean")) < 1e-5


def test_hsdp_on_four_processes(train: Callable[..., None], run_file: Path) -> None:
    train(run_file, "name=alone")
    train(run_file, "name=hsdp", "parallel.mode=fsdp", "parallel.shard_size=2", processes=4)
    runs = run_file.parent / "runs"
    assert largest_difference(losses(runs / "alone"), losses(runs / "hsdp")) < 1e-5


def kill_at(step: int, run_dir: Path, process: Any) -> None:
    wait_for_step(run_dir, step, process)
    # As when a machine dies: torchrun's workers are sessions of their own and would outlive it.
    everyone = [*psutil.Process(process.pid).children(recursive=True), process]
    for member in everyone:
        member.kill()
    psutil.wait_procs(everyone[:-1], timeout=30)
    process.communicate()


@pytest.mark.parametrize("mode", ["ddp", "fsdp"])
def test_killed_run_resumes_bit_for_bit(
    start: Callable[..., Any],
    train: Callable[..., None],
    run_file: Path,
    mode: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = (f"parallel.mode={mode}", "train.save_every_steps=4", "train.max_steps=30")
    runs = run_file.parent / "runs"
    train(run_file, "name=whole", *options, processes=2)
    step = random.randint(9, 22)
    for name in ("killed", "shrunk"):
        with monkeypatch.context() as patch:
            patch.setenv("HOLD_SECONDS", "0.05")
            process = start(run_file, f"name={name}", *options, processes=2, module=RECORDED)
            kill_at(step, runs / name, process)
    train(run_file, "name=killed", *options, processes=2)
    assert "resumed" in events(runs / "killed"), f"killed at step {step}"
    assert losses(runs / "killed") == losses(runs / "whole"), f"killed at step {step}"
    # Two processes become one, and FSDP becomes DDP, from the same kind of checkpoint.
    train(run_file, "name=shrunk", *options, "parallel.mode=ddp", processes=1)
    assert "resumed" in events(runs / "shrunk"), f"killed at step {step}"
    assert largest_difference(losses(runs / "shrunk"), losses(runs / "whole")) < 1e-5


def test_sigterm_saves_and_the_same_command_goes_on(
    start: Callable[..., Any],
    train: Callable[..., None],
    run_file: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    train(run_file, "name=whole")
    run_dir = run_file.parent / "runs" / "stopped"
    with monkeypatch.context() as patch:
        patch.setenv("HOLD_SECONDS", "0.1")
        process = start(run_file, "name=stopped", processes=2, module=RECORDED)
        wait_for_step(run_dir, 7, process)
        process.send_signal(signal.SIGTERM)  # torchrun hands it on to its workers
        output, _ = process.communicate(timeout=60)
    assert process.returncode != 0
    assert "is saved in" in output and "goes on from there" in output
    step = max(losses(run_dir))
    assert 7 <= step < 30
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    assert not (run_dir / "all_results.json").exists()
    train(run_file, "name=stopped", processes=2)
    assert min(losses(run_dir)) == 1 and "stopped by SIGTERM" in events(run_dir)
    assert largest_difference(losses(run_dir), losses(run_dir.parent / "whole")) < 1e-5


def test_two_trainings_of_one_run_are_refused(
    start: Callable[..., Any], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setenv("HOLD_SECONDS", "0.2")
        first = start(run_file, module=RECORDED)
        wait_for_step(run_file.parent / "runs" / "run", 2, first)
    second = start(run_file)
    output, _ = second.communicate(timeout=60)
    assert second.returncode != 0 and "is being trained by another process" in output
    output, _ = first.communicate(timeout=120)
    assert first.returncode == 0, output


def test_one_failing_process_ends_the_run(
    start: Callable[..., Any], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With a save under way, none of the others may wait for the one that is gone."""
    monkeypatch.setenv("FAIL_RANK", "1")
    monkeypatch.setenv("FAIL_AFTER", "11")
    process = start(run_file, "train.save_every_steps=5", processes=2, module=RECORDED)
    output, _ = process.communicate(timeout=90)
    assert process.returncode != 0 and "only this process ran out of memory" in output


def test_checkpoint_that_cannot_be_written_says_so(
    start: Callable[..., Any], run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    message = run_file.parent / "message"
    monkeypatch.setenv("ESM2_ERROR_FILE", str(message))
    limit = (100_000, 100_000)  # bytes of a file: reached by the checkpoint, not by the log
    process = start(run_file, "train.save_every_steps=5", processes=2, limits={resource.RLIMIT_FSIZE: limit})
    output, _ = process.communicate(timeout=120)
    assert process.returncode != 0
    text = message.read_text()
    assert "could not be written" in text and "Earlier checkpoints are intact; free disk space" in text, (
        output
    )
    assert list((run_file.parent / "runs" / "run" / "checkpoints").iterdir()) == [], (
        "nothing half-written stays"
    )


def test_damaged_checkpoint_falls_back(
    start: Callable[..., Any], train: Callable[..., None], run_file: Path
) -> None:
    train(run_file, "name=whole", "train.max_steps=31")
    train(run_file, "train.save_every_steps=10", "train.max_steps=31")
    run_dir = run_file.parent / "runs" / "run"
    newest, older = sorted((run_dir / "checkpoints").iterdir(), reverse=True)
    assert (newest.name, older.name) == ("step-00000031", "step-00000030")
    data = newest / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    process = start(run_file, "train.save_every_steps=10", "train.max_steps=31")
    output, _ = process.communicate(timeout=240)
    assert process.returncode == 0, output
    assert "checksum of __0_0.distcp is wrong; falling back to the checkpoint before it" in output
    assert newest.with_name(newest.name + ".damaged").exists(), "nothing is deleted"
    assert losses(run_dir) == losses(run_dir.parent / "whole")
    for path in (run_dir / "checkpoints").glob("step-????????"):
        (path / ".metadata").unlink()
    process = start(run_file, "train.save_every_steps=10", "train.max_steps=32")
    output, _ = process.communicate(timeout=240)
    assert process.returncode != 0 and "every checkpoint of this run is damaged" in output


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("train.seed=1", "train.seed: checkpoint 0, now 1"),
        ("model.max_residues=100", "model.max_residues: checkpoint 126, now 100"),
        ("train.tokens_per_step=512", "train.tokens_per_step: checkpoint 1024, now 512"),
    ],
)
def test_changed_run_is_refused(
    train: Callable[..., None], start: Callable[..., Any], run_file: Path, change: str, message: str
) -> None:
    train(run_file, "train.max_steps=6")
    process = start(run_file, "train.max_steps=8", change)
    output, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "belongs to another run" in output and message in output and "choose another 'name'" in output
    assert len(losses(run_file.parent / "runs" / "run")) == 6, "the record of the run is untouched"


def test_longer_run_goes_on_and_a_finished_one_is_left_alone(
    train: Callable[..., None], start: Callable[..., Any], run_file: Path
) -> None:
    run_dir = run_file.parent / "runs" / "run"
    train(run_file, "train.max_steps=6")
    first = losses(run_dir)
    train(run_file, "train.max_steps=6")
    assert losses(run_dir) == first
    process = start(run_file, "train.max_steps=5", "optim.warmup_steps=4")
    output, _ = process.communicate(timeout=60)
    assert process.returncode != 0 and "train.max_steps: got 5" in output and "has come to step 6" in output
    train(run_file, "train.max_steps=9", "optim.schedule=constant")
    longer = losses(run_dir)
    assert len(longer) == 9 and {step: longer[step] for step in first} == first


def test_non_finite_loss_stops_before_the_weights_change(
    start: Callable[..., Any], run_file: Path, tiny_model: Path
) -> None:
    process = start(run_file, "optim.lr=0.9", "optim.clip_norm=0", "optim.weight_decay=1e30")
    output, _ = process.communicate(timeout=240)
    assert process.returncode != 0
    assert "the weights were not touched" in output and "Lower optim.lr" in output
    run_dir = run_file.parent / "runs" / "run"
    assert all(math.isfinite(loss) for loss in losses(run_dir).values())
    assert not (run_dir / "model").exists()


def test_results_and_model_of_a_run(train: Callable[..., None], run_file: Path) -> None:
    train(run_file, processes=2)
    run_dir = run_file.parent / "runs" / "run"
    results = json.loads((run_dir / "all_results.json").read_text())
    guidance = {
        *("epoch", "eval_accuracy", "eval_loss", "eval_runtime", "eval_samples", "eval_samples_per_second"),
        *("perplexity", "train_loss", "train_runtime", "train_samples", "train_samples_per_second"),
        *("train_steps_per_second", "total_flos"),
    }
    ours = {"train_residues", "train_residues_per_second", "fill", "mfu", "peak_memory_bytes"}
    assert guidance | ours <= results.keys()
    assert results["perplexity"] == pytest.approx(math.exp(results["eval_loss"]))
    assert results["perplexity"] < results["unigram_perplexity"] * 1.5
    assert 0.8 < results["fill"] <= 1 and results["world_size"] == 2
    assert (run_dir / "report.html").read_text().startswith("<!")
    model = AutoModelForMaskedLM.from_pretrained(run_dir / "model")
    assert all(torch.isfinite(p).all() for p in model.parameters())
