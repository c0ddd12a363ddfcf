"""States of a run in the memory of its nodes, from which a start of the same job continues.

They are no checkpoints: they are lost with the job's memory, and nothing outside the job reads them. A start
with the same number of nodes and processes uses the newest one that is complete on all nodes together.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any, Self

import torch.distributed as dist
from torch import Tensor

from seqlm.training.checksums import DamagedError, read_document
from seqlm.training.processes import Processes

from .available import available_bytes
from .interval import Interval
from .job_folder import STEP_PATTERN
from .kept_states import KeptStates
from .layout import Layout
from .pieces import STATE_FILE, Message, check_piece, read_piece, transfer, write_piece

TRANSFER_TIMEOUT = timedelta(minutes=5)
"""Longest wait for a message of another node."""


@dataclass(frozen=True)
class _Stored:
    """Pieces of one state on one node."""

    sizes: Mapping[str, int]
    """Bytes of the pieces by name."""


@dataclass(frozen=True)
class _Copies:
    """Pieces of a state that a node receives."""

    node: int
    sources: Mapping[str, int]
    """Nodes that have the pieces, by the pieces' names."""
    num_bytes: int

    @classmethod
    def lacking(
        cls, node: int, names: Sequence[str], stored: Mapping[int, Mapping[str, int]]
    ) -> Self:
        """Return the copies of what a node lacks.

        Args:
            node: number of the node.
            names: pieces that it needs; each of them is on some node.
            stored: sizes of the pieces in bytes, by node and name.
        """
        sources: dict[str, int] = {}
        num_bytes = 0
        for name in names:
            if name not in stored[node]:
                sources[name] = next(other for other, sizes in stored.items() if name in sizes)
                num_bytes += stored[sources[name]][name]
        return cls(node, sources, num_bytes)


