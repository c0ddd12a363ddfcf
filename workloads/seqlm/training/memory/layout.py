"""Distribution of a run's state over the memory of its nodes."""

from dataclasses import asdict, dataclass
from typing import Any

STATES_KEPT = 2
"""Number of states in memory: the newest complete one, and the one that is being written."""


@dataclass(frozen=True)
class Layout:
    """Numbers of a run's processes. Process ``rank`` is on node ``rank // local_size``.

    Processes with the same ``rank % shard_size`` have the same tensors, a shard of the state. On each node
    they divide the shard into parts. A piece is such a part, and one process per node writes it.
    """

    world_size: int
    local_size: int
    """Number of processes on each node."""
    shard_size: int
    """Number of processes that together hold the state once; 1 if each of them holds all of it."""

    @property
    def problem(self) -> str:
        """Reason why the state cannot be distributed; empty if it can."""
        small, large = sorted((self.local_size, self.shard_size))
        if self.world_size % self.local_size or large % small:
            return (
                f"{self.world_size} processes, {self.local_size} per node, {self.shard_size} per copy of the "
                "model: expected one of the last two to divide the other"
            )
        return ""

    @property
    def num_nodes(self) -> int:
        return self.world_size // self.local_size

    @property
    def copies(self) -> bool:
        """Whether pieces are copied to the next node. Otherwise other nodes write the same pieces anyway."""
        return self.num_nodes > 1 and self.shard_size == self.world_size

    @property
    def memory_factor(self) -> int:
        """Bytes of memory that a node needs per byte of the pieces that its processes write.

        Besides the states in the job's folder, the processes hold the one that is being written.
        """
        copies = 2 if self.copies else 1
        return copies * STATES_KEPT + 1

    def node_bytes(self, state_bytes: int) -> int:
        """Return the memory that a node needs for states of this size."""
        piece_bytes = state_bytes / self.shard_size / self._num_parts
        return round(piece_bytes * self.local_size * self.memory_factor)

    @property
    def _num_parts(self) -> int:
        return max(1, self.local_size // self.shard_size)

    def part_of(self, rank: int, names: dict[str, int]) -> list[str]:
        """Return the tensors that a process writes, so that the parts of a shard have nearly equal sizes.

        Args:
            rank: rank of the process.
            names: sizes of the shard's tensors by name.
        """
        sizes = [0] * self._num_parts
        parts: list[list[str]] = [[] for _ in sizes]
        for name in sorted(names, key=lambda name: (-names[name], name)):
            smallest = sizes.index(min(sizes))
            sizes[smallest] += names[name]
            parts[smallest].append(name)
        return parts[self._index_of_part(rank)]

    def piece_of(self, rank: int) -> str:
        """Return the name of the piece that a process writes."""
        return self._name(rank % self.shard_size, self._index_of_part(rank))

    def pieces_read_by(self, rank: int) -> list[str]:
        """Return the names of the pieces of a process's shard."""
        return [self._name(rank % self.shard_size, part) for part in range(self._num_parts)]

    def pieces_read_on(self, node: int) -> list[str]:
        """Return the names of the pieces that the processes of a node read."""
        return [self.piece_of(rank) for rank in self.ranks_on(node)]

    def pieces_kept_on(self, node: int) -> list[str]:
        """Return the names of the pieces of a complete state on a node: what it reads, and its copies."""
        if not self.copies:
            return self.pieces_read_on(node)
        received = [self.piece_of(self.sender_to(rank)) for rank in self.ranks_on(node)]
        return [*self.pieces_read_on(node), *received]

    def ranks_on(self, node: int) -> range:
        """Return the ranks of the processes of a node."""
        return range(node * self.local_size, (node + 1) * self.local_size)

    def receiver_of(self, rank: int) -> int:
        """Return the process on the next node that receives a process's piece."""
        return (rank + self.local_size) % self.world_size

    def sender_to(self, rank: int) -> int:
        """Return the process on the node before whose piece a process receives."""
        return (rank - self.local_size) % self.world_size

    def record(self) -> dict[str, Any]:
        """Return the numbers, by which a state is recognized as one of the same layout."""
        return asdict(self)

    def _index_of_part(self, rank: int) -> int:
        return rank % self.local_size // self.shard_size

    def _name(self, shard: int, part: int) -> str:
        return f"shard-{shard:05d}-part-{part:03d}"
