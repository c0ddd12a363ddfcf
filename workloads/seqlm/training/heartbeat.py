"""Heartbeats of a training process, for observers outside it (``launch/hang_watch.py``).

Where ``BEATS_FOLDER`` names a folder of the node, a process has files there, by its local rank: ``<n>.json``
says who it is and what it does, and is touched whenever the process advances; ``<n>.stack`` takes the stack
of the thread that ``STACK_SIGNAL`` was sent to, ``<n>.threads`` those of all threads on ``THREADS_SIGNAL``.
Where ``BEAT_LINES`` is a number of seconds, the node's first process says in its log that it advances, for
HyperPod's agent on Kubernetes. Without the variables nothing happens.
"""

import faulthandler
import json
import os
import signal
import threading
import time
from functools import cache
from pathlib import Path

BEATS_FOLDER = "ESM2_BEATS_FOLDER"
BEAT_LINES = "ESM2_BEAT_LINES_SECONDS"
STACK_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR1)
"""A real-time signal, where there are such: neither torchrun, NCCL nor Slurm sends it."""
THREADS_SIGNAL = STACK_SIGNAL + 1
"""Separate, since faulthandler may crash on a thread that runs while its stack is read."""
RECORD_BYTES = 512
"""One block, written over in place: a full disk cannot fail a beat."""
STARTED = "ESM2_STARTED"
"""Environment variable: when the command that started the processes began, in seconds since 1970."""
LINE = "advances: "
"""Beginning of every line in the log."""
SLOW_SECONDS = 1800.0
"""Bound for what is slow without being hung: downloads, compilation, checkpoints."""
SLOW_VARIABLE = "ESM2_SLOW_SECONDS"
"""Environment variable: another bound, if compilation takes longer."""


def slow_seconds() -> float:
    """The bound that holds for this process."""
    return float(os.environ.get(SLOW_VARIABLE, SLOW_SECONDS))


def beat(doing: str, *, slow: bool = False) -> None:
    """Say that this process advances; called from its main thread.

    Costs a system call, as long as it is the same that the process does.

    Args:
        doing: what comes next, for people.
        slow: whether the next beat may be long in coming, though nothing is wrong.
    """
    for sign in (_heart(), _lines()):
        if sign is not None:
            sign.beat(doing, slow)


@cache
def _heart() -> "_Heart | None":
    folder = os.environ.get(BEATS_FOLDER)
    return _Heart(Path(folder)) if folder else None


@cache
def _lines() -> "BeatLines | None":
    seconds = os.environ.get(BEAT_LINES)
    is_first = os.environ.get("LOCAL_RANK") == "0"
    return BeatLines(float(seconds), slow_seconds=slow_seconds()) if seconds and is_first else None


class _Heart:
    def __init__(self, folder: Path) -> None:
        name = os.environ["LOCAL_RANK"]
        for number, kind in ((STACK_SIGNAL, "stack"), (THREADS_SIGNAL, "threads")):
            # faulthandler needs neither Python's lock nor a thread that runs. It keeps the file open.
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


class BeatLines:
    """Writes a line to standard output, at most every ``every_seconds``, as long as the process advances.

    If no line comes for long, the process has hung.
    """

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
