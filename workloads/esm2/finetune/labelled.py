"""Labelled proteins: shards as those of pre-training with a column of labels, written and read alike.

A split of them is a ``ProteinSplit`` whose units have labels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workloads.esm2.data.shards import SCHEMA, length_bins, shard_file, split_of
from workloads.training import records as proteins
from workloads.training.data.limits import Limits
from workloads.training.data.manifest import Split

from .labels import Floats, Labels, class_counts, load_schema
from .table import Record

LABEL_COLUMN = "labels"
"""A fixed-size list of float32 a protein, or a list of int16 with a class a residue."""


class LabelledSplit(proteins.ProteinSplit):
    """One split of a folder that ``prepare_table`` made; unit n is protein n.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    def __init__(self, folder: str | Path, split: proteins.Split) -> None:
        self.schema, self.facts = load_schema(Path(folder))
        super().__init__(folder, split)
        shards = self.manifest.splits[split].shards
        # Record batches as ProteinSplit numbers them, so that a unit's place is found in the same way.
        self._labels = [part for shard in shards for part in _map_labels(Path(folder) / shard.file)]
        self._ids = [part for shard in shards for part in _map_ids(Path(folder) / shard.file)]

    def labels(self, units: npt.NDArray[np.int64]) -> Floats:
        """Labels of a sequence task, shape (N, columns); NaN where there is none."""
        self._check_kind(per_residue=False)
        result = np.empty((len(units), len(self.schema.columns)), dtype=np.float32)
        for index, (batch, row) in enumerate(self._rows(units)):
            width = len(self.schema.columns)
            result[index] = self._labels[batch][0][row * width : (row + 1) * width]
        return result

    def residue_labels(self, units: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Classes of a residue task, (length,) of each whole protein; ``IGNORED`` where there is none."""
        self._check_kind(per_residue=True)
        result = []
        for batch, row in self._rows(units):
            values, offsets = self._labels[batch]
            result.append(values[offsets[row] : offsets[row + 1]].astype(np.int64))
        return result

    def ids(self, units: npt.NDArray[np.int64]) -> list[str]:
        """Ids as the table has them."""
        return [self._ids[batch][row].as_py() for batch, row in self._rows(units)]

    def class_counts(self) -> npt.NDArray[np.int64]:
        """How often each class occurs in this split; shapes as ``labels.class_counts`` says."""
        width = 1 if self.schema.task.per_residue else len(self.schema.columns)
        return class_counts(self.schema, (values.reshape(-1, width) for values, _ in self._labels))

    def _rows(self, units: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        batches = np.searchsorted(self._first_unit, units, side="right") - 1
        yield from zip(batches.tolist(), (units - self._first_unit[batches]).tolist(), strict=True)

    def _check_kind(self, *, per_residue: bool) -> None:
        assert self.schema.task.per_residue == per_residue, f"labels of a {self.schema.kind} task"


def _map_labels(path: Path) -> list[tuple[npt.NDArray[Any], npt.NDArray[np.int64]]]:
    """(values, offsets) of every record batch, views into the mapped file; offsets only of residue labels."""
    parts = []
    for batch in pa.ipc.open_stream(pa.memory_map(str(path))):
        column = batch.column(LABEL_COLUMN)
        if pa.types.is_fixed_size_list(column.type):
            values = np.frombuffer(column.values.buffers()[1] or b"", dtype=np.float32)
            parts.append((values, np.zeros(0, dtype=np.int64)))
        else:
            offsets = np.frombuffer(column.buffers()[1], dtype=np.int64)[: len(column) + 1]
            parts.append((np.frombuffer(column.values.buffers()[1] or b"", dtype=np.int16), offsets))
    return parts


def _map_ids(path: Path) -> Sequence[pa.Array]:
    return [batch.column("id") for batch in pa.ipc.open_stream(pa.memory_map(str(path)))]


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
        shards.append(shard_file(file, stop - start, int(lengths[start:stop].sum())))
    return split_of(shards, num_clusters, length_bins(lengths))


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
