"""Shuffle of records that do not fit into memory, by sorted runs on disk.

Records are written once in sequence and gathered once by ranges of their keys. A run holds rows sorted by a
64-bit hash (the key). Each process appends its runs to spill files of its own:

    index    uint32 (GRID_CELLS + 1): first row of each of GRID_CELLS equal ranges of the key
    rows     (key uint64, tag uint64, end uint32 per column): ends are byte offsets within the column
    columns  the bytes of each column (ids, tokens, ...), rows back to back

Rows of one key range are contiguous in every run. The process that gathers the range reads one piece per run
and column, and there are few open files.
"""

import contextlib
import itertools
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

UInt64s = npt.NDArray[np.uint64]
Ints = npt.NDArray[np.int64]

CELL_BITS = 13
"""Number of the key's first bits that choose its cell."""
GRID_CELLS = 1 << CELL_BITS
FILE_BYTES = 1 << 30
"""Size from which on a spill file gets no further run, so that files can be deleted while runs are merged."""
SPLIT_SALT = 0x455334D32D53504C
"""Seed of the hash of ids and clusters that decides on the splits. It does not change with the shuffle."""
INDEX_ENTRY_BYTES = 4
"""Size of an entry of the index of a run."""
INDEX_BYTES = INDEX_ENTRY_BYTES * (GRID_CELLS + 1)
"""Size of the index of a run."""
_CELL_STARTS = np.arange(GRID_CELLS, dtype=np.uint64) << np.uint64(64 - CELL_BITS)


def hash_all(values: Sequence[bytes], seed: int) -> UInt64s:
    """Return the 64-bit xxh3 of every value. Another hash would put records into other splits."""
    from xxhash import xxh3_64_digest  # only to prepare data

    seed &= (1 << 64) - 1
    digests = b"".join([xxh3_64_digest(value, seed) for value in values])
    return np.frombuffer(digests, dtype=">u8").astype(np.uint64)


def row_type(num_columns: int) -> np.dtype[np.void]:
    """Return the type of a row on disk."""
    return np.dtype([("key", "<u8"), ("tag", "<u8"), ("ends", "<u4", (num_columns,))])


def row_bytes(num_columns: int) -> int:
    """Return the size of a row on disk, without its columns."""
    return row_type(num_columns).itemsize