class MemoryStates(KeptStates):
    """States in the memory of the run's own nodes. A state has a copy on another node.

    Args:
        folder: folder of the job in this node's memory.
        here: this process.
        layout: distribution of the state.
        interval: steps between two states.
        own: entries of ``checkpoint.json`` that identify the run; a state with others is not used.
    """

    def __init__(
        self,
        folder: Path,
        here: Processes,
        layout: Layout,
        interval: Interval,
        own: Mapping[str, Any],
    ) -> None:
        super().__init__(here, layout, layout.local_size, interval, own)
        self._folder = folder
        self._group = dist.new_group(backend="gloo", timeout=TRANSFER_TIMEOUT)

    def newest(self) -> int | None:
        """Return the step of the newest state that is complete on all nodes together; None without one."""
        stored = self._stored()
        complete = [step for step in self._steps(stored) if self._is_complete(stored, step)]
        return max(complete, default=None)

    @property
    def _is_leader(self) -> bool:
        """Whether this is the first process of its node."""
        return self._here.rank % self._layout.local_size == 0

    @property
    def _memory_factor(self) -> int:
        return self._layout.memory_factor

    def _available_bytes(self) -> int:
        return available_bytes(self._folder)

    def _write(self, step: int, document: Mapping[str, Any]) -> None:
        """Write this process's piece, and send it to the next node if no other node writes it."""
        rank = self._here.rank
        layout = self._layout
        folder = self._path(step, layout.piece_of(rank))
        write_piece(folder, self._staged, document)
        if layout.copies:
            sender = layout.sender_to(rank)
            received = self._path(step, layout.piece_of(sender))
            transfer(
                Message(folder, layout.receiver_of(rank)),
                Message(received, sender),
                self._group,
            )

    def _bring(self, step: int) -> str:
        """Copy the pieces that a node lacks from another one."""
        stored = self._stored()
        sizes = {node: stored[node].get(step, _Stored({})).sizes for node in stored}
        available = self._here.gather(
            {self._node: available_bytes(self._folder)} if self._is_leader else {}
        )
        nodes = range(self._layout.num_nodes)
        read = [_Copies.lacking(node, self._layout.pieces_read_on(node), sizes) for node in nodes]
        for copies in read:
            if copies.num_bytes > available[copies.node]:
                raise DamagedError(
                    f"node {copies.node} has {available[copies.node] / 1e9:.2f} GB of memory for a state "
                    f"that takes {copies.num_bytes / 1e9:.2f} GB"
                )
        # A fault may have come before the copies were made, and a new node has none.
        kept = [_Copies.lacking(node, self._layout.pieces_kept_on(node), sizes) for node in nodes]
        is_safe = all(copies.num_bytes <= available[copies.node] for copies in kept)
        self._fetch(step, kept if is_safe else read)
        check_piece(self._path(step, self._layout.piece_of(self._here.rank)))
        num_read = sum(len(copies.sources) for copies in read)
        num_kept = sum(len(copies.sources) for copies in kept)
        source = f"; pieces copied from other nodes: {num_read}" if num_read else ""
        if is_safe and num_kept > num_read:
            source += f"; copies made again: {num_kept - num_read}"
        return source

    def _read(self, step: int, tensors: Mapping[str, Tensor]) -> tuple[set[str], dict[str, Any]]:
        names: set[str] = set()
        for piece in self._layout.pieces_read_by(self._here.rank):
            names |= read_piece(self._path(step, piece), tensors)
        document = read_document(self._path(step, self._layout.piece_of(self._here.rank)))
        return names, document

    def _outdated(self) -> list[Path]:
        assert self._written is not None
        newest = self._path(self._written)
        return [path for path in self._folders() if path != newest]

    def _delete_all(self) -> None:
        self._delete(self._folders())

    def _folders(self) -> list[Path]:
        """Return the folders of all states on this node, which its first process deletes; others get none."""
        return list(self._folder.glob(STEP_PATTERN)) if self._is_leader else []

    def _stored(self) -> dict[int, dict[int, _Stored]]:
        """Return the pieces that can be used, by node and step."""
        mine: dict[int, _Stored] = {}
        if self._is_leader:
            for path in self._folder.glob(STEP_PATTERN):
                sizes = {piece.name: self._size_of(piece) for piece in path.glob("shard-*")}
                usable = {name: size for name, size in sizes.items() if size is not None}
                mine[int(path.name.removeprefix("step-"))] = _Stored(usable)
        return self._here.gather({self._node: mine} if self._is_leader else {})

    def _size_of(self, piece: Path) -> int | None:
        """Return the bytes of a complete piece of this run and layout; None for anything else."""
        if "." in piece.name:
            return None  # it was being written
        try:
            document = read_document(piece)
            size = (piece / STATE_FILE).stat().st_size
        except (DamagedError, OSError):
            return None
        is_own = all(document.get(name) == value for name, value in self._own.items())
        return size if is_own else None

    def _steps(self, stored: Mapping[int, Mapping[int, _Stored]]) -> set[int]:
        return {step for of_node in stored.values() for step in of_node}

    def _is_complete(self, stored: Mapping[int, Mapping[int, _Stored]], step: int) -> bool:
        found = {
            name for of_node in stored.values() if step in of_node for name in of_node[step].sizes
        }
        return all(self._layout.piece_of(rank) in found for rank in range(self._layout.world_size))

    def _fetch(self, step: int, copies_of_nodes: Sequence[_Copies]) -> None:
        """Copy pieces between nodes.

        Raises:
            OSError: if a piece cannot be read or written.
            RuntimeError: if another process is gone.
        """
        count = 0
        for copies in copies_of_nodes:
            for name, other in copies.sources.items():
                sender = self._layout.ranks_on(other)[count % self._layout.local_size]
                receiver = self._layout.ranks_on(copies.node)[count % self._layout.local_size]
                count += 1
                path = self._path(step, name)
                if self._here.rank == sender:
                    transfer(Message(path, receiver), None, self._group)
                elif self._here.rank == receiver:
                    transfer(None, Message(path, sender), self._group)
        # The processes of a node read what others of them have received.
        self._here.sum_on_host(0.0)

    def _path(self, step: int, piece: str = "") -> Path:
        return self._folder / f"step-{step:08d}" / piece
