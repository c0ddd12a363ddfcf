"""Pauses of processes that begin together differ, and long waits look at shared files less often."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from seqlm.proteins.inference import job
from seqlm.training.data import transfer
from seqlm.training.data.pauses import LONGEST_SHARE, SHORTEST_SHARE, spread
from seqlm.training.data.remotes import TransientError

HOUR_SECONDS = 3_600


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Record the pauses of this process, which take no time."""
    found: list[float] = []
    for module in (job, transfer):
        monkeypatch.setattr(module.time, "sleep", found.append)
    return found


def test_pauses_differ_around_their_mean() -> None:
    state = random.getstate()
    found = [spread(4.0) for _ in range(1_000)]
    assert 4 * SHORTEST_SHARE <= min(found) < 3.0 < 5.0 < max(found) <= 4 * LONGEST_SHARE
    assert len(set(found)) > 900
    assert random.getstate() == state, "the random numbers of a run stay the same"


def until(pauses: list[float], seconds: float) -> Callable[[], bool]:
    return lambda: sum(pauses) >= seconds


def test_a_short_wait_looks_often_and_a_long_one_seldom(pauses: list[float]) -> None:
    job._await(until(pauses, 10))
    assert max(pauses) <= job.WAIT_SECONDS * LONGEST_SHARE
    pauses.clear()
    job._await(until(pauses, HOUR_SECONDS))
    assert len(pauses) < HOUR_SECONDS / job.MOST_WAIT_SECONDS * 2
    waited = 0.0
    for pause in pauses:
        allowed = max(job.WAIT_SECONDS, job.WAIT_SHARE * waited) * LONGEST_SHARE
        assert pause <= min(allowed, job.MOST_WAIT_SECONDS * LONGEST_SHARE)
        waited += pause


def test_files_that_exist_are_not_looked_at_again(tmp_path: Path, pauses: list[float]) -> None:
    looks: list[str] = []

    class Counted(type(tmp_path)):  # type: ignore[misc]
        def exists(self, **options: bool) -> bool:
            looks.append(self.name)
            return self.name != "late" or len(pauses) > 20

    job.await_all(Counted(tmp_path / name) for name in ("a", "b", "late", "c"))
    assert looks.count("late") == len(pauses) + 1 > 20
    assert [looks.count(name) for name in ("a", "b", "c")] == [1, 1, 1]


def test_downloads_are_tried_again_after_different_times(
    tmp_path: Path, pauses: list[float], monkeypatch: pytest.MonkeyPatch
) -> None:
    class Unreachable:
        def head(self) -> None:
            raise TransientError("no answer")

    for number in range(2):
        with (tmp_path / str(number)).open("wb+") as stream, pytest.raises(transfer.FetchError):
            transfer._transfer(Unreachable(), stream, tmp_path)  # type: ignore[arg-type]
    half = len(pauses) // 2
    assert half == transfer.MAX_ATTEMPTS - 1
    assert pauses[:half] != pauses[half:]
    for failures, pause in enumerate(pauses[:half]):
        mean = transfer.FIRST_BACKOFF_SECONDS * 2**failures
        assert mean * SHORTEST_SHARE <= pause <= mean * LONGEST_SHARE


def test_forked_processes_have_different_pauses() -> None:
    """The template of a node imports the module, and forks the processes of each start."""
    program = (
        "import os; from seqlm.training.data.pauses import spread\n"
        "for _ in range(2):\n"
        "    if (child := os.fork()) == 0:\n"
        "        print(spread(1.0), flush=True)\n"
        "        os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    shown = subprocess.run(
        [sys.executable, "-c", program], check=True, capture_output=True, text=True
    ).stdout
    first, second = shown.split()
    assert first != second
