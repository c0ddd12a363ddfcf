"""Training processes that are killed, stopped or fail: nothing is lost, and no process waits for ever."""

from __future__ import annotations

import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.training.command_line import STOPPED_BY_SIGNAL
from seqlm.training.tracking.run_log import read_metrics
from tests.workloads.training import hindered_training
from tests.workloads.training.forked_processes import forked, train_in_turn
from tests.workloads.training.training_runs import (
    NUM_STEPS,
    events,
    largest_difference,
    losses,
    train_here,
)

pytestmark = [pytest.mark.long, pytest.mark.timeout(1800)]
"""The runs of a test take a minute of processor time, on cores that other tests may hold."""


def wait_for_step(
    run_dir: Path, step: int, running: Callable[[], bool], seconds: float = 600
) -> None:
    """Wait until the log of a running training has reached a step."""
    deadline = time.monotonic() + seconds
    while running():
        path = run_dir / "metrics.jsonl"
        if path.exists() and any(line["step"] >= step for line in read_metrics(path)):
            return
        assert time.monotonic() < deadline
        time.sleep(0.02)
    raise AssertionError(f"the training ended before step {step}")


def test_killed_runs_resume_bit_for_bit(run_file: Path) -> None:
    runs = run_file.parent / "runs"
    saving = "train.save_every_steps=4"
    killed = {mode: random.randint(9, 13) for mode in ("ddp", "fsdp")}
    for mode, step in killed.items():
        arguments = (
            "--config",
            str(run_file),
            f"name=killed-{mode}",
            f"parallel.mode={mode}",
            saving,
        )
        log = run_file.with_name(mode)
        with forked(
            2, hindered_training.main, *arguments, log=log, HOLD_SECONDS="0.05"
        ) as killed_ones:
            wait_for_step(runs / f"killed-{mode}", step, killed_ones.are_running)
            killed_ones.kill()  # as when a machine dies
        shutil.copytree(runs / f"killed-{mode}", runs / f"shrunk-{mode}")
    settings = [
        f"name={name}-{mode} parallel.mode={mode} {saving}"
        for name in ("killed", "whole")
        for mode in killed
    ]
    train_in_turn(run_file, {2: settings})
    for mode, step in killed.items():
        assert "resumed" in events(runs / f"killed-{mode}"), f"{mode} killed at step {step}"
        whole = losses(runs / f"whole-{mode}")
        assert losses(runs / f"killed-{mode}") == whole, f"{mode} killed at step {step}"
        # Two processes become one, and FSDP becomes DDP, from the same kind of checkpoint.
        train_here(run_file, f"name=shrunk-{mode}", "parallel.mode=ddp", saving)
        assert "resumed" in events(runs / f"shrunk-{mode}"), f"{mode} killed at step {step}"
        assert largest_difference(losses(runs / f"shrunk-{mode}"), whole) < 1e-5


def test_sigterm_saves_and_the_same_command_resumes(run_file: Path) -> None:
    """Meanwhile a second training of the same run is refused."""
    run_dir = run_file.parent / "runs" / "stopped"
    command = ("--config", str(run_file), "name=stopped")
    log = run_file.with_name("signalled")
    with forked(2, hindered_training.main, *command, log=log, HOLD_SECONDS="0.2") as signalled:
        wait_for_step(run_dir, 7, signalled.are_running)
        with pytest.raises(ValueError, match="is being trained by another process"):
            train_here(run_file, "name=stopped")
        for process in signalled.processes:
            process.terminate()  # as torchrun does when it gets SIGTERM
        assert signalled.ends() == [STOPPED_BY_SIGNAL] * 2
    assert "is saved in" in signalled.output and "continues from there" in signalled.output
    step = max(losses(run_dir))
    assert 7 <= step < NUM_STEPS
    assert [path.name for path in (run_dir / "checkpoints").iterdir()] == [f"step-{step:08d}"]
    assert not (run_dir / "all_results.json").exists()
    # Then only one of both gets a signal, during an evaluation.
    log = run_file.with_name("stopped")
    often = "train.eval_every_steps=2"
    with forked(2, hindered_training.main, *command, often, log=log, STOP_RANK="1") as stopped:
        assert 143 in stopped.ends()
    assert "is saved in" in stopped.output and step < max(losses(run_dir)) <= step + 2 < NUM_STEPS
    train_here(run_file, "name=stopped")
    told = [event for event in events(run_dir) if event.startswith("stopped")]
    assert told == ["stopped by SIGTERM", "stopped by a signal to another process"]
    assert min(losses(run_dir)) == 1
    train_here(run_file, "name=whole")
    assert largest_difference(losses(run_dir), losses(run_dir.parent / "whole")) < 1e-5


