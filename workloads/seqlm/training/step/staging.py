"""Packs on their way from the host to the device, on CUDA as one copy from pinned memory."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from ..packing import HostPack

_ALIGNMENT_BYTES = 16
"""Alignment of each array in the copied buffer, so that it can be read as any type."""


@dataclass(frozen=True)
class StagedPack:
    """Arrays of a pack as tensors on the device on which packs are masked."""

    tensors: Mapping[str, Tensor]
    """Tensors by the names of the fields of the pack on the host."""
    buffer: Tensor | None = None
    """Memory of all tensors on CUDA, if it was filled on another stream."""
    copied: torch.cuda.Event | None = None
    """Event behind the copy on that stream."""

    def arrived(self) -> Mapping[str, Tensor]:
        """Return the tensors for operations of this thread's stream; the host does not wait."""
        if self.copied is not None and self.buffer is not None:
            stream = torch.cuda.current_stream(self.buffer.device)
            stream.wait_event(self.copied)
            # Otherwise the allocator could give the memory to the next copy too early.
            self.buffer.record_stream(stream)
        return self.tensors


AnyPack = HostPack | StagedPack
"""Pack before masking, on the host or on the device."""


class Stager:
    """Function that moves packs to a device. On CUDA it uses a stream of its own.

    Copies of a thread that reads packs then neither wait for the operations of the training nor delay them.

    Args:
        device: device on which packs are masked.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device) if device.type == "cuda" else None

    def __call__(self, host: HostPack) -> StagedPack:
        if self._stream is None:
            return staged(host, self._device)
        # The context also selects the device, which each thread has its own setting for.
        with torch.cuda.stream(self._stream):
            buffer, tensors = in_one_copy(vars(host), self._device, pins=True)
            copied = torch.cuda.Event()
            copied.record(self._stream)
        return StagedPack(tensors, buffer, copied)


def staged(pack: AnyPack, device: torch.device) -> StagedPack:
    """Return a pack on the device, and one that is staged already as it is."""
    if isinstance(pack, StagedPack):
        return pack
    if device.type != "cuda":
        return StagedPack({name: torch.from_numpy(array) for name, array in vars(pack).items()})
    _, tensors = in_one_copy(vars(pack), device, pins=True)
    return StagedPack(tensors)


def in_one_copy(
    arrays: Mapping[str, npt.NDArray[Any]], device: torch.device, *, pins: bool
) -> tuple[Tensor, dict[str, Tensor]]:
    """Copy arrays to a device as one buffer; return the buffer and views of it with their types and shapes.

    Args:
        arrays: arrays by name.
        device: device of the tensors.
        pins: whether the host's buffer is pinned. torch reuses its memory once the copy is done.
    """
    sizes = [-(-array.nbytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES for array in arrays.values()]
    on_host = torch.empty(sum(sizes), dtype=torch.uint8, pin_memory=pins)
    for array, room in zip(arrays.values(), on_host.split(sizes), strict=True):
        flat = np.ascontiguousarray(array).reshape(-1).view(np.uint8)
        room.numpy()[: array.nbytes] = flat
    buffer = on_host.to(device, non_blocking=True)
    tensors: dict[str, Tensor] = {}
    for (name, array), room in zip(arrays.items(), buffer.split(sizes), strict=True):
        dtype = torch.from_numpy(array[:0]).dtype
        num_bytes = math.prod(array.shape) * dtype.itemsize
        tensors[name] = room[:num_bytes].view(dtype).view(array.shape)
    return buffer, tensors
