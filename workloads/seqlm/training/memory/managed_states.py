"""States of a run in HyperPod's managed tier, which outlives all pods of the job.

Each process writes a part of the state, so that all processes together write it once. A piece is the
safetensors of its tensors with ``checkpoint.json`` in their metadata, and a CRC-32 at its end.
"""

import json
import struct
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import safetensors
import torch
from safetensors.torch import load, save
from torch import Tensor

from seqlm.training.checksums import DamagedError, crc32_of
from seqlm.training.processes import Processes

from .available import available_memory
from .interval import Interval
from .kept_states import KeptStates
from .layout import Layout
from .managed_tier import ManagedTier

_DOCUMENT = "document"
"""Entry of the metadata with the content of ``checkpoint.json``."""
_CHECKSUM = struct.Struct("<I")
_HEADER_SIZE = struct.Struct("<Q")
"""Length of the header, with which safetensors begin."""


def piece_bytes(tensors: dict[str, Tensor], document: Mapping[str, Any]) -> bytes:
    """Return a piece.

    Args:
        tensors: tensors on the host.
        document: content of ``checkpoint.json``.
    """
    content = save(tensors, metadata={_DOCUMENT: json.dumps(document)})
    return content + _CHECKSUM.pack(crc32_of(content))


def content_of(piece: bytes) -> memoryview:
    """Return the safetensors of a piece.

    Raises:
        DamagedError: if the checksum is wrong.
    """
    whole = memoryview(piece)
    content = whole[: -_CHECKSUM.size]
    end = whole[-_CHECKSUM.size :]
    if len(end) < _CHECKSUM.size or _CHECKSUM.unpack(end)[0] != crc32_of(content):
        raise DamagedError("a piece in HyperPod's managed memory is damaged: its checksum is wrong")
    return content


def document_of(content: memoryview) -> dict[str, Any]:
    """Return the ``checkpoint.json`` of a piece.

    Raises:
        DamagedError: if it is missing or no JSON.
    """
    try:
        (size,) = _HEADER_SIZE.unpack(content[: _HEADER_SIZE.size])
        header = json.loads(bytes(content[_HEADER_SIZE.size : _HEADER_SIZE.size + size]))
        return dict(json.loads(header["__metadata__"][_DOCUMENT]))
    except (KeyError, TypeError, ValueError, struct.error) as error:
        raise DamagedError(
            f"a piece in HyperPod's managed memory cannot be read: {error}"
        ) from error


class ManagedStates(KeptStates):
    """States in the managed tier.

    Args:
        tier: pieces of the job.
        here: this process.
        layout: distribution of the state, with all processes as those of one node.
        local_size: number of processes on each node.
        interval: steps between two states.
        own: entries of ``checkpoint.json`` that identify the run; a state with others is not used.
    """

    def __init__(
        self,
        tier: ManagedTier,
        here: Processes,
        layout: Layout,
        local_size: int,
        interval: Interval,
        own: Mapping[str, Any],
    ) -> None:
        super().__init__(here, layout, local_size, interval, own)
        self._tier = tier
        self._ranks = {layout.piece_of(rank): rank for rank in range(here.world_size)}

    def newest(self) -> int | None:
        """Return the step of the newest state that is complete; None without one.

        Each process verifies the piece that it has written.
        """
        for step in self._steps():
            found = self._here.gather({self._here.rank: self._is_usable(step)})
            if all(found.values()):
                return step
        return None

    def _steps(self) -> list[int]:
        """Return the steps of the states in the tier, newest first, the same on every process."""
        steps = self._tier.steps() if self._here.is_first else []
        return sorted(self._here.from_first(steps), reverse=True)

    def _is_usable(self, step: int) -> bool:
        try:
            self._piece(step, self._here.rank)
        except (DamagedError, OSError):
            return False
        return True

    def _piece(self, step: int, rank: int) -> memoryview:
        """Return the safetensors of a process's piece of this run.

        Raises:
            DamagedError: if it is missing, damaged, or of another run.
            OSError: if the service does not send it.
        """
        piece = self._tier.get(step, rank)
        if piece is None:
            raise DamagedError(
                f"the state in memory of step {step} lacks the piece of process {rank}"
            )
        content = content_of(piece)
        document = document_of(content)
        if any(document.get(name) != value for name, value in self._own.items()):
            raise DamagedError(f"the state in memory of step {step} is of another run")
        return content

    @property
    def _memory_factor(self) -> int:
        """Return the bytes beside the tier's own memory: what is staged, and the piece that is sent."""
        return 2

    def _available_bytes(self) -> int:
        return available_memory()

    def _write(self, step: int, document: Mapping[str, Any]) -> None:
        self._tier.put(step, piece_bytes(self._staged, document))

    def _bring(self, step: int) -> str:
        """Return where the state is. Pieces are read one by one, so that they need little memory."""
        return " in HyperPod's managed tier"

    def _read(self, step: int, tensors: Mapping[str, Tensor]) -> tuple[set[str], dict[str, Any]]:
        names: set[str] = set()
        document: dict[str, Any] = {}
        for name in self._layout.pieces_read_by(self._here.rank):
            content = self._piece(step, self._ranks[name])
            document = document_of(content)
            names |= _copy(content, tensors)
        return names, document

    def _outdated(self) -> list[Path]:
        """Return none: the service keeps the newest states of a job, and drops older ones."""
        return []

    def _delete_all(self) -> None:
        for step in self._steps():
            # The service may have dropped it, or be gone.
            with suppress(OSError):
                self._tier.delete(step)


def _copy(content: memoryview, tensors: Mapping[str, Tensor]) -> set[str]:
    """Copy the tensors of a piece into those of a state; return their names.

    Raises:
        DamagedError: if the state has others.
    """
    try:
        found = load(bytes(content))
    except safetensors.SafetensorError as error:
        raise DamagedError(
            f"a piece in HyperPod's managed memory cannot be read: {error}"
        ) from error
    for name, value in found.items():
        target = tensors.get(name)
        if target is None or target.shape != value.shape or target.dtype != value.dtype:
            raise DamagedError(
                f"a piece in HyperPod's managed memory has another tensor {name} than the run"
            )
        with torch.no_grad():
            target.copy_(value)
    return set(found)
