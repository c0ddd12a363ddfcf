"""Pieces of a state in memory: the tensors that one process writes, and their copies between nodes.

A piece is a folder with ``state.safetensors`` and ``checkpoint.json``, which has the CRC-32 of the former. A
piece is written as ``*.partial`` and renamed once it is complete.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import torch
import torch.distributed as dist
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.distributed.tensor import DTensor

from seqlm.training.checksums import (
    CHECKPOINT_FILE,
    DamagedError,
    crc32,
    read_document,
    seal,
)
from seqlm.training.whole_file import remove

STATE_FILE = "state.safetensors"
_FILES = (STATE_FILE, CHECKPOINT_FILE)
_PARTIAL = ".partial"
_CHUNK_BYTES = 32 << 20
"""Size of a message between two nodes."""


def local_tensors(state: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """Return this process's tensors of a state by name; of a sharded tensor, its shard.

    Entries that are not tensors are left out, as in checkpoints.
    """
    found: dict[str, Tensor] = {}
    for name, value in state.items():
        path = f"{prefix}/{name}" if prefix else name
        if isinstance(value, Mapping):
            found |= local_tensors(value, path)
        elif isinstance(value, DTensor):
            found[path] = value.to_local()
        elif isinstance(value, Tensor):
            found[path] = value
    return found


def write_piece(folder: Path, tensors: dict[str, Tensor], document: Mapping[str, Any]) -> None:
    """Write a piece.

    Args:
        folder: folder of the piece, which does not exist yet.
        tensors: tensors on the host.
        document: content of ``checkpoint.json`` without checksums.

    Raises:
        OSError: if it cannot be written, for lack of memory for instance.
    """
    partial = _new_partial(folder)
    try:
        save_file(tensors, partial / STATE_FILE)
    except Exception as error:  # of safetensors, which has its own class for errors of the system
        raise OSError(f"{folder} cannot be written: {error}") from error
    checksums = {STATE_FILE: crc32(partial / STATE_FILE)}
    (partial / CHECKPOINT_FILE).write_text(seal({**document, "checksums": checksums}))
    partial.rename(folder)


def check_piece(folder: Path) -> None:
    """Compare the tensors of a piece with their checksum.

    Raises:
        DamagedError: if they differ.
    """
    expected = read_document(folder)["checksums"]
    try:
        found = {STATE_FILE: crc32(folder / STATE_FILE)}
    except OSError as error:
        raise DamagedError(f"{folder} cannot be read: {error.strerror}") from error
    if found != expected:
        raise DamagedError(f"{folder / STATE_FILE} is damaged: its checksum is wrong")


def read_piece(folder: Path, targets: Mapping[str, Tensor]) -> set[str]:
    """Read a piece into the tensors of a state, and return the names that it has.

    Raises:
        DamagedError: if it has other tensors than the state.
    """
    with safe_open(folder / STATE_FILE, "pt") as stored:
        names = set(stored.keys())
        for name in names:
            value = stored.get_tensor(name)
            target = targets.get(name)
            if target is None or target.shape != value.shape or target.dtype != value.dtype:
                raise DamagedError(f"{folder} has another tensor {name} than the run")
            with torch.no_grad():
                target.copy_(value)
    return names


def _new_partial(folder: Path) -> Path:
    """Return the empty folder in which a piece is written."""
    partial = folder.with_name(folder.name + _PARTIAL)
    remove(partial)
    partial.mkdir(parents=True)
    return partial


@dataclass(frozen=True)
class Message:
    """Piece on its way between this process and another one."""

    folder: Path
    """Folder of the piece on this node."""
    rank: int
    """Other process."""


def transfer(sent: Message | None, received: Message | None, group: dist.ProcessGroup) -> None:
    """Send a piece to one process and receive another piece from one. The others do the counterparts.

    The group's connections have no authentication and no encryption.

    Args:
        sent: piece to send; None sends nothing.
        received: piece to receive; None receives nothing.
        group: CPU group of the processes.

    Raises:
        OSError: if a piece cannot be read or written.
        RuntimeError: if the other process is gone.
    """
    partial = None if received is None else _new_partial(received.folder)
    for name in _FILES:
        outgoing = None if sent is None else _Outgoing(sent.folder / name, sent.rank, group)
        incoming = None
        if received is not None and partial is not None:
            incoming = _Incoming(partial / name, received.rank, group)
        _exchange(outgoing, incoming)
    if received is not None and partial is not None:
        check_piece(partial)
        if received.folder.exists():
            shutil.rmtree(received.folder)
        partial.rename(received.folder)


def _exchange(outgoing: _Outgoing | None, incoming: _Incoming | None) -> None:
    """Send and receive one file each, in turns, so that neither process waits for the other's end."""
    sends = iter(()) if outgoing is None else outgoing.messages()
    receives = iter(()) if incoming is None else incoming.messages()
    is_sending = True
    is_receiving = True
    while is_sending or is_receiving:
        work = next(sends, None)
        is_sending = work is not None
        is_receiving = next(receives, None) is not None
        if work is not None:
            work.wait()


class _Outgoing:
    """File that is sent: its size, and then its content in chunks."""

    def __init__(self, path: Path, rank: int, group: dist.ProcessGroup) -> None:
        self._path = path
        self._rank = rank
        self._group = group

    def messages(self) -> Iterator[dist.Work]:
        """Start to send one message after the other."""
        with self._path.open("rb") as file:
            size = self._path.stat().st_size
            yield self._send(torch.tensor([size]))
            while chunk := file.read(_CHUNK_BYTES):
                yield self._send(torch.frombuffer(bytearray(chunk), dtype=torch.uint8))

    def _send(self, values: Tensor) -> dist.Work:
        work = dist.isend(values, self._rank, group=self._group)
        assert work is not None  # this process is in the group
        return work


class _Incoming:
    """File that is received."""

    def __init__(self, path: Path, rank: int, group: dist.ProcessGroup) -> None:
        self._path = path
        self._rank = rank
        self._group = group

    def messages(self) -> Iterator[int]:
        """Receive one message after the other; yield the number of bytes that are left."""
        left = torch.empty(1, dtype=torch.int64)
        dist.recv(left, self._rank, group=self._group)
        size = int(left)
        yield size
        with self._path.open("wb") as file:
            while size:
                size -= self._receive_chunk(file, min(size, _CHUNK_BYTES))
                yield size

    def _receive_chunk(self, file: IO[bytes], size: int) -> int:
        chunk = torch.empty(size, dtype=torch.uint8)
        dist.recv(chunk, self._rank, group=self._group)
        file.write(chunk.numpy().data)
        return size
