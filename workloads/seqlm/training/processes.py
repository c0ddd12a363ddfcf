"""Processes of a run. The module needs no model, so that checks of the network can use it."""

import contextlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor

from seqlm.training.data.locks import Lock, lock_when_free
from seqlm.training.data.open_files import open_files_problem

from .command_line import Stopped, StopSignal, end_with_launcher
from .device_runtime import DeviceRuntime, requested_runtime, runtime_of

Result = TypeVar("Result")


@dataclass(frozen=True)
class _Failure:
    """Error of the first process, as it is sent to the others."""

    text: str
    """Message of an error that is not one of the system."""
    number: int | None = None
    """Number of an error of the system."""
    file: str | None = None
    """File of an error of the system."""

    @classmethod
    def of(cls, error: OSError | ValueError) -> "_Failure":
        if isinstance(error, OSError):
            file = None if error.filename is None else os.fsdecode(error.filename)
            return cls(error.strerror or str(error), error.errno, file)
        return cls(str(error))

    def error(self) -> OSError | ValueError:
        """Return an error with the same message."""
        if self.number is None:
            return ValueError(self.text)
        return OSError(self.number, self.text, self.file)


@dataclass(frozen=True)
class Processes:
    """Rank, device and groups of this process, as torchrun's environment describes them."""

    rank: int
    world_size: int
    device: torch.device
    control: dist.ProcessGroup
    """CPU group for what the hosts exchange between steps, which makes no step wait for the device."""
    stop: StopSignal = field(default_factory=StopSignal)
    """Flag that signals set during training (``command_line.signals_to``)."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum_on_host(self, *values: float) -> list[float]:
        """Return the sum of each value over all processes."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.control)
        return [float(value) for value in total]

    def gather(self, mine: dict[Any, Any]) -> dict[Any, Any]:
        """Return the union of the mappings of all processes."""
        mappings: list[Any] = [None] * self.world_size
        dist.all_gather_object(mappings, mine, group=self.control)
        union: dict[Any, Any] = {}
        for mapping in mappings:
            union |= mapping
        return union

    def first_does(self, action: Callable[[], Result]) -> Result | None:
        """Run a file operation on the first process alone. Every process calls this.

        Returns:
            Result of the operation on the first process, None on the others.

        Raises:
            OSError: on every process, if the operation fails.
            ValueError: on every process, if the operation finds wrong input.
        """
        result: Result | None = None
        failure: OSError | ValueError | None = None
        if self.is_first:
            try:
                result = action()
            except (OSError, ValueError) as error:
                failure = error
        self.raise_from_first(failure)
        return result

    def raise_from_first(self, failure: OSError | ValueError | None) -> None:
        """Raise the failure of the first process on every process, each of which calls this."""
        sent: list[_Failure | None] = [None if failure is None else _Failure.of(failure)]
        dist.broadcast_object_list(sent, src=0, group=self.control)
        if failure is not None:
            raise failure
        if sent[0] is not None:
            raise sent[0].error()

    def from_first(self, value: Result) -> Result:
        """Return the value of the first process on every process, each of which calls this."""
        sent = [value]
        dist.broadcast_object_list(sent, src=0, group=self.control)
        return sent[0]

    def check_stop(self) -> None:
        """Check for a stop during long work between two steps. Every process calls this equally often.

        It is a sum over the hosts, so steps do not call it: their flags travel with their figures
        (``step/flags.py``).

        Raises:
            Stopped: on every process, if one of them got a signal to stop.
        """
        if self.sum_on_host(self.stop.received)[0]:
            raise Stopped

    @property
    def runtime(self) -> DeviceRuntime:
        return runtime_of(self.device)

    def add_up(self, values: Tensor) -> None:
        """Sum over all processes, in place, on the device of the values."""
        on_host = values.device.type == "cpu"
        dist.all_reduce(values, group=self.control if on_host else None)

    def to_host(self, values: Tensor) -> list[float]:
        """Return values of the device, after a wait for all processes that contribute to them."""
        return [float(value) for value in values.tolist()]


@contextlib.contextmanager
def processes(
    timeout: timedelta | None = None, *, compile_cache: Path | None = None
) -> Iterator[Processes]:
    """Join the process group that torchrun describes; without torchrun, a group of one.

    Tensors on CUDA use NCCL, all others gloo.

    Args:
        timeout: longest duration of a collective, after which the process ends; None is torch's default, 10
            minutes with NCCL and 30 with gloo.
        compile_cache: folder of this run for compiled graphs. With one, the device that PJRT_DEVICE names has
            precedence over CUDA.

    Raises:
        ValueError: if PJRT_DEVICE names a device that cannot be used, or not by several processes, or
            if the system allows too few open files for the connections between them.
    """
    end_with_launcher()
    runtime = requested_runtime(compile_cache)
    if "RANK" in os.environ:
        problem = open_files_problem(int(os.environ["WORLD_SIZE"]))
        if problem is not None:
            raise ValueError(problem)
        dist.init_process_group(runtime.backend, timeout=timeout, **runtime.group_options())
    else:
        store = dist.HashStore()  # type: ignore[attr-defined]
        dist.init_process_group(runtime.backend, store=store, rank=0, world_size=1)
    is_alone = dist.get_world_size() == 1
    try:
        control = dist.new_group(backend="gloo", timeout=timeout)
        device = runtime.connect(compile_cache, control)
        yield Processes(dist.get_rank(), dist.get_world_size(), device, control)
    except BaseException:
        # With other processes the group stays after an error: its end would wait for them.
        if is_alone:
            dist.destroy_process_group()
        raise
    dist.destroy_process_group()


@contextlib.contextmanager
def exclusive(target: Path, here: Processes, when_held: str) -> Iterator[None]:
    """Hold the lock of a file during the block, so that no other command writes the same run.

    Args:
        target: file to lock; its folder is created.
        here: this process; every process calls this.
        when_held: error message if another command holds the lock.

    Raises:
        ValueError: on every process, if another command holds the lock for longer than ``locks.PATIENCE``, or
            if the folder cannot be written.
    """

    def take() -> Lock:
        lock = lock_when_free(target)
        if lock is None:
            raise ValueError(when_held)
        return lock

    lock = here.first_does(take)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()
