"""Division of memory that keeps all processes together under 1 GiB for any input."""

import os
from dataclasses import dataclass

MIB = 1 << 20
MAX_WORKERS = 8
"""One decompressing reader feeds about four parsing workers; more would only shrink everyone's memory."""


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory. Shards and batches shape the result: the same for all."""

    block_bytes: int
    """FASTA text parsed at a time. A worker needs about five times that, the reader holds one per worker."""
    piece_bytes: int
    """Shuffled records gathered at a time. A worker needs about three times as much."""
    block_records: int = 100_000
    """Records parsed at a time; a Python object per id and protein costs about 100 bytes."""
    record_bytes: int = 32 * MIB
    """Longest record accepted."""
    shard_bytes: int = 64 * MIB
    """Records of one shard, over all splits."""
    batch_tokens: int = 4 * MIB
    """An Arrow record batch is closed at the first cluster (or record) that reaches this size."""

    @classmethod
    def for_workers(cls, workers: int) -> "Limits":
        """Fewer workers get more each: larger blocks mean fewer, longer reads when gathering."""
        return cls(
            block_bytes=min(24 * MIB, max(4 * MIB, 96 * MIB // workers)),
            piece_bytes=min(48 * MIB, max(6 * MIB, 96 * MIB // workers)),
        )


def default_workers() -> int:
    """Count the cores this process may use, up to ``MAX_WORKERS``."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))
