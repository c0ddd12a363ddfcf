"""Passes of micro-batches as one recording of their operations, which is replayed on the same memory.

A CUDA graph launches all operations of a forward and backward pass at once. On a host that launches them one
by one, this takes longer than the device computes a pass of a small model.
"""

import dataclasses
import gc
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")

_WARM_UP_PASSES = 2
"""Passes before the recording: the first one compiles layers, and libraries allocate their memory."""


class Recording(ABC):
    """Operations that are launched again at each replay, on the memory that they were recorded with."""

    @abstractmethod
    def replay(self) -> Tensor:
        """Launch the operations; return their result, which the next replay overwrites."""


class CudaRecording(Recording):
    """CUDA graph of a function.

    Args:
        function: function without arguments that launches operations alone: it reads nothing from the device,
            and uses the same memory in each call. It is called several times.
    """

    def __init__(self, function: Callable[[], Tensor]) -> None:
        current = torch.cuda.current_stream()
        beside = torch.cuda.Stream()
        beside.wait_stream(current)
        with torch.cuda.stream(beside):
            for _ in range(_WARM_UP_PASSES):
                function()
        current.wait_stream(beside)
        # A pass that is still referenced would have nodes that add gradients up on another stream.
        gc.collect()
        self._graph = torch.cuda.CUDAGraph()
        # Other threads may allocate memory meanwhile, as the one that reads packs does.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
            self._result = function()
        # The passes before had their memory outside of the graph's, and never will again.
        torch.cuda.reset_peak_memory_stats()

    def replay(self) -> Tensor:
        self._graph.replay()
        return self._result


class RecordedPass:
    """Pass of a micro-batch by a recording, with buffers that each pack is copied into.

    Args:
        launch: function that launches the passes of a pack with a factor on the gradient, and returns the sum
            of its losses without a gradient.
        record: function that records operations.
        pack: dataclass of tensors whose shapes are those of all packs.
        factor: () tensor on the device.
    """

    def __init__(
        self,
        launch: Callable[[Any, Tensor], Tensor],
        record: Callable[[Callable[[], Tensor]], Recording],
        pack: Any,
        factor: Tensor,
    ) -> None:
        self._pack = _copy(pack)
        self._factor = factor.clone()
        self._recording = record(lambda: launch(self._pack, self._factor))

    def __call__(self, pack: Any, factor: Tensor) -> Tensor:
        """Launch the passes of a pack; return the sum of its losses, which the next call overwrites.

        Raises:
            ValueError: if the pack has another shape than the one of the recording.
        """
        buffers = [*_tensors(self._pack), self._factor]
        values = [*_tensors(pack), factor]
        shapes = [buffer.shape for buffer in buffers]
        if [value.shape for value in values] != shapes or _numbers(pack) != _numbers(self._pack):
            raise ValueError(
                f"pack of the shapes {[tuple(value.shape) for value in values]}; a recorded pass needs "
                f"{[tuple(shape) for shape in shapes]}"
            )
        torch._foreach_copy_(buffers, values)
        return self._recording.replay()


def _copy(pack: T) -> T:
    """Return a dataclass with copies of all tensors in it, also of those in dataclasses within it."""
    copies: dict[str, Any] = {}
    for field in dataclasses.fields(pack):  # type: ignore[arg-type]  # a dataclass, whatever T is
        value = getattr(pack, field.name)
        if isinstance(value, Tensor):
            copies[field.name] = value.clone()
        elif dataclasses.is_dataclass(value):
            copies[field.name] = _copy(value)
    return dataclasses.replace(pack, **copies)  # type: ignore[type-var]  # likewise


def _tensors(pack: Any) -> Iterator[Tensor]:
    """Yield all tensors of a dataclass, and of dataclasses within it, in the order of the fields."""
    for field in dataclasses.fields(pack):
        value = getattr(pack, field.name)
        if isinstance(value, Tensor):
            yield value
        elif dataclasses.is_dataclass(value):
            yield from _tensors(value)


def _numbers(pack: Any) -> list[Any]:
    """Return everything in a dataclass, and in dataclasses within it, that is no tensor."""
    found: list[Any] = []
    for field in dataclasses.fields(pack):
        value = getattr(pack, field.name)
        if dataclasses.is_dataclass(value):
            found += _numbers(value)
        elif not isinstance(value, Tensor):
            found.append(value)
    return found
