"""Sizes that keep the memory of all processes of a preparation below 1 GiB for any input."""

import os
from dataclasses import dataclass
from pathlib import Path

MIB = 1 << 20
MAX_WORKERS = 8
"""Largest number of workers. One decompressing reader feeds about four; more reduce the memory of each."""


@dataclass(frozen=True)
class Limits:
    """Sizes that bound memory. The result does not depend on the first two; the others are constant."""

    block_bytes: int
    """Text that is parsed at a time. A worker needs about five times as much; the reader holds one block per
    worker."""
    piece_bytes: int
    """Shuffled records that are gathered at a time. A worker needs about three times as much."""
    block_records: int = 100_000
    """Records that are parsed at a time. A Python object per id and record costs about 100 bytes."""
    record_bytes: int = 32 * MIB
    """Longest record that is accepted."""
    shard_bytes: int = 64 * MIB
    """Records of one shard, over all splits."""
    batch_tokens: int = 4 * MIB
    """Size at which an Arrow record batch ends, with the cluster (or record) that reaches it."""

    @classmethod
    def for_workers(cls, workers: int) -> "Limits":
        """Return the limits for a number of workers.

        Fewer workers get larger blocks, which means fewer and longer reads.
        """
        return cls(
            block_bytes=min(24 * MIB, max(4 * MIB, 96 * MIB // workers)),
            piece_bytes=min(48 * MIB, max(6 * MIB, 96 * MIB // workers)),
        )


def default_workers() -> int:
    """Return the number of cores that this process may use, at most ``MAX_WORKERS``."""
    return min(MAX_WORKERS, len(os.sched_getaffinity(0)))


def check_row(path: Path, length: int) -> None:
    """Raise ValueError if a row of a table is too long.

    Args:
        path: file of the table.
        length: number of bytes or characters of the row.
    """
    longest = Limits.record_bytes
    if length > longest:
        raise ValueError(
            f"{path} has a row of more than {longest:,} characters; check its quotes and its cells"
        )
