"""What a long run says, to whoever watches and to the log of the controller."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Iterator
from datetime import datetime, timezone
from typing import TextIO

SECONDS_OF_SILENCE = 60.0
"""Session Manager ends a session in which nothing is said, after 20 minutes as it comes."""


class Progress:
    """Lines with their time. That nobody watches any more, as when the connection is lost, ends nothing."""

    def __init__(self, log: TextIO, watcher: TextIO) -> None:
        self._log = log
        self._watcher: TextIO | None = watcher
        self._turn = threading.Lock()
        self._spoken = threading.Event()

    def say(self, text: str) -> None:
        """Say a line to both."""
        now = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        line = f"{now} apply: {text}"
        with self._turn:
            print(line, file=self._log, flush=True)
            self._show(line)

    def pass_on(self, line: str) -> None:
        """Show a line of a node's own, which is in that node's log already."""
        with self._turn:
            self._show(line)

    def _show(self, line: str) -> None:
        self._spoken.set()
        if self._watcher is None:
            return
        try:
            print(line, file=self._watcher, flush=True)
        except OSError:
            # What is still in the buffer must not fail the end of the program.
            os.dup2(os.open(os.devnull, os.O_WRONLY), self._watcher.fileno())
            self._watcher = None

    @contextlib.contextmanager
    def alive(self, still: str) -> Iterator[None]:
        """Say ``still`` whenever nothing else has been said for a minute."""
        ended = threading.Event()

        def remind() -> None:
            while not ended.wait(SECONDS_OF_SILENCE):
                if not self._spoken.is_set():
                    self.say(still)
                self._spoken.clear()

        reminder = threading.Thread(target=remind, daemon=True)
        reminder.start()
        try:
            yield
        finally:
            ended.set()
            reminder.join()
