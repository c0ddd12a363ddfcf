"""Base of the copies of a run's metrics in other programs, each sent by a thread of its own.

A slow server never slows a step, and one that is down costs one warning. Metrics wait in memory and are sent
when it is back; ``metrics.jsonl`` has them in any case.
"""

import re
import sys
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Literal

from tqdm import tqdm

RunStatus = Literal["FINISHED", "FAILED", "KILLED"]
Entry = tuple[str, float, int, int]
"""Name, value, timestamp in ms, step."""

SEND_EVERY_SECONDS = 5.0
RETRY_AFTER_SECONDS = 60.0
CLOSE_TIMEOUT_SECONDS = 10.0
"""Time that the end of a run waits for slow servers; stopped jobs have 30 seconds (Slurm, Kubernetes)."""
MAX_WAITING_METRICS = 100_000
"""About 20 MB; of a longer outage the oldest are given up."""
MAX_METRICS_PER_BATCH = 1000
"""Limit of MLflow's REST interface, which its file store shares."""
MAX_MESSAGE_CHARS = 200


class Mirror(ABC):
    """Copy of one run; ``place`` names it in messages."""

    def __init__(self, run_dir: Path, place: str) -> None:
        self._run_dir, self._place = run_dir, place
        self._waiting: list[Entry] = []
        self._status: RunStatus | None = None
        self._warned = False
        self._opened = False
        self._condition = threading.Condition()
        self._thread = threading.Thread(target=self._work, name=place, daemon=True)

    @abstractmethod
    def _prepare(self) -> None:
        """Import packages, which takes seconds. ValueError for a place that cannot be used."""

    @abstractmethod
    def _open(self) -> None:
        """Open the run whose id is in the run folder, or else a new one."""

    @abstractmethod
    def _log(self, batch: Sequence[Entry]) -> None: ...

    @abstractmethod
    def _finish(self, status: RunStatus) -> None: ...

    def metrics(self, step: int, values: Mapping[str, float]) -> None:
        now_ms = time.time_ns() // 1_000_000
        with self._condition:
            self._waiting += [(name, value, now_ms, step) for name, value in values.items()]
            del self._waiting[:-MAX_WAITING_METRICS]

    def end(self, status: RunStatus) -> None:
        """Have the thread send the rest and end; follow it by ``wait``."""
        with self._condition:
            self._status, self._deadline = status, time.monotonic() + CLOSE_TIMEOUT_SECONDS
            self._condition.notify()

    def wait(self) -> None:
        self._thread.join(max(0.0, self._deadline - time.monotonic()))
        if self._thread.is_alive() or self._waiting:
            self._warn_once("has not taken every metric of this run")

    def _work(self) -> None:
        try:
            self._prepare()
        except ValueError as error:
            self._warn_once(str(error))
            return
        except ImportError as error:
            self._warn_once(
                f'is off: a package is missing ({error}); pip install "seqlm[tracking]" brings it'
            )
            return
        wait_seconds = 0.0
        while True:
            with self._condition:
                self._condition.wait_for(lambda: self._status is not None, wait_seconds)
                status = self._status
            try:
                self._send()
                if status is not None:
                    self._finish(status)
                if self._warned and not self._waiting:
                    self._say("is back and up to date")
                    self._warned = False
                wait_seconds = SEND_EVERY_SECONDS
            except Exception as error:  # of a client, its plugin or the network: none may end a run
                self._warn_once(f"does not take this run ({shortened(error)})")
                wait_seconds = RETRY_AFTER_SECONDS
            if status is not None:
                return

    def _send(self) -> None:
        if not self._opened:
            self._open()
            self._opened = True
        while self._waiting:
            batch = self._waiting[:MAX_METRICS_PER_BATCH]
            self._log(batch)
            with self._condition:
                # Identity, since an overflow may have dropped the head meanwhile.
                sent = {id(entry) for entry in batch}
                self._waiting = [entry for entry in self._waiting if id(entry) not in sent]

    def _warn_once(self, what: str) -> None:
        if not self._warned:
            self._warned = True
            self._say(f"{what}; metrics.jsonl in {self._run_dir} is complete")

    def _say(self, what: str) -> None:
        tqdm.write(f"{without_login(self._place)} {what}", file=sys.stderr)


def shortened(error: Exception) -> str:
    """Return an error in one line without passwords."""
    return f"{type(error).__name__}: {without_login(str(error).partition(chr(10))[0])[:MAX_MESSAGE_CHARS]}"


def without_login(text: str) -> str:
    """Return a text without user, password and query of its addresses; a query may be a signature."""
    without_query = re.sub(r"(\w://[^\s\"'?]*)\?[^\s\"']*", r"\1", text)
    return re.sub(r"//[^/\s\"']*@", "//", without_query)
