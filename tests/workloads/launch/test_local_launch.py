"""``make train-ddp`` without make: several processes, one message, a telling exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from seqlm.launch import local
from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.training.command_line import ERROR_FILE

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
TAKEN = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(run_file: Path, tmp_path: Path) -> Launch:
    rng = np.random.default_rng(1)
    fasta = tmp_path / "own.fasta"
    lines = [f">Q{n}\n{''.join(rng.choice(list(STANDARD_RESIDUES), size=80))}\n" for n in range(80)]
    fasta.write_text("".join(lines))

    def start(*overrides: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "seqlm", "train", "--config", str(run_file)]
        command += [f"data.source={fasta}", f"data.path={tmp_path}/own", *overrides]
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_a_run_is_stopped_and_saved(launch: Launch, tmp_path: Path) -> None:
    """A run from FASTA, as ``make train-ddp`` starts it. The test of README's command runs to the end."""
    process = launch("train.max_steps=1000000")
    log = tmp_path / "runs" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 240
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=240)
    assert process.returncode == 143, errors
    assert f"processes {torch.cuda.device_count() or 2}," in errors
    assert "is saved in" in errors.splitlines()[-1] and "Traceback" not in errors
    assert list((tmp_path / "runs" / "run" / "checkpoints").glob("step-????????"))


@pytest.fixture
def restored_signals() -> Iterator[None]:
    """Undo what torchrun leaves: it ignores SIGTERM in the end, as the process that runs it then ends."""
    before = {number: signal.getsignal(number) for number in TAKEN}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.usefixtures("restored_signals")
def test_reports_a_mistake_of_all_processes_once(
    run_file: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(ERROR_FILE, "")  # is set for the processes
    monkeypatch.setattr(sys, "argv", ["seqlm", "train", "--config", str(run_file), "optim.lr=fast"])
    assert local.on_every_device("training run") == 2
    errors = capfd.readouterr().err
    assert errors.count("optim.lr: got 'fast'") == 1 and "Traceback" not in errors
    assert "optim.lr: got 'fast'" in errors.splitlines()[-1], "the message comes last"
