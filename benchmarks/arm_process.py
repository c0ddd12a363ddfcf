"""An arm of the training benchmark in a process of its own, which works only while it is granted a window.

A fresh interpreter for each arm keeps compiled code, allocator and thread pools apart. The parent grants
one window at a time; in between, the arm waits at the end of a step and uses no processor.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import sys
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

COUNTS = ("proteins", "residues", "attended_pairs", "slots")
"""What a batch holds: real residues (no CLS, EOS, padding), sum over its proteins of the squared length with
CLS and EOS, and positions that the model computes on."""
READY_TIMEOUT_SECONDS = 900
"""For imports, weights and data; a machine with other work to do takes minutes."""


class ArmFailedError(RuntimeError):
    """An arm ended with an exception."""

    def __init__(self, message: str, out_of_memory: bool) -> None:
        super().__init__(message)
        self.out_of_memory = out_of_memory


@dataclass(frozen=True)
class Window:
    """What an arm did in one window."""

    seconds: float
    """CPU time of the process on a CPU, wall time from idle device to idle device on CUDA."""
    wall_seconds: float
    steps: int
    proteins: int
    residues: int
    attended_pairs: int
    slots: int
    loss: float
    """Mean over the window's steps of the masked-token loss."""

    @property
    def residues_per_second(self) -> float:
        return self.residues / self.seconds

    @property
    def slots_per_second(self) -> float:
        return self.slots / self.seconds


@dataclass(frozen=True)
class Grant:
    """Leave to work until both are reached; ``weights_to`` then wants the weights in that file."""

    seconds: float = 0.0
    steps: int = 1
    weights_to: Path | None = None


class Gate:
    """The arm's side: it reports every step, and is held between windows."""

    def __init__(self, connection: Connection) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.weights: Callable[[], dict[str, Tensor]] = dict
        """How to get at the model's weights; the arm sets it."""
        self._connection = connection
        # Added up on the device: reading a count would make the host wait for every step.
        self._totals = torch.zeros(len(COUNTS) + 1, dtype=torch.float64, device=self.device)
        self._grant: Grant | None = None

    def enter(self) -> bool:
        """Wait for the first window; False if there is none."""
        self._connection.send("ready")
        return self._wait()

    def count(self, counts: Tensor, loss: Tensor) -> None:
        """Add a step's ``COUNTS`` (float64, on any device) and loss."""
        self._totals[:-1] += counts.to(self.device, non_blocking=True)
        self._totals[-1] += loss.detach().to(self.device, non_blocking=True)

    def step_done(self) -> bool:
        """End of a step. False: there is nothing more to do."""
        grant = self._grant
        if grant is None:  # closed before the first window
            return False
        self._steps += 1
        if self._steps < grant.steps or self._clock() - self._started < grant.seconds:
            return True
        self._synchronize()
        seconds, wall = self._clock() - self._started, time.perf_counter() - self._wall_started
        *counts, loss = self._totals.tolist()
        if grant.weights_to is not None:
            torch.save({name: tensor.cpu() for name, tensor in self.weights().items()}, grant.weights_to)
        named = {name: int(value) for name, value in zip(COUNTS, counts, strict=True)}
        self._connection.send(Window(seconds, wall, self._steps, **named, loss=loss / self._steps))
        return self._wait()

    def _wait(self) -> bool:
        try:
            self._grant = self._connection.recv()
        except EOFError:
            self._grant = None  # the parent has gone
        self._steps = 0
        self._totals.zero_()
        self._synchronize()
        self._started, self._wall_started = self._clock(), time.perf_counter()
        return self._grant is not None

    def _clock(self) -> float:
        return time.perf_counter() if self.device.type == "cuda" else time.process_time()

    def _synchronize(self) -> None:
        if self.device.type == "cuda":
            torch.cuda.synchronize()


class Arm(Protocol):
    """Something that trains; picklable, for it travels to the process that runs it."""

    def run(self, gate: Gate) -> None:
        """``gate.enter()``, then steps until the gate says that there is nothing more to do."""

    def settings(self) -> dict[str, Any]:
        """What to write into the results."""


class ArmProcess:
    """The parent's side of an arm."""

    def __init__(self, name: str, arm: Arm) -> None:
        self.name, self.arm = name, arm
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # A daemon may not have children, and data loader workers are children.
        self._process = context.Process(target=_serve, args=(arm, theirs), name=f"arm {name}")
        self._process.start()
        theirs.close()

    def await_ready(self) -> None:
        """Return once the arm is loaded and waits for its first window."""
        if not self._connection.poll(READY_TIMEOUT_SECONDS):
            raise ArmFailedError(
                f"arm {self.name} was not ready after {READY_TIMEOUT_SECONDS} s; see its messages above",
                False,
            )
        self._receive()

    def start(self, grant: Grant) -> None:
        self._connection.send(grant)

    def finish(self) -> Window:
        """Wait for the end of the window that was started."""
        window = self._receive()
        assert isinstance(window, Window)
        return window

    def window(self, grant: Grant) -> Window:
        self.start(grant)
        return self.finish()

    def close(self) -> None:
        """End the arm between two windows."""
        with contextlib.suppress(OSError):  # it may have ended already
            self._connection.send(None)
        self._process.join(timeout=30)
        if self._process.is_alive():
            self._process.kill()
            self._process.join()
        self._connection.close()

    def _receive(self) -> object:
        try:
            message = self._connection.recv()
        except EOFError:
            self._process.join()
            # 137 is SIGKILL, which is what the kernel sends when memory runs out.
            status = self._process.exitcode
            raise ArmFailedError(
                f"arm {self.name} ended without a word (status {status}); was it out of memory?", status == -9
            ) from None
        if isinstance(message, _Failure):
            raise ArmFailedError(f"arm {self.name}: {message.text}", message.out_of_memory)
        return message


@dataclass(frozen=True)
class _Failure:
    text: str
    out_of_memory: bool


def _serve(arm: Arm, connection: Connection) -> None:
    # The parent's standard output belongs to its table.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
    else:
        torch.set_num_threads(1)
    try:
        arm.run(Gate(connection))
    except BaseException as error:
        is_memory = isinstance(error, torch.cuda.OutOfMemoryError)
        if not is_memory:
            traceback.print_exc()
        connection.send(_Failure(f"{type(error).__name__}: {error}", is_memory))
        raise SystemExit(1) from None
