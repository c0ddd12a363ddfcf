"""Shards of labelled proteins: those of pre-training with a column of labels, so that both are read alike."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workloads.esm2.data.limits import Limits
from workloads.esm2.data.manifest import LENGTH_BIN_RESIDUES, ShardFile, Split
from workloads.esm2.data.shards import SCHEMA

from .labels import Labels
from .table import Record

LABEL_COLUMN = "labels"
"""A fixed-size list of float32 a protein, or a list of int16 with a class a residue."""


def write_split(
    folder: Path,
    name: str,
    rows: Sequence[int],
    records: Sequence[Record],
    labels: Labels,
    clusters: Sequence[str] | None,
) -> Split:
    """Write the shards of a split into ``folder`` / ``name``.

    Args:
        folder: being prepared.
        name: of the split.
        rows: positions in ``records`` of the split's proteins, in their order.
        records: all records, as are ``labels`` and ``clusters``.
        labels: of all records.
        clusters: of all records, None without.
    """
    lengths = np.array([len(records[index].tokens) for index in rows], dtype=np.int64)

    def write(file: Path, start: int, stop: int) -> None:
        _write_shard(file, rows[start:stop], lengths[start:stop], records, labels)

    num_clusters = len({clusters[index] for index in rows}) if clusters is not None else len(rows)
    return write_shards(folder, name, lengths, num_clusters, write)


def write_shards(
    folder: Path,
    name: str,
    lengths: npt.NDArray[np.int64],
    num_clusters: int,
    write: Callable[[Path, int, int], None],
) -> Split:
    """Divide a split into shards of a bounded size, and describe them.

    Args:
        folder: being prepared.
        name: of the split.
        lengths: (N,) tokens of its records.
        num_clusters: of its records.
        write: writes the records from one position up to another into a file.
    """
    shards = []
    for number, (start, stop) in enumerate(ranges(lengths, Limits.for_workers(1).shard_bytes)):
        file = folder / name / f"shard-{number:05d}.arrow"
        file.parent.mkdir(exist_ok=True)
        write(file, start, stop)
        with file.open("rb") as stream:
            sha256 = hashlib.file_digest(stream, "sha256").hexdigest()
        shards.append(
            ShardFile(
                f"{name}/{file.name}",
                stop - start,
                int(lengths[start:stop].sum()),
                file.stat().st_size,
                sha256,
            )
        )
    bins = np.bincount(lengths // LENGTH_BIN_RESIDUES).tolist()
    return Split(
        records=len(lengths),
        clusters=num_clusters,
        residues=int(lengths.sum()),
        length_histogram={str(n * LENGTH_BIN_RESIDUES): c for n, c in enumerate(bins) if c},
        shards=tuple(shards),
    )


def _write_shard(
    file: Path,
    rows: Sequence[int],
    lengths: npt.NDArray[np.int64],
    records: Sequence[Record],
    labels: Labels,
) -> None:
    label_type = (
        pa.list_(pa.float32(), len(labels.schema.columns))
        if labels.values is not None
        else pa.large_list(pa.int16())
    )
    schema = SCHEMA.append(pa.field(LABEL_COLUMN, label_type))
    with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
        for start, stop in ranges(lengths, Limits.for_workers(1).batch_residues):
            chosen = list(rows[start:stop])
            offsets = np.concatenate([[0], np.cumsum(lengths[start:stop])])
            tokens = np.frombuffer(b"".join(records[index].tokens for index in chosen), dtype=np.uint8)
            if labels.values is not None:
                column = pa.FixedSizeListArray.from_arrays(
                    pa.array(labels.values[chosen].ravel()), len(labels.schema.columns)
                )
            else:
                assert labels.residues is not None
                classes = np.concatenate([labels.residues[index] for index in chosen])
                column = pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(classes))
            columns = [
                pa.array([records[index].id for index in chosen], type=pa.large_string()),
                pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(tokens)),
                column,
            ]
            stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))


def ranges(lengths: npt.NDArray[np.int64], max_residues: int) -> Iterator[tuple[int, int]]:
    """Consecutive rows of at most so many residues together, or one row that alone has more."""
    ends, start = np.cumsum(lengths), 0
    while start < len(lengths):
        done = int(ends[start - 1]) if start else 0
        stop = max(start + 1, int(np.searchsorted(ends, done + max_residues, side="right")))
        yield start, stop
        start = stop