def cell_ranges(num_ranges: int) -> list[tuple[int, int]]:
    """Divide the key's cells into ``num_ranges`` ranges (first, next), at most one per cell."""
    num_ranges = min(num_ranges, GRID_CELLS)
    bounds = [number * GRID_CELLS // num_ranges for number in range(num_ranges + 1)]
    return list(itertools.pairwise(bounds))


@dataclass(frozen=True)
class Run:
    """Location of one run in a spill file."""

    path: str
    num_rows: int
    offset: int
    """First byte of the run in the file."""
    column_bytes: tuple[int, ...]
    """Size of each column."""

    @property
    def rows_offset(self) -> int:
        """First byte of the rows in the file."""
        return self.offset + INDEX_BYTES

    def column_offset(self, column: int) -> int:
        """Return the first byte of a column in the file."""
        rows = self.num_rows * row_bytes(len(self.column_bytes))
        return self.rows_offset + rows + sum(self.column_bytes[:column])

    @property
    def num_bytes(self) -> int:
        """Size of the run."""
        return self.column_offset(len(self.column_bytes)) - self.offset

    @property
    def data_bytes(self) -> int:
        """Size of the run without its index."""
        return self.num_bytes - INDEX_BYTES


def write_run(
    folder: Path,
    kind: str,
    keys: UInt64s,
    tags: UInt64s,
    columns: Sequence[list[bytes]],
    order: Ints | None = None,
) -> Run:
    """Append rows to this process's spill file of a kind.

    Args:
        folder: folder of the spill files.
        kind: beginning of the file's name.
        keys: (rows,) keys.
        tags: (rows,) tags, which readers get back with the rows.
        columns: values of each column by row.
        order: rows sorted by key; None sorts them.
    """
    order = np.argsort(keys) if order is None else order
    positions = order.tolist()
    rows = np.empty(len(order), dtype=row_type(len(columns)))
    rows["key"] = keys[order]
    rows["tag"] = tags[order]
    index = index_of(rows["key"]).astype(f"<u{INDEX_ENTRY_BYTES}")
    path = _spill_file(folder, kind)
    with path.open("ab") as file:
        offset = file.seek(0, os.SEEK_END)
        for number, column in enumerate(columns):
            lengths = np.fromiter(map(len, column), dtype=np.int64, count=len(column))
            rows["ends"][:, number] = np.cumsum(lengths[order])
        file.write(index.tobytes())
        file.write(rows.tobytes())
        column_bytes = [
            file.write(b"".join([column[row] for row in positions])) for column in columns
        ]
    return Run(str(path), len(order), offset, tuple(column_bytes))


def index_of(keys: UInt64s) -> Ints:
    """Return the first row of each cell, (GRID_CELLS + 1,), and the number of rows, for sorted keys."""
    return np.append(np.searchsorted(keys, _CELL_STARTS), len(keys))


def _spill_file(folder: Path, kind: str) -> Path:
    """Return this process's file for the next run of a kind."""
    for number in itertools.count():
        path = folder / f"{kind}-{os.getpid()}-{number}.spill"
        if not path.exists() or path.stat().st_size < FILE_BYTES:
            return path
    raise AssertionError("a number is found for each file")


@dataclass(frozen=True)
class RowSlice:
    """Consecutive rows of one run, without the bytes of their columns."""

    run: Run
    keys: UInt64s
    tags: UInt64s
    edges: Ints
    """(rows + 1, columns) byte offset of each row within its column, and the end of the last row."""

    def between(self, first_key: int, next_key: int | None) -> "RowSlice":
        """Return the rows with first_key <= key < next_key, or all from ``first_key`` on."""
        start = int(np.searchsorted(self.keys, np.uint64(first_key)))
        stop = (
            len(self.keys)
            if next_key is None
            else int(np.searchsorted(self.keys, np.uint64(next_key)))
        )
        return RowSlice(
            self.run, self.keys[start:stop], self.tags[start:stop], self.edges[start : stop + 1]
        )


class SpillReader(contextlib.ExitStack):
    """Reader of key ranges from runs. As a context manager, it keeps the spill files open.

    Args:
        runs: runs of all processes.
    """

    def __init__(self, runs: Sequence[Run]) -> None:
        super().__init__()
        self.runs = runs
        self._files: dict[str, int] = {}

    def _file(self, run: Run) -> int:
        if run.path not in self._files:
            self._files[run.path] = os.open(run.path, os.O_RDONLY)
            self.callback(os.close, self._files[run.path])
        return self._files[run.path]

    def rows(self, first_cell: int, next_cell: int) -> list[RowSlice]:
        """Return the rows of every run with keys in the cells first_cell <= cell < next_cell."""
        slices = []
        for run in self.runs:
            file = self._file(run)
            raw = os.pread(
                file,
                INDEX_ENTRY_BYTES * (next_cell - first_cell + 1),
                run.offset + INDEX_ENTRY_BYTES * first_cell,
            )
            index = np.frombuffer(raw, dtype="<u4")
            start = int(index[0])
            stop = int(index[-1])
            if start == stop:
                continue
            kind = row_type(len(run.column_bytes))
            # The row in front is read, too, because its ends are the beginnings of the first row.
            front = min(start, 1)
            raw = os.pread(
                file,
                (stop - start + front) * kind.itemsize,
                run.rows_offset + (start - front) * kind.itemsize,
            )
            rows = np.frombuffer(raw, dtype=kind)
            edges = np.zeros((stop - start + 1, len(run.column_bytes)), dtype=np.int64)
            edges[1 - front :] = rows["ends"]
            slices.append(
                RowSlice(run, rows["key"][front:].copy(), rows["tag"][front:].copy(), edges)
            )
        return slices

    def column(self, slices: Sequence[RowSlice], number: int) -> tuple[npt.NDArray[np.uint8], Ints]:
        """Return the bytes of one column of all slices, and the offsets (rows + 1) of the rows in them."""
        sizes = [int(part.edges[-1, number] - part.edges[0, number]) for part in slices]
        values = np.empty(sum(sizes), dtype=np.uint8)
        position = 0
        for part, size in zip(slices, sizes, strict=True):
            if size:
                start = part.run.column_offset(number) + int(part.edges[0, number])
                target = values.data[position : position + size]
                count = os.preadv(self._file(part.run), [target], start)
                assert count == size, f"{part.run.path} ends early: {count} of {size} bytes"
            position += size
        lengths = np.concatenate([np.diff(part.edges[:, number]) for part in slices])
        offsets = np.zeros(len(lengths) + 1, dtype=np.int64)
        np.cumsum(lengths, out=offsets[1:])
        return values, offsets


def key_ranges(slices: Sequence[RowSlice], max_bytes: int) -> list[tuple[int, int | None]]:
    """Return key ranges that cover the slices in order.

    Each has at most ``max_bytes``, unless a single key has more. The last range has no upper bound.
    """
    keys = np.concatenate([part.keys for part in slices])
    weights = np.concatenate([np.diff(part.edges, axis=0).sum(axis=1) for part in slices])
    order = np.argsort(keys)
    keys = keys[order]
    ranges: list[tuple[int, int | None]] = []
    for start, stop in row_ranges(keys, weights[order], max_bytes):
        next_key = int(keys[stop]) if stop < len(keys) else None
        ranges.append((int(keys[start]), next_key))
    return ranges


def row_ranges(keys: UInt64s, weights: Ints, max_weight: int) -> list[tuple[int, int]]:
    """Divide rows sorted by key into ranges (first, next) of at most ``max_weight``.

    Rows of one key are never divided, so a range of one key may have more.
    """
    starts = np.flatnonzero(np.concatenate([[True], keys[1:] != keys[:-1]]))
    edges = np.append(starts, len(keys))
    totals = np.cumsum(weights)[edges[1:] - 1]
    ranges: list[tuple[int, int]] = []
    group = 0  # index of the first key that is not in a range
    done = 0  # weight of the keys before it
    while group < len(starts):
        last = max(group + 1, int(np.searchsorted(totals, done + max_weight, side="right")))
        ranges.append((int(edges[group]), int(edges[last])))
        group = last
        done = int(totals[last - 1])
    return ranges


def without_duplicates(
    keys: UInt64s, order: Ints, content: Callable[[int], tuple[bytes, bytes, bytes]]
) -> Ints:
    """Sort every group of equal keys by (cluster, id), and drop its repeated records.

    Bytes are compared, not only hashes. Of equal records in a cluster, the one with the smallest id stays.

    Args:
        keys: keys of all rows.
        order: rows sorted by key.
        content: function that returns the (cluster, id, tokens) of a row; cluster is empty without clusters.

    Returns:
        Remaining rows, sorted by key.
    """
    ordered = keys[order]
    same = np.concatenate([[False], ordered[1:] == ordered[:-1], [False]])
    if not same.any():
        return order
    edges = np.diff(same.astype(np.int8))
    starts = np.flatnonzero(edges == 1)
    stops = np.flatnonzero(edges == -1) + 1
    keep = np.ones(len(order), dtype=bool)
    result = order.copy()
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        rows = [(*content(row), row) for row in order[start:stop].tolist()]
        rows.sort(key=lambda entry: entry[:2])
        seen: set[tuple[bytes, bytes]] = set()
        for position, (cluster, _, tokens, row) in enumerate(rows, start=start):
            result[position] = row
            if (cluster, tokens) in seen:
                keep[position] = False
            seen.add((cluster, tokens))
    return result[keep]
