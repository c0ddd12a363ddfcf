"""Worker of the acceptance run (``benchmarks/worker.py``) as its parent sees it. Imports no torch."""

import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from benchmarks.case import ignore

ERROR_LINES = 15
"""Last lines of output that an error repeats."""
POLL_SECONDS = 0.2
"""Interval at which the worker's end is noticed while a child of it holds its pipe open."""


class WorkerFailedError(RuntimeError):
    """A worker ended, or did not answer in time, and was ended."""

    def __init__(self, message: str, *, is_late: bool) -> None:
        super().__init__(message)
        self.is_late = is_late
        """Whether it did not answer in time."""


class WorkerProcess:
    """Worker in a process group of its own.

    Args:
        options: options of the acceptance run, as JSON values.
    """

    def __init__(self, options: dict[str, Any]) -> None:
        reading, writing = os.pipe()
        self._process = subprocess.Popen(
            [
                sys.executable,
                "-u",
                "-m",
                "benchmarks.worker",
                str(writing),
                json.dumps(options),
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            text=True,
            errors="replace",
            start_new_session=True,
        )
        os.close(writing)
        self._said: deque[str] = deque(maxlen=ERROR_LINES)
        self._answers: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._echo, daemon=True),
            threading.Thread(target=self._read, args=(reading,), daemon=True),
        ]
        for thread in self._threads:
            thread.start()

    def ask(
        self,
        request: dict[str, Any],
        limit: float,
        partial: Callable[[dict[str, Any]], None] = ignore,
    ) -> dict[str, Any]:
        """Send a request, and return the figures of the answer.

        Args:
            request: request of ``benchmarks/worker.py``.
            limit: time limit in seconds. Then the worker is ended.
            partial: function that gets the figures measured so far, whenever the worker sends them.

        Raises:
            WorkerFailedError: if the worker ends, or passes the limit.
        """
        deadline = time.monotonic() + limit
        self._said.clear()
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # its end is reported below
            self._process.stdin.write(json.dumps(request) + "\n")
            self._process.stdin.flush()
        while True:
            has_ended = self._process.poll() is not None
            if has_ended:
                self.close()  # so that all that it has sent is read
            try:
                answer = self._answers.get(timeout=0 if has_ended else POLL_SECONDS)
            except queue.Empty:
                if has_ended:
                    raise self._failure(_ending(self._process.returncode)) from None
                if time.monotonic() > deadline:
                    self.close()
                    message = f"still running after {limit:.0f} s and ended"
                    raise self._failure(message, is_late=True) from None
                continue
            if answer["kind"] == "done":
                return dict(answer["figures"])
            partial(answer["figures"])

    def close(self) -> None:
        """End the worker and all that it has started, such as contestants and loaders."""
        with suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)
        self._process.wait()
        for thread in self._threads:
            thread.join(5)

    def _failure(self, problem: str, *, is_late: bool = False) -> WorkerFailedError:
        return WorkerFailedError("\n".join([problem, *self._said]), is_late=is_late)

    def _echo(self) -> None:
        assert self._process.stdout is not None
        for text in self._process.stdout:
            self._said.append(text.rstrip())
            print(f"    {text.rstrip()}", file=sys.stderr, flush=True)

    def _read(self, descriptor: int) -> None:
        with os.fdopen(descriptor) as answers:
            for text in answers:
                with suppress(
                    ValueError
                ):  # the last line of a worker that was ended may be cut off
                    self._answers.put(json.loads(text))


def _ending(status: int) -> str:
    if status < 0:
        return f"ended with signal {signal.Signals(-status).name}"
    return f"ended with status {status}"
