"""Signs of life of a training process, for whoever watches it from outside (``launch/hang_watch.py``).

Where ``BEATS_FOLDER`` names a folder of the node, a process has files there, by its local rank: ``<n>.json``
says who it is and what it does, and is touched whenever the process advances; ``<n>.stack`` takes the stack
of the thread that ``STACK_SIGNAL`` was sent to, ``<n>.threads`` those of all threads on ``THREADS_SIGNAL``.
Where ``BEAT_LINES`` is a number of seconds, the node's first process says in its log that it advances
(``beat_lines.py``). Without the variables nothing happens.
"""

from __future__ import annotations

import faulthandler
import json
import os
import signal
from functools import cache
from pathlib import Path

from .beat_lines import BeatLines, slow_seconds

BEATS_FOLDER = "ESM2_BEATS_FOLDER"
BEAT_LINES = "ESM2_BEAT_LINES_SECONDS"
STACK_SIGNAL: int = getattr(signal, "SIGRTMIN", signal.SIGUSR1)
"""A real-time signal, where there are such: neither torchrun, NCCL nor Slurm sends it."""
THREADS_SIGNAL = STACK_SIGNAL + 1
"""Separate, since faulthandler may crash on a thread that runs while its stack is read."""
RECORD_BYTES = 512
"""One block, written over in place: a full disk cannot fail a beat."""


def beat(doing: str, *, slow: bool = False) -> None:
    """Say that this process advances; called from its main thread.

    Costs a system call, as long as it is the same that the process does.

    Args:
        doing: what comes next, for people.
        slow: whether the next beat may be long in coming, though nothing is wrong.
    """
    if (heart := _heart()) is not None:
        heart.beat(doing, slow)
    if (lines := _lines()) is not None:
        lines.beat(doing, slow)


@cache
def _heart() -> _Heart | None:
    folder = os.environ.get(BEATS_FOLDER)
    return _Heart(Path(folder)) if folder else None


@cache
def _lines() -> BeatLines | None:
    seconds = os.environ.get(BEAT_LINES)
    if not seconds or os.environ.get("LOCAL_RANK") != "0":
        return None
    return BeatLines(float(seconds), slow_seconds=slow_seconds())


class _Heart:
    def __init__(self, folder: Path) -> None:
        name = os.environ["LOCAL_RANK"]
        # faulthandler needs neither Python's lock nor a thread that runs.
        self._stack = (folder / f"{name}.stack").open("w")
        self._threads = (folder / f"{name}.threads").open("w")
        faulthandler.register(STACK_SIGNAL, self._stack, all_threads=False)
        faulthandler.register(THREADS_SIGNAL, self._threads, all_threads=True)
        self._record = os.open(folder / f"{name}.json", os.O_WRONLY | os.O_CREAT, 0o600)
        self._last: tuple[str, bool] | None = None

    def beat(self, doing: str, slow: bool) -> None:
        if (doing, slow) == self._last:
            os.utime(self._record)
            return
        self._last = (doing, slow)
        who = {"pid": os.getpid(), "rank": int(os.environ["RANK"])}
        text = json.dumps({**who, "doing": doing, "slow": slow})
        os.pwrite(self._record, text.encode().ljust(RECORD_BYTES), 0)
