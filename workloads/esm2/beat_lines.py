"""Signs of life in a process's log, for whoever watches that: HyperPod's agent on Kubernetes.

A thread writes a line now and then as long as its process advances. No line for long: the process has hung.
"""

from __future__ import annotations

import os
import threading
import time

LINE = "advances: "
"""What every line begins with."""
SLOW_SECONDS = 1800.0
"""Bound for what is slow without being hung: downloads, compilation, checkpoints."""
SLOW_VARIABLE = "ESM2_SLOW_SECONDS"
"""Of the environment: another bound, where compilation takes longer."""


def slow_seconds() -> float:
    """The bound that holds for this process."""
    return float(os.environ.get(SLOW_VARIABLE, SLOW_SECONDS))


class BeatLines:
    """Writes to standard output, at most a line in ``every_seconds``."""

    def __init__(self, every_seconds: float, *, slow_seconds: float = SLOW_SECONDS) -> None:
        self._every_seconds, self._slow_seconds = every_seconds, slow_seconds
        self._beat = (time.monotonic(), "starting", True)
        self._told_seconds = 0.0
        threading.Thread(target=self._tell, name="beat lines", daemon=True).start()

    def beat(self, doing: str, slow: bool) -> None:
        """The process advances; the arguments are those of ``heartbeat.beat``."""
        self._beat = (time.monotonic(), doing, slow)

    def _tell(self) -> None:
        while True:
            seconds, doing, slow = self._beat
            now = time.monotonic()
            if seconds > self._told_seconds or (slow and now - seconds < self._slow_seconds):
                print(f"{LINE}{doing}", flush=True)
                self._told_seconds = now
            time.sleep(self._every_seconds)
