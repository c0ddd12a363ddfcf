"""Labelled proteins: shards as those of pre-training with a column of labels, written and read alike.

A split of them is a ``RecordSplit`` whose units have labels.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.proteins.data.shards import SCHEMA, length_bins, shard_file, split_of
from seqlm.training import records as proteins
from seqlm.training.data.limits import Limits
from seqlm.training.data.manifest import Split
from seqlm.training.data.spill import row_ranges

from .labels import Floats, Labels, class_counts, load_schema
from .table import Record
from .task_kinds import IGNORED

_AT_ONCE = 100
"""Proteins whose features are computed before they are kept."""
LABEL_COLUMN = "labels"
"""A fixed-size list of float32 a protein, or a list of int16 with a class a residue."""


class LabelledSplit(proteins.RecordSplit):
    """One split of a folder that ``prepare_table`` made; unit n is protein n.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    def __init__(self, folder: str | Path, split: proteins.Split) -> None:
        self.schema, self.facts = load_schema(Path(folder))
        super().__init__(folder, split)

    def labels(self, units: npt.NDArray[np.int64]) -> Floats:
        """Labels of a sequence task, shape (N, columns); NaN where there is none."""
        assert not self.schema.task.per_residue, "labels of residues"
        shape = (len(units), len(self.schema.columns))
        return np.array(list(self._labels(units)), dtype=np.float32).reshape(shape)

    def residue_labels(self, units: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Classes of a residue task, (length,) of each whole protein; ``IGNORED`` where there is none."""
        assert self.schema.task.per_residue, "labels of whole proteins"
        return [values.astype(np.int64) for values in self._labels(units)]

    def ids(self, units: npt.NDArray[np.int64]) -> list[str]:
        """Ids as the table has them."""
        return [batch.column("id")[row].as_py() for batch, row in self._rows(units)]

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Return the count of each class in this split, with the shapes of ``labels.class_counts``."""
        columns = (batch.column(LABEL_COLUMN) for batch in self.record_batches)
        return class_counts(self.schema, (column.flatten().to_numpy() for column in columns))

    def _labels(self, units: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        for batch, row in self._rows(units):
            yield batch.column(LABEL_COLUMN)[row].values.to_numpy()

    def _rows(self, units: npt.NDArray[np.int64]) -> Iterator[tuple[pa.RecordBatch, int]]:
        numbers = np.searchsorted(self._first_unit, units, side="right") - 1
        for number, row in zip(numbers.tolist(), (units - self._first_unit[numbers]).tolist(), strict=True):
            yield self.record_batches[number], row


class SampledSplit:
    """Proteins of a split, drawn with a fixed seed, and the labels of their examples.

    An example is a protein, or a labelled residue of a residue task.

    Args:
        folder: data that ``prepare_table`` made.
        name: split.
        most: largest number of proteins.
    """

    def __init__(self, folder: str | Path, name: proteins.Split, most: int) -> None:
        split = LabelledSplit(folder, name)
        units = np.sort(np.random.default_rng(0).permutation(split.num_units)[:most]).astype(np.int64)
        self.schema, self.ids = split.schema, split.ids(units)
        self.proteins = [split.residues(split.draw(int(unit), 1, 0, 0)[0][0]) for unit in units]
        self.known: list[npt.NDArray[np.int64]] | None = None
        """Positions of the labelled residues of each protein."""
        if not split.schema.task.per_residue:
            self.labels = split.labels(units)
            return
        classes = split.residue_labels(units)
        self.known = [np.flatnonzero(each != IGNORED) for each in classes]
        chosen = [each[known] for each, known in zip(classes, self.known, strict=True)]
        self.labels = np.concatenate([np.empty(0), *chosen]).astype(np.float32)[:, None]

    def features(self, run: Callable[[Any], list[Any]], kind: type[np.floating] = np.float32) -> Any:
        """Return the features of the examples, (N, F).

        Args:
            run: returns the features of proteins, (F,) each, or (length, F) of a residue task.
            kind: type in which they are kept.
        """
        found = []
        for first in range(0, len(self.proteins), _AT_ONCE):
            rows = run(self.proteins[first : first + _AT_ONCE])
            if self.known is not None:
                rows = [row[known] for row, known in zip(rows, self.known[first:], strict=False)]
            found += [np.atleast_2d(row).astype(kind) for row in rows]
        return np.concatenate(found) if found else np.empty((0, 0), dtype=kind)


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
    per_residue, width = labels.schema.task.per_residue, len(labels.schema.columns)
    label_type = pa.large_list(pa.int16()) if per_residue else pa.list_(pa.float32(), width)
    schema = SCHEMA.append(pa.field(LABEL_COLUMN, label_type))
    lengths = np.array([len(records[index].tokens) for index in rows], dtype=np.int64)

    def batch(start: int, stop: int) -> pa.RecordBatch:
        chosen = list(rows[start:stop])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths[start:stop])]))
        tokens = np.frombuffer(b"".join(records[index].tokens for index in chosen), dtype=np.uint8)
        values = pa.array(np.concatenate([labels.arrays[index] for index in chosen]))
        columns = [
            pa.array([records[index].id for index in chosen], type=pa.large_string()),
            pa.LargeListArray.from_arrays(offsets, pa.array(tokens)),
            pa.LargeListArray.from_arrays(offsets, values)
            if per_residue
            else pa.FixedSizeListArray.from_arrays(values, width),
        ]
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    num_clusters = len({clusters[index] for index in rows}) if clusters is not None else len(rows)
    return write_shards(folder, name, lengths, num_clusters, schema, batch)


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
        folder: being prepared.
        name: of the split.
        lengths: (N,) tokens of its records.
        num_clusters: of its records.
        schema: of the shards.
        batch: returns the records from one position up to another.
    """
    shards, limits, keys = [], Limits.for_workers(1), np.arange(len(lengths), dtype=np.uint64)
    bounds = row_ranges(keys, lengths, limits.shard_bytes) if len(lengths) else []
    for number, (start, stop) in enumerate(bounds):
        file = folder / name / f"shard-{number:05d}.arrow"
        file.parent.mkdir(exist_ok=True)
        with pa.OSFile(str(file), "wb") as sink, pa.ipc.new_stream(sink, schema) as stream:
            for first, last in row_ranges(keys[start:stop], lengths[start:stop], limits.batch_residues):
                stream.write_batch(batch(start + first, start + last))
        shards.append(shard_file(file, stop - start, int(lengths[start:stop].sum())))
    return split_of(shards, num_clusters, length_bins(lengths))
