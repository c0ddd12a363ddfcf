"""A run that is silent for long prints that it continues, because silent sessions are ended."""

from __future__ import annotations

import io
import threading

import pytest

from workers import progress
from workers.progress import Progress


class Heard(io.StringIO):
    """Tells when a text has come."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self._text = text
        self.came = threading.Event()

    def write(self, text: str) -> int:
        if self._text in text:
            self.came.set()
        return super().write(text)


def test_silence_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "SECONDS_OF_SILENCE", 0.01)
    heard = Heard("still at work")
    with Progress(io.StringIO(), heard).alive():
        assert heard.came.wait(timeout=60)


def test_other_output_replaces_a_reminder() -> None:
    log = io.StringIO()
    watcher = io.StringIO()
    progress = Progress(log, watcher)
    with progress.alive():
        progress.say("begun")
        progress.pass_on("a line of somebody's")
    first, second = watcher.getvalue().splitlines()
    assert first.endswith("Z apply: begun") and second == "a line of somebody's"
    # The other line is in a log already.
    assert log.getvalue() == f"{first}\n"
