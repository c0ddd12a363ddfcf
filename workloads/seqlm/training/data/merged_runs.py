"""Merging of spilled runs, so that a large input does not have too many small ones.

A range of keys is gathered with a few reads per run. If runs and ranges both grow with the input, the number
of reads grows with its square, and each becomes smaller. Then runs are merged first: the data are read and
written once more, in large pieces.
"""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from .spill import (
    GRID_CELLS,
    INDEX_ENTRY_BYTES,
    Ints,
    Run,
    SpillReader,
    cell_ranges,
    index_of,
    row_type,
)
from .split_shards import arrow_numbers

MOST_RUNS = 500
"""Number of runs that are gathered without merging, and about the number that is left by it."""
SMALL_READ_BYTES = 1 << 14
"""Mean size of a read below which runs are merged."""
MOST_COLUMN_BYTES = 3 << 30
"""Largest size of a column of a merged run. Its offsets have 32 bits."""


def groups_to_merge(runs: Sequence[Run], num_ranges: int) -> list[list[Run]]:
    """Return groups of runs, each of which is to become one run; none if the runs are large enough.

    Args:
        runs: runs.
        num_ranges: number of key ranges in which they will be gathered.
    """
    num_bytes = sum(run.data_bytes for run in runs)
    if len(runs) <= MOST_RUNS or num_bytes / len(runs) / num_ranges >= SMALL_READ_BYTES:
        return []
    most_runs = -(-len(runs) // MOST_RUNS)
    groups: list[list[Run]] = []
    # Runs of one file become neighbours, so that files can be deleted on the way.
    for run in sorted(runs, key=lambda one: (one.path, one.offset)):
        if not groups or len(groups[-1]) == most_runs or _is_too_large([*groups[-1], run]):
            groups.append([])
        groups[-1].append(run)
    return groups


def _is_too_large(group: Sequence[Run]) -> bool:
    """Return whether a column of the merged run would be too large."""
    sizes = zip(*(run.column_bytes for run in group), strict=True)
    return any(sum(column) > MOST_COLUMN_BYTES for column in sizes)


def merge(folder: Path, kind: str, runs: Sequence[Run], piece_bytes: int) -> Run:
    """Write the rows of several runs as one run.

    Args:
        folder: folder of the spill files.
        kind: beginning of the name of the file.
        runs: runs with the same columns.
        piece_bytes: bytes that are in memory at once, about.
    """
    path = folder / f"{kind}-{os.getpid()}.spill"
    path.touch()
    num_columns = len(runs[0].column_bytes)
    column_bytes = tuple(
        sum(run.column_bytes[column] for run in runs) for column in range(num_columns)
    )
    num_rows = sum(run.num_rows for run in runs)
    merged = Run(str(path), num_rows, path.stat().st_size, column_bytes)
    kind_of_row = row_type(num_columns)
    counts = np.zeros(GRID_CELLS, dtype=np.int64)
    done_rows = 0
    done_bytes = [0] * num_columns
    num_pieces = sum(run.data_bytes for run in runs) // piece_bytes + 1
    with path.open("r+b") as file, SpillReader(runs) as reader:
        for first_cell, next_cell in cell_ranges(num_pieces):
            slices = reader.rows(first_cell, next_cell)
            if not slices:
                continue
            keys = np.concatenate([part.keys for part in slices])
            order = np.argsort(keys, kind="stable")
            rows = np.empty(len(order), dtype=kind_of_row)
            rows["key"] = keys[order]
            rows["tag"] = np.concatenate([part.tags for part in slices])[order]
            for column in range(num_columns):
                values, offsets = _ordered(*reader.column(slices, column), order)
                rows["ends"][:, column] = done_bytes[column] + offsets[1:]
                file.seek(merged.column_offset(column) + done_bytes[column])
                file.write(values)
                done_bytes[column] += len(values)
            file.seek(merged.rows_offset + done_rows * kind_of_row.itemsize)
            file.write(rows.tobytes())
            done_rows += len(rows)
            counts += np.diff(index_of(rows["key"]))
        index = np.concatenate([[0], np.cumsum(counts)]).astype(f"<u{INDEX_ENTRY_BYTES}")
        file.seek(merged.offset)
        file.write(index.tobytes())
    assert done_rows == num_rows, f"{path}: {done_rows} of {num_rows} rows"
    return merged


def _ordered(values: npt.NDArray[np.uint8], offsets: Ints, order: Ints) -> tuple[memoryview, Ints]:
    """Return the bytes of texts in another order, and their offsets."""
    buffers = [None, pa.py_buffer(offsets), pa.py_buffer(values)]
    texts = pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)
    _, bounds, ordered = texts.take(arrow_numbers(order)).buffers()
    found = np.frombuffer(bounds, np.int64, len(order) + 1)
    return memoryview(ordered or b"")[: int(found[-1])], found


def finished_files(groups: Sequence[Sequence[Run]]) -> Iterator[list[str]]:
    """Yield, for each group in its turn, the files that no later group reads."""
    last_group = {run.path: number for number, group in enumerate(groups) for run in group}
    for number, group in enumerate(groups):
        yield sorted({run.path for run in group if last_group[run.path] == number})
