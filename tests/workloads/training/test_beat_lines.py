"""Lines in the log by which HyperPod's agent sees that a process advances."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from seqlm.training import heartbeat
from seqlm.training.heartbeat import BeatLines

EVERY = 0.02
SECONDS = 120.0


@pytest.fixture
def told(capsys: pytest.CaptureFixture[str]) -> Callable[[], list[str]]:
    """Lines since it was last asked."""
    return lambda: capsys.readouterr().out.splitlines()


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + SECONDS
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(EVERY)


def test_a_line_for_an_advance_and_none_without(told: Callable[[], list[str]]) -> None:
    lines = BeatLines(EVERY)
    lines.beat("training", slow=False)
    until(lambda: "advances: training" in told())
    time.sleep(5 * EVERY)
    told()
    time.sleep(10 * EVERY)
    assert told() == []
    lines.beat("evaluating", slow=False)
    until(lambda: "advances: evaluating" in told())


def test_slow_work_is_reported_for_as_long_as_it_may_last(told: Callable[[], list[str]]) -> None:
    lines = BeatLines(EVERY, slow_seconds=0.5)
    lines.beat("writing a checkpoint", slow=True)
    heard: list[str] = []
    until(lambda: bool(heard.extend(told())) or len(heard) > 3)
    # A line and its end may be read apart.
    assert set(heard) <= {"", "advances: starting", "advances: writing a checkpoint"}
    time.sleep(0.7)
    told()
    time.sleep(10 * EVERY)
    assert told() == []


@pytest.mark.parametrize(
    ("rank", "seconds", "speaks"), [("0", "1", True), ("1", "1", False), ("0", None, False)]
)
def test_the_first_process_of_a_node_writes_lines_if_requested(
    monkeypatch: pytest.MonkeyPatch,
    told: Callable[[], list[str]],
    rank: str,
    seconds: str | None,
    speaks: bool,
) -> None:
    monkeypatch.setenv("LOCAL_RANK", rank)
    monkeypatch.delenv(heartbeat.BEATS_FOLDER, raising=False)
    if seconds:
        monkeypatch.setenv(heartbeat.BEAT_LINES, seconds)
    heartbeat._heart.cache_clear()
    heartbeat._lines.cache_clear()
    try:
        heartbeat.beat("training")
        if speaks:
            until(lambda: "advances: training" in told())
        else:
            time.sleep(0.3)
            assert told() == []
    finally:
        heartbeat._lines.cache_clear()
        heartbeat._heart.cache_clear()