def test_a_signal_to_one_process_stops_all_after_the_same_step(run_file: Path) -> None:
    """The flag of the signal travels with the figures of the next step, not in a sum of the hosts."""
    run_dir = run_file.parent / "runs" / "stopped"
    command = ("--config", str(run_file), "name=stopped", "train.log_every_steps=100")
    log = run_file.with_name("one-signal")
    signal_to = {"STOP_RANK": "1", "STOP_STEP": "4"}
    with forked(2, hindered_training.main, *command, log=log, **signal_to) as stopped:
        assert stopped.ends(60) == [STOPPED_BY_SIGNAL] * 2, stopped.output
    [checkpoint] = (run_dir / "checkpoints").iterdir()
    assert checkpoint.name == "step-00000006", "two steps after the signal"
    assert events(run_dir).count("checkpoint") == 0
    train_here(run_file, "name=stopped")
    assert max(losses(run_dir)) == NUM_STEPS


@pytest.mark.long
def test_output_that_cannot_be_written_ends_no_run(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with open("/dev/full", "w", buffering=1) as full:
        for name in ("stdout", "stderr"):
            monkeypatch.setattr(sys, name, full)
        train_here(run_file, "train.max_steps=4")
        monkeypatch.undo()
    assert len(losses(run_file.parent / "runs/run")) == 4


@pytest.mark.parametrize("kind", ["full", "closed pipe"])
def test_lost_lines_do_not_change_the_status(kind: str) -> None:
    """Python itself ends with 120 if it cannot write what is left."""
    program = (
        "import sys\n"
        "from seqlm.training.tracking.console import lines_may_be_lost\n"
        "with lines_may_be_lost():\n"
        "    print('a line')\n"
        "    print('another', file=sys.stderr)\n"
        "print('later')\n"
    )
    if kind == "full":
        output = os.open("/dev/full", os.O_WRONLY)
    else:
        reading, output = os.pipe()
        os.close(reading)
    try:
        done = subprocess.run([sys.executable, "-c", program], stdout=output, stderr=output)
    finally:
        os.close(output)
    assert done.returncode == 0


def test_processes_end_when_their_launcher_is_killed(tmp_path: Path) -> None:
    """The launcher cannot tell them: SIGKILL gives it no time."""
    worker = (
        "import signal, sys, time\n"
        "from seqlm.training.command_line import end_with_launcher\n"
        "signal.signal(signal.SIGTERM, lambda *_: sys.exit(print('saved', flush=True)))\n"
        "end_with_launcher()\n"
        "print('started', flush=True)\n"
        "time.sleep(60)\n"
    )
    launcher = (
        "import os, subprocess, sys\n"
        "from seqlm.training.command_line import LAUNCHER\n"
        "os.environ[LAUNCHER] = str(os.getpid())\n"
        f"subprocess.run([sys.executable, '-c', {worker!r}])\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", launcher], stdout=subprocess.PIPE, text=True
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "started\n"
        started.kill()
        assert started.stdout.read() == "saved\n"


def test_one_failing_process_ends_the_run(run_file: Path) -> None:
    """With a save under way, none of the others may wait for the one that is gone."""
    arguments = ("--config", str(run_file), "train.save_every_steps=5")
    message = run_file.parent / "message"
    failing = {"FAIL_RANK": "1", "FAIL_AFTER": "11", "ESM2_ERROR_FILE": str(message)}
    log = run_file.with_name("failing")
    with forked(2, hindered_training.main, *arguments, log=log, **failing) as started:
        assert any(started.ends(90)) and "only this process ran out of memory" in started.output
    assert message.read_text() == "error: MemoryError: only this process ran out of memory"


def test_checkpoint_that_cannot_be_written_says_so(run_file: Path) -> None:
    message = run_file.parent / "message"
    settings = ("--config", str(run_file), "train.save_every_steps=5")
    # Reached by the checkpoint, not by the log.
    environment = {"FILE_BYTES": "100_000", "ESM2_ERROR_FILE": str(message)}
    log = run_file.with_name("limited")
    with forked(2, hindered_training.main, *settings, log=log, **environment) as limited:
        assert any(limited.ends())
    text = message.read_text()
    assert (
        "could not be written" in text and "Earlier checkpoints are intact; free disk space" in text
    )
    checkpoints = run_file.parent / "runs" / "run" / "checkpoints"
    assert list(checkpoints.iterdir()) == [], "nothing half-written stays"
