"""Processes of a node that a template forks, instead of new ones that import everything at each start."""

from __future__ import annotations

import ctypes
import json
import os
import signal
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from typing import Any, cast

from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

from seqlm.training.memory.template import TEMPLATE

LOCAL_RANK = "LOCAL_RANK"
"""Environment variable with the number of a process on its node. torchrun starts number 0 first."""
_PR_SET_CHILD_SUBREAPER = 36
"""Number of prctl's operation (linux/prctl.h). Orphans below this process become its children."""
_POLL_SECONDS = 0.05


class ForkedProcess:
    """Child process that the template has forked, with the methods of ``Popen`` that torchrun uses.

    Args:
        pid: id of the process.
    """

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """Return the exit status, or minus the number of a signal; None while the process runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for the end, and return the exit status.

        Raises:
            subprocess.TimeoutExpired: if the process still runs after ``timeout`` seconds.
        """
        deadline = None if timeout is None else time.monotonic() + timeout
        while (status := self.poll()) is None:
            if deadline is not None and time.monotonic() > deadline:
                raise subprocess.TimeoutExpired(f"process {self.pid}", timeout or 0.0)
            time.sleep(_POLL_SECONDS)
        return status

    def kill(self) -> None:
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)


Process = ForkedProcess | subprocess.Popen[bytes]


class Template:
    """Template process of this node. It is started with the first process, and killed at the end."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._socket: socket.socket | None = None

    def __enter__(self) -> Template:
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1)
        return self

    def __exit__(self, *_: object) -> None:
        self._end()
        ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 0)

    def fork(self, command: Sequence[str], environment: Mapping[str, str]) -> Process:
        """Return a new process with an environment.

        If the template ends instead, because of a mistake in the run for instance, it counts as the process,
        and as that of all higher local ranks of this start.

        Args:
            command: command of the process.
            environment: environment of the process.
        """
        if environment[LOCAL_RANK] == "0" and not self._is_running:
            self._end()
            self._start(command, environment)
        assert self._process is not None and self._socket is not None
        try:
            self._socket.sendall(json.dumps(dict(environment)).encode() + b"\n")
            with self._socket.makefile("rb") as answers:
                answer = answers.readline()
        except ConnectionError:
            answer = b""
        return ForkedProcess(int(answer)) if answer else self._process

    @property
    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    def _start(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._socket, there = socket.socketpair()
        self._process = subprocess.Popen(
            command,
            env={**environment, TEMPLATE: str(there.fileno())},
            pass_fds=[there.fileno()],
            start_new_session=True,
        )
        there.close()

    def _end(self) -> None:
        if self._process is not None and self._socket is not None:
            self._process.kill()
            self._process.wait()
            self._socket.close()


class ForkingHandler(SubprocessHandler):
    """Handler of torchrun for a process that the template forks.

    Args:
        template: template of this node.
        options: arguments of torch's class.
    """

    def __init__(self, template: Template, **options: Any) -> None:
        self._template = template
        super().__init__(**options)

    def _popen(self, args: tuple[str, ...], env: dict[str, str]) -> subprocess.Popen[bytes]:
        return cast(subprocess.Popen[bytes], self._template.fork(args, env))
