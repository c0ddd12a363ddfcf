"""Disk that a preparation needs, estimated from samples of its files."""

import contextlib
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from seqlm.training.data.limits import Limits
from seqlm.training.data.source_file import is_compressed
from seqlm.training.data.spill import INDEX_BYTES, row_bytes

from .fasta import RECORD_START, SourceReader, parsed
from .inputs import ProteinInput, inputs_of
from .scatter import JOINED_BYTES
from .sources import ProteinFiles

GZIP_RATIO = 2.5
"""Bytes of text per byte of gzip: UniRef50 has 2.2, and files without its repetitive headers have 1.7."""
DISK_PER_TEXT = 2.2
"""Bytes of disk per byte of text of a table: runs and shards each take about as many bytes as the text."""
DISK_PER_MEMBER_TEXT = 3.2
"""Bytes of disk per byte of text with cluster members, because joining them keeps two copies for a while."""
SAMPLED_FILES = 20
"""Largest number of files that are sampled."""
SAMPLE_BYTES = 1 << 16
"""Bytes of text at the start of a file that are its sample."""
SHARD_ROW_BYTES = 16
"""Bytes of a record in a shard besides its id and residues: the end of each."""
MARGIN = 1.1
"""Factor for what the samples do not show."""
RUNS_PER_BLOCK = 2
"""Runs of a block: its records, and its ids."""


def text_bytes_of(path: Path) -> int:
    """Estimate the bytes of text in a file."""
    size = path.stat().st_size
    return int(size * GZIP_RATIO) if is_compressed(path) else size


def needed_disk(files: ProteinFiles, text_bytes: int, limits: Limits) -> int:
    """Estimate the bytes of disk that a preparation needs, temporary files included.

    Args:
        files: files of proteins.
        text_bytes: text in all files.
        limits: sizes of blocks.
    """
    mean_bytes = text_bytes / len(files.paths)
    block_bytes = min(limits.block_bytes, max(JOINED_BYTES, mean_bytes))
    indexes = RUNS_PER_BLOCK * INDEX_BYTES * int(text_bytes / block_bytes + 1)
    if files.membership is not None:
        return int(DISK_PER_MEMBER_TEXT * text_bytes) + indexes
    sample = _sample(inputs_of(files), limits)
    if not sample.num_bytes:
        return int(DISK_PER_TEXT * text_bytes) + indexes
    return int(MARGIN * (sample.disk_bytes * text_bytes / sample.num_bytes + indexes))


@dataclass
class _Sample:
    """Sampled records."""

    num_bytes: int = 0
    """Text of the sampled blocks."""
    disk_bytes: int = 0
    """Bytes of their records in runs, runs of ids, and shards."""


def _sample(inputs: Sequence[ProteinInput], limits: Limits) -> _Sample:
    """Read the first records of some files of FASTA; those that cannot be read are left out."""
    per_record = row_bytes(2) + row_bytes(0) + SHARD_ROW_BYTES
    sample = _Sample()
    every = -(-len(inputs) // SAMPLED_FILES)
    for source in inputs[::every]:
        if not source.path.is_file():  # what is read of a pipe is lost
            continue
        # The preparation itself reports what is wrong with a file.
        with contextlib.suppress(ValueError, OSError):
            if source.form is not None:
                continue
            with closing(SourceReader(source.path)) as reader:
                block = next(reader.blocks(RECORD_START, SAMPLE_BYTES, limits.record_bytes))
            records = parsed(block)
            if records is not None:
                sample.num_bytes += block.num_bytes
                for column in records:
                    sample.disk_bytes += 2 * sum(map(len, column))
                sample.disk_bytes += per_record * len(records[0])
    return sample
