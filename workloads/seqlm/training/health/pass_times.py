"""Time of the passes of packs on one process, without what it waits for others.

In synchronous training all steps take equally long, however slow a single process is. What differs is the
time of the operations that need no other process:

* Gradients that keep their places are reduced after the last pass, so whole passes are measured.
* DDP reduces gradients in the backward pass, so the forward pass is measured.
* FSDP2 gathers a layer's weights before its forward pass and waits for them, so the time from there to the
  end of the layer's forward pass is measured, for all layers together.

On CUDA, events mark the beginning and the end on the device. The host reads them later, once the device has
passed them, and waits for none.
"""

import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from statistics import median_low
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule

from seqlm.training.device_runtime import to_device
from seqlm.training.parallel import bare
from seqlm.training.processes import Processes
from seqlm.training.tracking.progress import WARM_STEPS

MAX_PACKS = 256
"""Number of newest packs whose time is kept between two logged steps."""
Part = Literal["pass", "forward", "layers"]
"""Part of a pass that is measured: all of it, the forward pass, or the forward passes of the layers."""


@dataclass(frozen=True)
class SharedTimes:
    """Times of all processes, the same on each of them."""

    at_seconds: float
    """Time of the first process, in seconds since its start."""
    seconds: tuple[float, ...]
    """Mean time of a pack on each process since the last logged step; 0 if none is known yet."""

    @property
    def are_known(self) -> bool:
        """Whether each process has measured a pack."""
        return all(seconds > 0 for seconds in self.seconds)

    @property
    def median(self) -> float:
        """Median of the times. Of an even number of processes, it is the lower one of the middle two."""
        return median_low(self.seconds)

    def logged(self) -> dict[str, float]:
        """Return the median and the longest time over it, by their names in the log."""
        if not self.are_known:
            return {}
        return {
            "pass_seconds": self.median,
            "slowest_pass_ratio": max(self.seconds) / self.median,
        }


class _Clock(ABC):
    """Clock of the device that computes the passes."""

    @abstractmethod
    def mark(self) -> Any:
        """Return a mark in the sequence of operations."""

    @abstractmethod
    def has_passed(self, mark: Any) -> bool:
        """Return whether the operations before a mark are complete, without waiting for them."""

    @abstractmethod
    def seconds(self, first: Any, last: Any) -> float:
        """Return the time between two marks that have passed."""


class _HostClock(_Clock):
    """Clock of a CPU, whose operations are complete when they return."""

    def mark(self) -> float:
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        return True

    def seconds(self, first: float, last: float) -> float:
        return last - first


class _CudaClock(_Clock):
    """Clock of a GPU: events in the current stream."""

    def mark(self) -> torch.cuda.Event:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        return event

    def has_passed(self, mark: torch.cuda.Event) -> bool:
        return bool(mark.query())

    def seconds(self, first: torch.cuda.Event, last: torch.cuda.Event) -> float:
        return float(first.elapsed_time(last)) / 1000


@dataclass(frozen=True)
class _Span:
    first: Any
    last: Any


class PassTimes:
    """Measurement of this process's passes, and their exchange with the figures of a step.

    A run of one process measures nothing, because there is nothing to compare. Neither do XLA devices, on
    which operations are recorded first and computed later.

    Args:
        model: model of the run, inside DDP or FSDP2 if the run uses them.
        here: this process.
        part: part of a pass that needs no other process.
    """

    def __init__(self, model: nn.Module, here: Processes, part: Part) -> None:
        self._here = here
        self._part = part
        self._clock: _Clock = _CudaClock() if here.device.type == "cuda" else _HostClock()
        self._started = time.monotonic()
        self._num_steps = 0
        self._is_on = False
        self._begun: Any = None
        """Mark at the beginning of the span under way."""
        self._spans: list[_Span] = []
        """Spans of the pack under way."""
        self._packs: deque[list[_Span]] = deque(maxlen=MAX_PACKS)
        """Spans of packs whose time has not been shared."""
        self.is_enabled = here.world_size > 1 and here.device.type != "xla"
        if self.is_enabled and part == "layers":
            assert isinstance(model, FSDPModule)
            for layer in bare(model).layers:
                # FSDP2's own hooks come before the first and after the second one. Like them, these are not
                # compiled.
                layer.register_forward_pre_hook(torch._dynamo.disable(self._begin_layer))
                layer.register_forward_hook(torch._dynamo.disable(self._end_layer), prepend=True)

    def next_step(self) -> None:
        """Count a step that begins. The first ones compile and are not measured."""
        self._num_steps += 1
        self._is_on = self.is_enabled and self._num_steps > WARM_STEPS

    def stop(self) -> None:
        """Measure nothing until the next step begins, such as an evaluation."""
        self._is_on = False

    @contextmanager
    def measuring(self, part: Part) -> Iterator[None]:
        """Measure the block if it is the part of a pass that is measured."""
        if not (self._is_on and part == self._part):
            yield
            return
        self._begin()
        yield
        self._end()

    def end_pack(self) -> None:
        """Count a pack whose passes have been launched."""
        if self._spans:
            self._packs.append(self._spans)
        self._spans = []

    def share(self) -> Tensor:
        """Return a tensor on the device whose sum over all processes has the times of all of them.

        It has an element per process and, as the last one, the time of the first process.
        """
        values = [0.0] * (self._here.world_size + 1)
        values[self._here.rank] = self._take()
        if self._here.is_first:
            values[-1] = time.monotonic() - self._started
        shared = torch.tensor(values, dtype=torch.float32)
        return to_device(shared, self._here.device).to(self._here.device)

    @staticmethod
    def of_sum(values: list[float]) -> SharedTimes:
        """Return the times of all processes from the sum of what they have shared."""
        *seconds, at_seconds = values
        return SharedTimes(at_seconds, tuple(seconds))

    def _take(self) -> float:
        """Return the mean time of the packs that the device has passed, and forget them; 0 without any."""
        num_packs = 0
        total = 0.0
        while self._packs and self._clock.has_passed(self._packs[0][-1].last):
            spans = self._packs.popleft()
            num_packs += 1
            total += sum(self._clock.seconds(span.first, span.last) for span in spans)
        return total / num_packs if num_packs else 0.0

    def _begin(self) -> None:
        self._begun = self._clock.mark()

    def _end(self) -> None:
        # A layer that is computed again may end halfway, once all that the backward pass needs is there.
        if self._begun is not None:
            self._spans.append(_Span(self._begun, self._clock.mark()))
        self._begun = None

    def _begin_layer(self, *_: object) -> None:
        if self._is_on:
            self._begin()

    def _end_layer(self, *_: object) -> None:
        if self._is_on:
            self._end()
