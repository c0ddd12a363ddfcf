"""Contestant of a benchmark, which trains only while a window is granted.

In a comparison, each contestant is a fresh interpreter, so that compiled code, allocator and thread pools
stay separate. Between windows, it waits at the end of a step and uses no processor. On CUDA, it then gives
back its unused memory. If the device is too small for all contestants, their parameters and optimizer state
are on the host between windows.
"""

import contextlib
import multiprocessing
import os
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.case import Settings, is_out_of_memory, say

COUNTS = ("proteins", "residues", "attended_pairs", "slots")
"""Contents of a batch: real residues (no CLS, EOS, padding), sum over its proteins of the squared length with
CLS and EOS, and positions that the model computes on."""
READY_TIMEOUT_SECONDS = 900
"""Time limit for imports, weights and data. A machine with other work takes minutes."""


class ContestantFailedError(RuntimeError):
    """A contestant ended with an exception."""

    def __init__(self, message: str, out_of_memory: bool) -> None:
        super().__init__(message, out_of_memory)  # both, so that it can be sent to another process
        self.message = message
        self.out_of_memory = out_of_memory

    def __str__(self) -> str:
        return f"{'out of memory: ' * self.out_of_memory}{self.message}"


@dataclass(frozen=True)
class Window:
    """Work of a contestant in one window."""

    seconds: float
    """CPU time of the process on a CPU, wall time from idle device to idle device on CUDA."""
    steps: int
    proteins: int
    residues: int
    attended_pairs: int
    slots: int
    loss: float
    """Mean over the window's steps of the masked-token loss in nats."""
    peak_bytes: int = 0
    """Most memory in use: on CUDA allocated by torch in this window, elsewhere resident so far."""
    notes: dict[str, Any] = field(default_factory=dict)
    """Facts about the contestant at the end of the window, by name, such as its number of compiled graphs."""

    @property
    def residues_per_second(self) -> float:
        return self.residues / self.seconds

    @staticmethod
    def total(windows: Sequence["Window"]) -> "Window":
        """Return the sum of windows, with the loss of the last one."""
        names = ("seconds", "steps", *COUNTS)
        sums = {name: sum(getattr(window, name) for window in windows) for name in names}
        peak = max(window.peak_bytes for window in windows)
        return replace(windows[-1], **sums, peak_bytes=peak)


@dataclass(frozen=True)
class Grant:
    """Permission to work until both are reached, seconds and steps."""

    seconds: float = 0.0
    steps: int = 1
    unmeasured_steps: int = 0
    """Steps before the window begins. The first step of a stream waits for its data and allocates memory."""
    packs_per_step: int | None = None
    """Micro-batches of a step of our contestant; None for the number in its configuration."""
    weights_to: Path | None = None
    """File for the weights at the end of the window."""


REHEARSED = Grant(steps=1)
NextGrant = Callable[[Window | None], Grant | None]
"""Function of the last window (None at the start) that returns the next grant, or None at the end."""


def steady(settings: Settings) -> Grant:
    """Return the grant of a window after compilation, of one step if the figures are not used.

    On a CPU, nothing runs ahead of the first step, so that all steps are alike.
    """
    if settings.is_short:
        return REHEARSED
    return Grant(
        seconds=settings.window, unmeasured_steps=1 if settings.device.type == "cuda" else 0
    )


