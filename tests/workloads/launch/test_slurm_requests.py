"""Requests to a controller of Slurm that is away for a while."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from seqlm.launch import slurm_supervisor
from seqlm.launch.slurm_supervisor import insist

SCONTROL = """#!/bin/sh
cd "$(dirname "$0")"
echo "$*" >>calls
if [ -e away ] && [ "$(wc -l <calls)" -le 4 ]; then exit 1; fi
[ "$1" = ping ] || [ ! -e refuses ] || exit 1
echo "said"
"""


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "scontrol").write_text(SCONTROL)
    (tmp_path / "scontrol").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(slurm_supervisor, "PAUSE_SECONDS", 0.01)
    return tmp_path


@pytest.mark.parametrize(
    ("state", "said", "num_requests"),
    [
        ((), "said\n", 1),
        (("away",), "said\n", 3),
        (("refuses",), None, 1),
        (("away", "refuses"), None, 3),
    ],
)
def test_a_request_outlasts_a_restart_and_takes_no_for_an_answer(
    programs: Path, state: tuple[str, ...], said: str | None, num_requests: int
) -> None:
    for name in state:
        (programs / name).touch()
    assert insist("scontrol", "requeue", "7") == said
    calls = (programs / "calls").read_text().splitlines()
    assert calls.count("requeue 7") == num_requests


def test_a_controller_that_stays_away_is_given_up(
    programs: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (programs / "away").touch()
    monkeypatch.setattr(slurm_supervisor, "PATIENCE_SECONDS", 0.0)
    assert insist("scontrol", "requeue", "7") is None


def test_a_program_that_hangs_is_ended(programs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (programs / "scontrol").write_text("#!/bin/sh\nexec sleep 60\n")
    monkeypatch.setattr(slurm_supervisor, "REQUEST_SECONDS", 0.1)
    monkeypatch.setattr(slurm_supervisor, "PATIENCE_SECONDS", 0.0)
    assert insist("scontrol", "requeue", "7") is None
