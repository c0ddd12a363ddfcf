"""Restart of a run, which resumes or reports why it cannot."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.staging import DefaultStager

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.pretraining import evaluation
from seqlm.training import checkpoint
from seqlm.training.checksums import SUMS_FILE, DamagedError, read_document, seal
from seqlm.training.data.locks import PATIENCE, try_lock
from seqlm.training.health.faults import NonFiniteLossError
from seqlm.training.tracking.progress import Progress
from seqlm.training.tracking.run_log import RESULTS_FILE
from tests.workloads.training.forked_processes import forked
from tests.workloads.training.training_runs import events, lines, losses, train_here

BOTH_FAMILIES = {"test_a_longer_run_resumes_and_a_finished_one_is_left_alone"}


@pytest.fixture
def run_dir(run_file: Path) -> Path:
    return run_file.parent / "runs" / "run"


@pytest.mark.long
def test_damaged_checkpoint_falls_back(
    run_file: Path, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train_here(run_file, "name=whole", "train.max_steps=31")
    train_here(run_file, "train.save_every_steps=10", "train.max_steps=31")
    newest, older = sorted((run_dir / "checkpoints").iterdir(), reverse=True)
    assert (newest.name, older.name) == ("step-00000031", "step-00000030")
    data = newest / "__0_0.distcp"
    content = bytearray(data.read_bytes())
    content[len(content) // 2] ^= 1
    data.write_bytes(content)
    train_here(run_file, "train.save_every_steps=10", "train.max_steps=31")
    said = capfd.readouterr().out
    assert (
        "__0_0.distcp is damaged: its checksum is wrong; falling back to the checkpoint before it"
        in said
    )
    assert newest.with_name(newest.name + ".damaged").exists(), "nothing is deleted"
    assert losses(run_dir) == losses(run_dir.parent / "whole")
    for path in (run_dir / "checkpoints").glob("step-????????"):
        (path / ".metadata").unlink()
    with pytest.raises(ValueError, match="every checkpoint of this run is damaged"):
        train_here(run_file, "train.save_every_steps=10", "train.max_steps=32")


@pytest.mark.long
def test_weights_that_a_checkpoint_replaces_are_not_read(
    run_file: Path, run_dir: Path, tiny_model: Path, tmp_path: Path
) -> None:
    model = shutil.copytree(tiny_model, tmp_path / "model")
    sums = hashlib.sha256((model / SUMS_FILE).read_bytes()).hexdigest()
    settings = (f"model.init_from={model}", "optim.schedule=constant")
    train_here(run_file, *settings, "name=whole", "train.max_steps=6")
    train_here(run_file, *settings, "train.max_steps=4")
    (model / "model.safetensors").write_bytes(b"damaged")
    train_here(run_file, *settings, "train.max_steps=6")
    assert losses(run_dir) == losses(run_dir.with_name("whole"))
    assert json.loads((run_dir / RESULTS_FILE).read_text())["init_from_sha256"] == sums
    with pytest.raises(DamagedError, match=r"model\.safetensors is damaged"):
        train_here(run_file, *settings, "name=new")


@pytest.mark.long
def test_a_checkpoint_of_an_earlier_version_does_not_name_its_start(
    run_file: Path, run_dir: Path, tiny_model: Path
) -> None:
    """The files are then hashed again."""
    train_here(run_file, "train.max_steps=4")
    (path,) = run_dir.glob("checkpoints/*/checkpoint.json")
    document = read_document(path.parent)
    del document["init_from_sha256"]
    path.write_text(seal(document))
    train_here(run_file, "train.max_steps=5")
    sums = hashlib.sha256((tiny_model / SUMS_FILE).read_bytes()).hexdigest()
    assert json.loads((run_dir / RESULTS_FILE).read_text())["init_from_sha256"] == sums


@pytest.mark.long
def test_a_stager_that_serves_one_save_is_replaced(
    run_file: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch 2.11 closes a stager as soon as it has staged once."""
    stage = DefaultStager.stage

    def stage_and_close(stager: DefaultStager, *arguments: Any, **settings: Any) -> Any:
        staged = stage(stager, *arguments, **settings)
        stager.close()
        return staged

    monkeypatch.setattr(DefaultStager, "stage", stage_and_close)
    monkeypatch.setattr(checkpoint, "_REUSES_STAGER", False)
    train_here(run_file, "train.save_every_steps=3", "train.max_steps=7")
    found = sorted(path.name for path in (run_dir / "checkpoints").iterdir())
    assert found[-2:] == ["step-00000006", "step-00000007"]