def synchronize(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def clock(device: torch.device) -> float:
    """Return wall time on CUDA, and CPU time of this process elsewhere, in seconds."""
    return time.perf_counter() if device.type == "cuda" else time.process_time()


class Gate:
    """Gate that a contestant passes at every step; between windows, the contestant waits in it."""

    def __init__(self, next_grant: NextGrant, *, parks: bool = False) -> None:
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.parks = parks
        """Whether the state leaves the device between windows."""
        self.packs_per_step: int | None = None
        self.weights: Callable[[], dict[str, Tensor]] = dict
        """Function that returns the model's weights. The contestant sets this and the next three."""
        self.state: Callable[[], Iterable[Tensor]] = tuple
        """Function that returns the tensors that leave the device between windows."""
        self.loss_sum: Callable[[], float] | None = None
        """Function that returns the sum of the losses of all steps; None if ``count`` gets the losses."""
        self.notes: Callable[[], dict[str, Any]] = dict
        """Function that returns the notes of a window."""
        self._next_grant = next_grant
        # The sums are on the device, because reading a count would make the host wait for every step.
        self._totals = torch.zeros(len(COUNTS) + 1, dtype=torch.float64, device=self.device)
        self._grant: Grant | None = None

    def enter(self) -> bool:
        """Wait for the first window, and return False if no window is granted."""
        return self._wait(None)

    def count(self, counts: Tensor, loss: Tensor | None = None) -> None:
        """Add the ``COUNTS`` of a step or micro-batch (float64, on any device), and its loss."""
        self._totals[:-1] += counts.to(self.device, non_blocking=True)
        if loss is not None:
            self._totals[-1] += loss.detach().to(self.device, non_blocking=True)

    def step_done(self) -> bool:
        """End a step, and return False if the training must end."""
        grant = self._grant
        if grant is None:  # closed before the first window
            return False
        if self._unmeasured_steps:
            self._unmeasured_steps -= 1
            if not self._unmeasured_steps:
                self._begin()
            return True
        self._steps += 1
        if self._steps < grant.steps or clock(self.device) - self._started < grant.seconds:
            return True
        window_loss = self.loss_sum() - self._losses_before if self.loss_sum else None
        synchronize(self.device)
        seconds = clock(self.device) - self._started
        *counts, counted_loss = self._totals.tolist()
        if window_loss is None:
            window_loss = counted_loss
        if grant.weights_to is not None:
            torch.save(
                {name: tensor.cpu() for name, tensor in self.weights().items()}, grant.weights_to
            )
        named = {name: int(value) for name, value in zip(COUNTS, counts, strict=True)}
        from seqlm.training.hardware import peak_memory_bytes  # imports transformers

        window = Window(
            seconds=seconds,
            steps=self._steps,
            **named,
            loss=window_loss / self._steps,
            peak_bytes=peak_memory_bytes(self.device),
            notes=self.notes(),
        )
        return self._wait(window)

    def _wait(self, window: Window | None) -> bool:
        if self.parks:
            bring_back = park(self.state())
            self._grant = self._next_grant(window)
            bring_back()
        else:
            if self.device.type == "cuda":
                torch.cuda.empty_cache()  # for the other contestants
            self._grant = self._next_grant(window)
        self.packs_per_step = self._grant.packs_per_step if self._grant else None
        self._unmeasured_steps = self._grant.unmeasured_steps if self._grant else 0
        self._begin()
        return self._grant is not None

    def _begin(self) -> None:
        """Begin to measure."""
        self._steps = 0
        self._totals.zero_()
        self._losses_before = self.loss_sum() if self.loss_sum else 0.0
        synchronize(self.device)
        if self.device.type == "cuda":
            torch.cuda.reset_peak_memory_stats()
        self._started = clock(self.device)


def training_state(model: nn.Module, optimizers: Iterable[Optimizer]) -> Iterator[Tensor]:
    """Yield parameters, buffers, optimizer state, and gradients that are kept between steps."""
    yield from model.parameters()
    yield from (one.grad for one in model.parameters() if one.grad is not None)
    yield from model.buffers()
    for optimizer in optimizers:
        for values in optimizer.state.values():
            yield from (value for value in values.values() if isinstance(value, Tensor))


def park(tensors: Iterable[Tensor]) -> Callable[[], None]:
    """Move the contents of tensors to the host and free their memory; return a function that undoes it.

    The tensors stay the same objects, because optimizers and compiled code refer to them.
    """
    # Several tensors may share one storage.
    storages: dict[int, torch.UntypedStorage] = {}
    for tensor in tensors:
        storage = tensor.untyped_storage()
        storages[storage.data_ptr()] = storage
    copies: list[tuple[torch.UntypedStorage, torch.UntypedStorage]] = []
    for storage in storages.values():
        copies.append((storage, torch.UntypedStorage(storage.nbytes()).copy_(storage)))
        storage.resize_(0)
    if torch.cuda.is_available():
        torch.cuda.empty_cache()

    def bring_back() -> None:
        for storage, copy in copies:
            storage.resize_(copy.nbytes())
            storage.copy_(copy)

    return bring_back


class Contestant(Protocol):
    """Training loop; picklable, because it is sent to the process that runs it."""

    def run(self, gate: Gate) -> None:
        """Call ``gate.enter()``, then train until ``gate.step_done()`` returns False."""


def windows_of(
    contestant: Contestant,
    grants: Iterable[Grant],
    measured: Callable[[list[Window]], None] | None = None,
) -> list[Window]:
    """Run a contestant in this process, through one window per grant.

    Args:
        contestant: training loop.
        grants: one grant per window.
        measured: function that gets the windows so far after each of them.
    """
    windows: list[Window] = []
    pending = iter(grants)

    def next_grant(window: Window | None) -> Grant | None:
        if window is not None:
            windows.append(window)
            if measured is not None:
                measured(windows)
        return next(pending, None)

    contestant.run(Gate(next_grant))
    return windows


class ContestantProcess:
    """Contestant in a process of its own, after its first window.

    Args:
        name: name in messages.
        contestant: training loop.
        warmup: grant of the first window, which compiles.
        parks: whether its state leaves the device between windows.
        device_memory: context of the first window, in which the contestant may use the device.

    Raises:
        ContestantFailedError: if it ends before the first window, or is not ready for it in time.
    """

    def __init__(
        self,
        name: str,
        contestant: Contestant,
        warmup: Grant,
        *,
        parks: bool = False,
        device_memory: AbstractContextManager[object] | None = None,
    ) -> None:
        self.name = name
        context = multiprocessing.get_context("spawn")
        self._connection, theirs = context.Pipe()
        # A daemon may not have children, and data loader workers are children.
        self._process = context.Process(
            target=_serve, args=(name, contestant, theirs, parks), name=f"contestant {name}"
        )
        began = time.monotonic()
        self._process.start()
        theirs.close()
        try:
            if not self._connection.poll(READY_TIMEOUT_SECONDS):
                raise ContestantFailedError(
                    f"{name} was not ready after {READY_TIMEOUT_SECONDS} s; see its messages above",
                    out_of_memory=False,
                )
            self._receive()  # it is loaded and waits
            loaded = time.monotonic()
            with device_memory or nullcontext():
                waited = time.monotonic()
                self.warmup = self.window(warmup)
            say(
                f"{name}: loaded in {loaded - began:.0f} s, {waited - loaded:.0f} s without memory, warm "
                f"in {time.monotonic() - waited:.0f} s"
            )
        except BaseException:
            self.close()
            raise

    def window(self, grant: Grant) -> Window:
        with contextlib.suppress(BrokenPipeError):  # its last message has the reason
            self._connection.send(grant)
        window = self._receive()
        assert isinstance(window, Window)
        return window

    def close(self) -> None:
        """End the contestant between two windows."""
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
            # The kernel sends SIGKILL when memory runs out.
            status = self._process.exitcode
            raise ContestantFailedError(
                f"{self.name} ended without a message (status {status}); was it out of memory?",
                out_of_memory=status == -signal.SIGKILL,
            ) from None
        if isinstance(message, ContestantFailedError):
            raise message
        return message


def use_one_device() -> torch.device:
    """Restrict this process to one GPU, or to one thread of a CPU, and return the device."""
    if torch.cuda.is_available():
        torch.cuda.set_device(0)
        return torch.device("cuda", 0)
    torch.set_num_threads(1)
    return torch.device("cpu")


def _serve(name: str, contestant: Contestant, connection: Connection, parks: bool) -> None:
    # Standard output belongs to the parent.
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    use_one_device()

    def next_grant(window: Window | None) -> Grant | None:
        connection.send(window)
        try:
            grant: Grant | None = connection.recv()
        except EOFError:
            return None  # the parent has ended
        return grant

    try:
        contestant.run(Gate(next_grant, parks=parks))
    except BaseException as error:
        out_of_memory = is_out_of_memory(error)
        if not out_of_memory:
            traceback.print_exc()
        connection.send(
            ContestantFailedError(f"{name}: {type(error).__name__}: {error}", out_of_memory)
        )
        raise SystemExit(1) from None
