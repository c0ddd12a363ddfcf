"""``make train-ddp`` without make: several processes, one message, a telling exit status."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from workloads.esm2.alphabet import STANDARD_RESIDUES

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).parents[3]
Launch = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def launch(run_file: Path, tmp_path: Path) -> Launch:
    rng = np.random.default_rng(1)
    fasta = tmp_path / "own.fasta"
    lines = [f">Q{n}\n{''.join(rng.choice(list(STANDARD_RESIDUES), size=80))}\n" for n in range(80)]
    fasta.write_text("".join(lines))

    def start(*overrides: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "workloads.esm2.launch.local", "--config", str(run_file)]
        command += [f"data.source={fasta}", f"data.path={tmp_path}/own", *overrides]
        return subprocess.Popen(
            command, cwd=REPOSITORY, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    return start


def test_graceful_stop_and_a_mistake_is_told_once(launch: Launch, tmp_path: Path) -> None:
    """From FASTA, as ``make train-ddp`` starts it; the run to the end is the README's own command's."""
    process = launch("train.max_steps=1000000")
    log = tmp_path / "runs" / "run" / "metrics.jsonl"
    deadline = time.monotonic() + 120
    while not (log.exists() and log.read_text().count("\n") > 3):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 143
    assert f"processes {torch.cuda.device_count() or 2}," in errors
    assert "is saved in" in errors.splitlines()[-1] and "Traceback" not in errors
    assert list((tmp_path / "runs" / "run" / "checkpoints").glob("step-????????"))

    _, errors = (process := launch("train.max_steps=1000000", "train.seed=5")).communicate(timeout=120)
    assert process.returncode == 2
    assert errors.count("train.seed: checkpoint 0, now 5") == 1
    assert errors.rstrip().endswith("to start a new run"), "the message comes last"
    assert "Traceback" not in errors
