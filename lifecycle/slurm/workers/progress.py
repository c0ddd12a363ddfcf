"""Progress lines of a long run, to the terminal and to the controller's log."""

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

SECONDS_OF_SILENCE = 60.0
"""Interval of reminders, because Session Manager ends a silent session, by default after 20 minutes."""


class Progress:
    """Lines with their time. A lost terminal connection does not end the run."""

    def __init__(self, log: TextIO, watcher: TextIO) -> None:
        self._log = log
        self._watcher: TextIO | None = watcher
        self._turn = threading.Lock()
        self._spoken = threading.Event()

    def say(self, text: str) -> None:
        """Print a line to both."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{now} apply: {text}"
        with self._turn:
            print(line, file=self._log, flush=True)
            self._show(line)

    def pass_on(self, line: str) -> None:
        """Print a node's own line, which that node's log already has."""
        with self._turn:
            self._show(line)

    def _show(self, line: str) -> None:
        self._spoken.set()
        if self._watcher is None:
            return
        try:
            print(line, file=self._watcher, flush=True)
        except OSError:
            # Buffered output must not fail at the end of the program.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._watcher.fileno())
            self._watcher = None

    @contextlib.contextmanager
    def alive(self) -> Iterator[None]:
        """Print a reminder after each minute without other output."""
        ended = threading.Event()

        def remind() -> None:
            while not ended.wait(SECONDS_OF_SILENCE):
                if not self._spoken.is_set():
                    self.say("still at work")
                self._spoken.clear()

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield
        finally:
            ended.set()
            reminder.join()
