"""Division of records among splits, and the shards of a split."""

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .limits import Limits
from .manifest import LENGTH_BIN_TOKENS, Settings, ShardFile, Split
from .spill import Ints, UInt64s, row_ranges


def arrow_numbers(numbers: npt.NDArray[np.integer]) -> pa.Array:
    """Return numbers as an array of Arrow that shares their memory.

    ``pa.array`` imports pandas, which takes up to half of the processor time of a small preparation.
    """
    buffer = pa.py_buffer(np.ascontiguousarray(numbers))
    return pa.Array.from_buffers(pa.from_numpy_dtype(numbers.dtype), len(numbers), [None, buffer])


def numpy_numbers(numbers: pa.Array) -> npt.NDArray[Any]:
    """Return an array of Arrow without missing numbers as one of numpy that shares its memory.

    ``to_numpy`` imports pandas, too.
    """
    _, values = numbers.buffers()
    found = np.frombuffer(values or b"", dtype=numbers.type.to_pandas_dtype())
    return found[numbers.offset : numbers.offset + len(numbers)]


def split_numbers(tags: UInt64s, settings: Settings) -> npt.NDArray[np.int8]:
    """Return the position in ``SPLITS`` of each hash: the test split has the lowest ones."""
    # A fraction of exactly 0 is the bound 0, below which no tag lies.
    shares = (settings.test_fraction + settings.validation_fraction, settings.test_fraction)
    return np.sum([tags < np.uint64(int(share * 2**64)) for share in shares], axis=0, dtype=np.int8)


def write_shards(
    folder: Path,
    name: str,
    lengths: npt.NDArray[np.int64],
    num_clusters: int,
    schema: pa.Schema,
    batch: Callable[[int, int], pa.RecordBatch],
) -> Split:
    """Divide a split into shards of a bounded size, and describe them.

    Args:
        folder: folder that is being prepared.
        name: name of the split.
        lengths: (N,) number of tokens of each record.
        num_clusters: number of clusters of the records.
        schema: schema of the shards.
        batch: function that returns the records from one position up to another.
    """
    shards = []
    limits = Limits.for_workers(1)
    keys = np.arange(len(lengths), dtype=np.uint64)
    bounds = row_ranges(keys, lengths, limits.shard_bytes) if len(lengths) else []
    for number, (start, stop) in enumerate(bounds):
        file = folder / name / f"shard-{number:05d}.arrow"
        file.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for first, last in row_ranges(
                keys[start:stop], lengths[start:stop], limits.batch_tokens
            ):
                stream.write_batch(batch(start + first, start + last))
        shards.append(shard_file(file, stop - start, int(lengths[start:stop].sum())))
    return split_of(shards, num_clusters, length_bins(lengths))


def split_of(shards: Iterable[ShardFile], clusters: int, lengths: Counter[int]) -> Split:
    """Describe a split by its shards, its clusters and the numbers of its records by bin of length."""
    files = tuple(shards)
    return Split(
        records=sum(file.records for file in files),
        clusters=clusters,
        residues=sum(file.residues for file in files),
        length_histogram={
            str(number * LENGTH_BIN_TOKENS): lengths[number] for number in sorted(lengths)
        },
        shards=files,
    )


def length_bins(lengths: Ints) -> Counter[int]:
    """Return the numbers of records by bin of ``LENGTH_BIN_TOKENS``, counted from 0."""
    return Counter((lengths // LENGTH_BIN_TOKENS).tolist())


def shard_file(file: Path, records: int, tokens: int) -> ShardFile:
    """Describe a shard that is written, in the folder of its split."""
    with file.open("rb") as stream:
        sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
    return ShardFile(
        f"{file.parent.name}/{file.name}", records, tokens, file.stat().st_size, sha256
    )
