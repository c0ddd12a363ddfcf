"""Heartbeats of a training process, for observers outside it (``launch/hang_watch.py``).

If ``BEATS_FOLDER`` names a folder of the node, a process with local rank n has these files there:

- ``<n>.json`` has its id and current activity, and is touched whenever the process advances.
- ``<n>.stack`` receives the stack of the thread that gets ``STACK_SIGNAL``.
- ``<n>.threads`` receives the stacks of all threads on ``THREADS_SIGNAL``.

If ``BEAT_LINES`` is a number of seconds, the first process of the node writes to its log that it advances,
for HyperPod's agent on Kubernetes. Without these variables nothing happens.
"""

import faulthandler
import json
import os
import signal
import threading
import time
from functools import cache
from pathlib import Path
from typing import NamedTuple

BEATS_FOLDER = "ESM2_BEATS_FOLDER"
"""Environment variable with the folder of the processes' files."""
BEAT_LINES = "ESM2_BEAT_LINES_SECONDS"
"""Environment variable with the shortest time in seconds between two lines in the log."""
STACK_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR1)
"""Real-time signal if the system has them, because neither torchrun, NCCL nor Slurm sends one."""
THREADS_SIGNAL = STACK_SIGNAL + 1
"""Separate signal, because faulthandler may crash on a thread that runs while its stack is read."""
RECORD_BYTES = 512
"""Size of ``<n>.json``: one block that is overwritten in place, so that a full disk cannot fail a beat."""
STARTED = "ESM2_STARTED"
"""Environment variable with the start of the command that started the processes, in seconds since 1970."""
LINE = "advances: "
"""Beginning of every line in the log."""
SLOW_SECONDS = 1800.0
"""Longest time between two beats in slow phases: downloads, compilation, checkpoints."""
SLOW_VARIABLE = "ESM2_SLOW_SECONDS"
"""Environment variable with another value for ``SLOW_SECONDS``, if compilation takes longer."""


def slow_seconds() -> float:
    """Return the longest time between two beats of this process in slow phases."""
    return float(os.environ.get(SLOW_VARIABLE, SLOW_SECONDS))


def beat(doing: str, *, slow: bool = False) -> None:
    """Report that this process advances. Only the main thread calls this.

    A repeated activity costs one system call.

    Args:
        doing: next activity of the process, for people.
        slow: whether the next beat may come late although nothing is wrong.
    """
    heart = _heart()
    if heart is not None:
        heart.beat(doing, slow)
    lines = _lines()
    if lines is not None:
        lines.beat(doing, slow)


@cache
def _heart() -> "_Heart | None":
    folder = os.environ.get(BEATS_FOLDER)
    return _Heart(Path(folder)) if folder else None


@cache
def _lines() -> "BeatLines | None":
    seconds = os.environ.get(BEAT_LINES)
    is_first = os.environ.get("LOCAL_RANK") == "0"
    if not seconds or not is_first:
        return None
    return BeatLines(float(seconds), slow_seconds=slow_seconds())


class _Heart:
    """Files of this process in the folder of beats."""

    def __init__(self, folder: Path) -> None:
        name = os.environ["LOCAL_RANK"]
        for number, kind in ((STACK_SIGNAL, "stack"), (THREADS_SIGNAL, "threads")):
            # faulthandler works without Python's lock and without a running thread. It keeps the file open.
            file = (folder / f"{name}.{kind}").open("w")
            faulthandler.register(number, file, all_threads=kind == "threads")
        self._record = os.open(folder / f"{name}.json", os.O_WRONLY | os.O_CREAT, 0o600)
        self._last: tuple[str, bool] | None = None

    def beat(self, doing: str, slow: bool) -> None:
        if (doing, slow) == self._last:
            os.utime(self._record)
            return
        self._last = (doing, slow)
        record = {"pid": os.getpid(), "rank": int(os.environ["RANK"]), "doing": doing, "slow": slow}
        os.pwrite(self._record, json.dumps(record).encode().ljust(RECORD_BYTES), 0)


class _Beat(NamedTuple):
    seconds: float
    """Time of the beat, by ``time.monotonic``."""
    doing: str
    slow: bool


class BeatLines:
    """Writer of lines to standard output, as long as the process advances. A hung process writes none.

    Args:
        every_seconds: shortest time between two lines.
        slow_seconds: longest time between two beats in a slow phase.
    """

    def __init__(self, every_seconds: float, *, slow_seconds: float = SLOW_SECONDS) -> None:
        self._every_seconds = every_seconds
        self._slow_seconds = slow_seconds
        self._last = _Beat(time.monotonic(), "starting", slow=True)
        self._last_line_seconds = 0.0
        threading.Thread(target=self._write_lines, name="beat lines", daemon=True).start()

    def beat(self, doing: str, slow: bool) -> None:
        """Report that the process advances; the arguments are those of ``heartbeat.beat``."""
        self._last = _Beat(time.monotonic(), doing, slow)

    def _write_lines(self) -> None:
        while True:
            last = self._last  # the main thread may replace it
            now = time.monotonic()
            has_advanced = last.seconds > self._last_line_seconds
            may_be_slow = last.slow and now - last.seconds < self._slow_seconds
            if has_advanced or may_be_slow:
                print(f"{LINE}{last.doing}", flush=True)
                self._last_line_seconds = now
            time.sleep(self._every_seconds)
