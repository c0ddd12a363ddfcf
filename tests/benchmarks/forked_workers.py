"""Workers of the acceptance run, forked from a server that has imported all: it takes 5 CPU seconds."""

from __future__ import annotations

import multiprocessing
import os
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any
from unittest import mock

from benchmarks import worker

REPOSITORY = Path(__file__).parents[2]
CONTEXT = multiprocessing.get_context("forkserver")
PRELOADED = ["benchmarks.trainers", "benchmarks.ours", __name__]
POLL_SECONDS = 0.02
_LOCK = threading.Lock()
"""For starts and polls, since the start of a process polls all others, and an end can be read only once."""


class ForkedWorker:
    """Process of ``python -m benchmarks.worker``, with all that ``WorkerProcess`` uses of ``Popen``."""

    def __init__(self, command: Sequence[str], pass_fds: Sequence[int], **_: Any) -> None:
        *python, descriptor, options = command
        assert python[-2:] == ["-m", "benchmarks.worker"] and list(pass_fds) == [int(descriptor)]
        given, stdin = CONTEXT.Pipe(duplex=False)
        stdout, said = CONTEXT.Pipe(duplex=False)
        answers = Connection(os.dup(pass_fds[0]), readable=False)
        self._process = CONTEXT.Process(
            target=_work, args=(given, said, answers, dict(os.environ), options), daemon=True
        )
        start_server()
        with given, said, answers, _LOCK:
            self._process.start()
        self._wait_for_its_group()
        with stdin, stdout:
            self.stdin = os.fdopen(os.dup(stdin.fileno()), "w")
            self.stdout = os.fdopen(os.dup(stdout.fileno()), errors="replace")

    def _wait_for_its_group(self) -> None:
        """Wait until the process can be ended by its group, as when ``Popen`` returns."""
        while self.poll() is None:
            with suppress(ProcessLookupError):  # it has ended, as the next poll finds
                if os.getpgid(self.pid) == self.pid:
                    return
            time.sleep(POLL_SECONDS)

    @property
    def pid(self) -> int:
        assert self._process.pid is not None
        return self._process.pid

    @property
    def returncode(self) -> int | None:
        return self.poll()

    def poll(self) -> int | None:
        with _LOCK:
            return self._process.exitcode

    def wait(self) -> None:
        while self.poll() is None:
            time.sleep(POLL_SECONDS)


def start_server() -> None:
    """Start the server that is forked, unless it runs; another test may have started it for its own needs."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    # Whatever folder the first test is in.
    with mock.patch.dict(os.environ, PYTHONPATH=f"{REPOSITORY}/workloads:{REPOSITORY}"):
        forkserver.ensure_running()


def _work(
    given: Connection,
    said: Connection,
    answers: Connection,
    environment: dict[str, str],
    options: str,
) -> None:
    os.setsid()
    os.environ.clear()
    os.environ.update(environment)
    for number in (1, 2):
        os.dup2(said.fileno(), number)
    sys.stdin = os.fdopen(os.dup(given.fileno()))
    worker.main([str(os.dup(answers.fileno())), options])
