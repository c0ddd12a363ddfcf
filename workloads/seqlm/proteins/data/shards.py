"""Convert spilled records to Arrow shards: gather, order, deduplicate and split one range of the hash."""

from __future__ import annotations

import functools
import itertools
import json
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.training.data.manifest import SPLITS, ShardFile
from seqlm.training.data.spill import (
    Ints,
    RowSlice,
    Run,
    SpillReader,
    key_ranges,
    row_ranges,
    without_duplicates,
)
from seqlm.training.data.split_shards import (
    arrow_numbers,
    length_bins,
    numpy_numbers,
    shard_file,
    split_numbers,
)

from .job import Plan

Array = npt.NDArray[np.uint8]

RECORDS_FILE = "records.runs"

SCHEMA = pa.schema([("id", pa.large_string()), ("tokens", pa.large_list(pa.uint8()))])
MEMBER_SCHEMA = SCHEMA.append(pa.field("cluster", pa.large_string())).append(
    pa.field("cluster_size", pa.uint32())
)


@dataclass(frozen=True)
class SplitShard:
    """Output of one task for one split."""

    split: str
    shard: ShardFile
    clusters: int
    lengths: Counter[int]


def save_runs(runs: list[Run], path: Path) -> None:
    """Write a list of runs to a file, because tasks share it and there are thousands of runs."""
    path.write_text(json.dumps([asdict(run) for run in runs]))


def load_runs(path: Path) -> list[Run]:
    """Read a list of runs. A list that is written again under the same name is read again."""
    return _runs_of(path.read_text())


@functools.lru_cache(maxsize=1)
def _runs_of(text: str) -> list[Run]:
    runs = json.loads(text)
    return [Run(**{**run, "column_bytes": tuple(run["column_bytes"])}) for run in runs]


def write_shard(
    plan: Plan, number: int, first_cell: int, next_cell: int
) -> tuple[list[SplitShard], int]:
    """Divide the rows of all runs in a range of cells among the splits.

    Returns:
        The shard of each split that gets any record, and the number of rows that were duplicates.
    """
    writers = [_SplitWriter(split, number, plan) for split in SPLITS]
    dropped = 0
    with SpillReader(load_runs(plan.spill / RECORDS_FILE)) as reader:
        slices = reader.rows(first_cell, next_cell)
        pieces = key_ranges(slices, plan.limits.piece_bytes) if slices else []
        for first_key, next_key in pieces:
            piece = [part.between(first_key, next_key) for part in slices]
            dropped += _write_piece(
                reader, [part for part in piece if len(part.keys)], plan, writers
            )
    closed = [writer.close() for writer in writers]
    return [shard for shard in closed if shard is not None], dropped


def _write_piece(
    reader: SpillReader, slices: list[RowSlice], plan: Plan, writers: list[_SplitWriter]
) -> int:
    """Order and deduplicate a range of keys, and add it to the writers of the splits.

    Returns:
        The number of rows that were duplicates.
    """
    keys = np.concatenate([part.keys for part in slices])
    tags = np.concatenate([part.tags for part in slices])
    has_clusters = plan.settings.members
    columns = [reader.column(slices, number) for number in range(3 if has_clusters else 2)]

    # Repeated records are read one by one, for which lists and views are faster than arrays.
    views = [(values.data, offsets.tolist()) for values, offsets in columns]

    def text(column: int, row: int) -> bytes:
        view, offsets = views[column]
        return bytes(view[offsets[row] : offsets[row + 1]])

    def content(row: int) -> tuple[bytes, bytes, bytes]:
        """Return the cluster, id and tokens of a row."""
        return text(2, row) if has_clusters else b"", text(0, row), text(1, row)

    order = without_duplicates(keys, np.argsort(keys), content)
    numbers = split_numbers(tags[order], plan.settings)
    for number, writer in enumerate(writers):
        rows = order[numbers == number]
        if not len(rows):
            continue
        token_offsets = columns[1][1]
        lengths = token_offsets[rows + 1] - token_offsets[rows]
        # A few MiB at a time, so that the same memory is used again; a cluster is never divided.
        for start, stop in row_ranges(keys[rows], lengths, plan.limits.batch_tokens):
            arrays = [_take(values, offsets, rows[start:stop]) for values, offsets in columns]
            writer.add(_batch(arrays, writer.schema))
    return len(keys) - len(order)