@pytest.mark.long
def test_a_signal_ends_an_evaluation(
    run_file: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The sender of a signal does not wait for long, and all of a split may take hours. The first evaluation
    comes between two saves, the next one with a save, the last one at the end.
    """
    settings = ("train.eval_every_steps=3", "train.save_every_steps=6", "train.max_steps=8")
    for step in (3, 6, 8):
        scored: list[Any] = []

        def interrupted(*arguments: Any, scored: list[Any] = scored) -> Any:
            scored.append(arguments)
            if len(scored) == 2:
                signal.raise_signal(signal.SIGTERM)
            return mask_pack(*arguments)

        with monkeypatch.context() as patched, pytest.raises(SystemExit) as ended:
            patched.setattr(evaluation, "mask_pack", interrupted)
            train_here(run_file, *settings)
        assert ended.value.code == 143 and len(scored) == 2
        assert events(run_dir)[-1] == "stopped by SIGTERM" and lines(run_dir, "eval") == []
        assert max(path.name for path in (run_dir / "checkpoints").iterdir()) == f"step-{step:08d}"
        assert not (run_dir / "all_results.json").exists()
    train_here(run_file, *settings)
    resumed = [line for line in lines(run_dir, "event") if line["event"] == "resumed"]
    assert [(line["step"], line["lost_steps"]) for line in resumed] == [(3, 0), (6, 0), (8, 0)]
    assert list(losses(run_dir)) == list(range(1, 9)) and (run_dir / "all_results.json").exists()


@pytest.mark.long
def test_changed_run_is_refused(run_file: Path, run_dir: Path) -> None:
    train_here(run_file, "train.max_steps=6")
    for change, message in (
        ("train.seed=1", "train.seed: checkpoint 0, now 1"),
        ("model.max_residues=100", "model.max_residues: checkpoint 126, now 100"),
        ("train.tokens_per_step=512", "train.tokens_per_step: checkpoint 1024, now 512"),
    ):
        with pytest.raises(
            ValueError, match=f"belongs to another run:\n  {message}\n.*choose another 'name'"
        ):
            train_here(run_file, "train.max_steps=8", change)
        assert len(losses(run_dir)) == 6, "the record of the run is untouched"


@pytest.mark.long
def test_a_resumed_run_names_what_has_changed(
    run_file: Path, run_dir: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    train_here(run_file, "train.max_steps=6", "optim.schedule=constant")
    train_here(run_file, "train.max_steps=7", "optim.schedule=constant")
    assert not [event for event in events(run_dir) if event.startswith("changed")]
    changed = (
        "optim.lr=1e-3",
        "train.precision=bf16",
        "train.kernels=off",
        "train.log_every_steps=2",
    )
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(torch, "get_num_threads", lambda: 7)
        train_here(run_file, "train.max_steps=9", *changed)
    (event,) = [event for event in events(run_dir) if event.startswith("changed")]
    for change in (
        "optim.lr: 0.002, now 0.001; ",
        "optim.schedule: 'constant', now 'linear'; ",
        "train.precision: 'fp32', now 'bf16'; ",
        "train.max_steps: 7, now 9; ",
        "train.kernels: 'auto', now 'off'; ",
        "threads: 1, now 7",
    ):
        assert change in event
    assert "log_every" not in event and "\n" not in event
    assert event.endswith("no longer equal bit for bit to those of a run without this change")
    assert event in capfd.readouterr().err


@pytest.mark.long
def test_another_number_of_processes_is_named(run_file: Path, run_dir: Path) -> None:
    train_here(run_file, "train.max_steps=6")
    log = run_file.with_name("log")
    settings = ["train.max_steps=7"]
    with forked(2, train_here, run_file, *settings, log=log) as started:
        assert started.ends(200) == [0, 0], started.output
    (event,) = [event for event in events(run_dir) if event.startswith("changed")]
    assert "processes: 1, now 2" in event


@pytest.mark.parametrize(
    "progress",
    [{"step": "3"}, {"step": -1}, {"step": 2.5}, {"epoch": None}, {"evil": 1}, {"pack": [1]}, {}],
)
def test_a_progress_that_is_none_is_refused(progress: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="the checkpoint has the progress"):
        Progress.of({"step": 1} | progress if progress else {})


@pytest.mark.long
def test_a_lock_of_the_last_start_is_waited_for(
    run_file: Path, run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The processes of the last start may still be ending, or their node was lost."""
    monkeypatch.setenv(PATIENCE, "60")
    held = try_lock(run_dir / "metrics.jsonl")
    assert held is not None
    threading.Timer(1, held.close).start()
    train_here(run_file, "train.max_steps=6")
    assert len(losses(run_dir)) == 6


@pytest.mark.long
def test_a_longer_run_resumes_and_a_finished_one_is_left_alone(
    run_file: Path, run_dir: Path
) -> None:
    train_here(run_file, "train.max_steps=6")
    first = losses(run_dir)
    (run_dir / "report.html").unlink()
    train_here(run_file, "train.max_steps=6")
    assert losses(run_dir) == first
    assert (run_dir / "report.html").exists(), "killed before it was written"
    with pytest.raises(ValueError, match=r"train\.max_steps: got 5, but .* has come to step 6"):
        train_here(run_file, "train.max_steps=5", "optim.warmup_steps=4")
    train_here(run_file, "train.max_steps=9", "optim.schedule=constant")
    longer = losses(run_dir)
    assert len(longer) == 9 and {step: longer[step] for step in first} == first


def test_non_finite_loss_stops_before_the_weights_change(run_file: Path, run_dir: Path) -> None:
    with pytest.raises(NonFiniteLossError, match=r"the weights were not touched\. Lower optim\.lr"):
        train_here(run_file, "optim.lr=0.9", "optim.clip_norm=0", "optim.weight_decay=1e30")
    assert all(math.isfinite(loss) for loss in losses(run_dir).values())
    assert not (run_dir / "model").exists()