def _take(values: Array, offsets: Ints, rows: Ints) -> pa.Array:
    """Return the chosen rows as large_binary, back to back, with one memory copy per row in C++."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    return texts.take(arrow_numbers(rows))


def _batch(arrays: list[pa.Array], schema: pa.Schema) -> pa.RecordBatch:
    """Return ids, tokens and, with members, clusters as the columns of a shard."""
    ids, tokens, *clusters = arrays
    num_rows = len(ids)
    _, offsets, values = tokens.buffers()
    num_residues = int(np.frombuffer(offsets, dtype=np.int64)[num_rows])
    residues = pa.Array.from_buffers(pa.uint8(), num_residues, [None, values])
    columns = [
        ids.view(pa.large_string()),
        pa.Array.from_buffers(
            schema.field("tokens").type, num_rows, [None, offsets], children=[residues]
        ),
    ]
    if clusters:
        names = clusters[0]
        columns += [names.view(pa.large_string()), _cluster_sizes(names)]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _cluster_sizes(names: pa.Array) -> pa.Array:
    """Return the size of a cluster at its first row, and 0 at the others. Rows are sorted by cluster."""
    offsets = np.frombuffer(names.buffers()[1], dtype=np.int64)[: len(names) + 1]
    lengths = np.diff(offsets)
    text = names.to_pylist()
    is_first = np.ones(len(names), dtype=bool)
    is_first[1:] = lengths[1:] != lengths[:-1]
    differs = (before != after for before, after in itertools.pairwise(text))
    is_first[1:] |= np.fromiter(differs, bool, len(text) - 1)
    starts = np.flatnonzero(is_first)
    sizes = np.zeros(len(names), dtype=np.uint32)
    sizes[starts] = np.diff(np.append(starts, len(names)))
    return arrow_numbers(sizes)


@dataclass
class _SplitWriter:
    """Writer of a shard, whose record batches have bounds that depend on the records alone."""

    split: str
    number: int
    plan: Plan
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_residues: int = 0
    records: int = 0
    clusters: int = 0
    residues: int = 0
    lengths: Counter[int] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.file = self.plan.folder / self.split / f"shard-{self.number:05d}.arrow"
        self.schema = MEMBER_SCHEMA if self.plan.settings.members else SCHEMA
        self.batch_residues = self.plan.limits.batch_tokens
        self._stream: pa.RecordBatchStreamWriter | None = None

    def add(self, batch: pa.RecordBatch) -> None:
        self.pending.append(batch)
        self.pending_residues += len(batch.column("tokens").values)
        if self.pending_residues >= self.batch_residues:
            self._write(final=False)

    def close(self) -> SplitShard | None:
        """Write the remaining records and describe the shard; None if there is no record."""
        if self.pending:
            self._write(final=True)
        if self._stream is None:
            return None
        self._stream.close()
        self._sink.close()
        shard = shard_file(self.file, self.records, self.residues)
        return SplitShard(self.split, shard, self.clusters, self.lengths)

    def _write(self, *, final: bool) -> None:
        """Write every complete record batch of the pending records, and with ``final`` the rest, too."""
        (batch,) = pa.Table.from_batches(self.pending).combine_chunks().to_batches()
        tokens = batch.column("tokens")
        offsets = numpy_numbers(tokens.offsets)
        ends = offsets[1:] - offsets[0]
        if "cluster_size" in batch.schema.names:
            starts = np.flatnonzero(numpy_numbers(batch.column("cluster_size")))
        else:
            starts = np.arange(len(batch))
        last_rows = np.append(starts[1:], len(batch)) - 1
        cluster_ends = ends[last_rows]
        done = 0  # residues written
        row = 0
        while row < len(batch):
            cluster = int(np.searchsorted(cluster_ends, done + self.batch_residues))
            if cluster >= len(cluster_ends):
                if not final:
                    break
                cluster = len(cluster_ends) - 1
            stop = int(last_rows[cluster]) + 1
            lengths = np.diff(ends[row:stop], prepend=done)
            self._write_batch(batch.slice(row, stop - row), lengths)
            self.clusters += int(np.count_nonzero((starts >= row) & (starts < stop)))
            row = stop
            done = int(ends[stop - 1])
        self.pending = [batch.slice(row)] if row < len(batch) else []
        self.pending_residues = int(ends[-1]) - done

    def _write_batch(self, batch: pa.RecordBatch, lengths: Ints) -> None:
        if self._stream is None:
            self.file.parent.mkdir(exist_ok=True)
            self._sink = pa.OSFile(str(self.file), "wb")
            self._stream = pa.ipc.new_stream(self._sink, self.schema)
        # Arrow writes a slice's buffers with whatever follows them as padding. With copies, files of equal
        # records are equal.
        columns = [pa.concat_arrays([column]) for column in batch.columns]
        self._stream.write_batch(pa.RecordBatch.from_arrays(columns, schema=self.schema))
        self.lengths += length_bins(lengths)
        self.records += len(batch)
        self.residues += int(lengths.sum())
