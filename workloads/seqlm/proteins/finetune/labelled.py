"""Labelled proteins: shards in the format of pre-training with a column of labels.

A split of them is a ``RecordSplit`` with labels.
"""

import itertools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.proteins.data.shards import SCHEMA
from seqlm.proteins.reading.chains import ChainSpan, linkers_of
from seqlm.training import records as proteins
from seqlm.training.data.labelled_records import LABEL_COLUMN, LabelledRecords
from seqlm.training.data.manifest import IGNORED, Split
from seqlm.training.data.split_shards import write_shards

from .labels import Floats, Labels, LabelSchema, class_counts
from .table import Record

MASKED = -101
"""Stored class of a masked residue. It is read as ``IGNORED``, and differs only so that it can be counted."""
LINKER_COLUMN = "linkers"
"""Column of the shards, if chains of a protein have linkers between them: the first place of each linker and
the place after it, one after another."""
_AT_ONCE = 100
"""Proteins of which features are computed at once, before those of their examples are kept."""


class LabelledSplit(LabelledRecords):
    """One split of a folder that ``prepare_table`` made; unit n is protein n.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    records = "proteins"
    tokens = "residues"
    schemas = LabelSchema
    schema: LabelSchema

    def labels(self, units: npt.NDArray[np.int64]) -> Floats:
        """Return the labels of a sequence task, shape (N, columns); NaN where a label is missing."""
        assert not self.schema.task.per_residue, "labels of residues"
        return super().labels(units)

    def token_labels(self, units: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Return the classes of a residue task, (length,) per protein; ``IGNORED`` for missing ones."""
        assert self.schema.task.per_residue, "labels of whole proteins"
        found = super().token_labels(units)
        return [np.where(classes == MASKED, IGNORED, classes) for classes in found]

    def spans(self, units: npt.NDArray[np.int64]) -> list[tuple[ChainSpan, ...]]:
        """Return the residues of each protein without those of linkers; none if it has no linkers."""
        if not any(LINKER_COLUMN in batch.schema.names for batch in self.record_batches):
            return [() for _ in units]
        found = []
        for batch, row in self._rows(units):
            places = batch.column(LINKER_COLUMN)[row].as_py()
            bounds = [0, *places, len(batch.column("tokens")[row])] if places else []
            pairs = zip(bounds[::2], bounds[1::2], strict=True)
            found.append(tuple(ChainSpan("", start, stop) for start, stop in pairs))
        return found

    def num_masked(self, units: npt.NDArray[np.int64], max_residues: int) -> npt.NDArray[np.int64]:
        """Return the number of masked residues of proteins, (units,), among their first ``max_residues``."""
        if not self.schema.task.per_residue:
            return np.zeros(len(units), dtype=np.int64)
        found = super().token_labels(units)
        counts = [int((classes[:max_residues] == MASKED).sum()) for classes in found]
        return np.array(counts, dtype=np.int64)

    def class_counts(self) -> npt.NDArray[np.int64]:
        """Return the count of each class in this split, with the shapes of ``labels.class_counts``."""
        columns = (batch.column(LABEL_COLUMN) for batch in self.record_batches)
        return class_counts(self.schema, (column.flatten().to_numpy() for column in columns))


class SampledSplit:
    """Proteins of a split, drawn with a fixed seed, and the labels of their examples.

    An example is a protein, or a labelled residue of a residue task.

    Args:
        folder: folder of data that ``prepare_table`` made.
        name: name of the split.
        most: largest number of proteins.
    """

    def __init__(self, folder: str | Path, name: proteins.Split, most: int) -> None:
        split = LabelledSplit(folder, name)
        drawn = np.random.default_rng(0).permutation(split.num_units)[:most]
        units = np.sort(drawn).astype(np.int64)
        self.num_units = split.num_units
        """Number of all proteins of the split."""
        self.schema = split.schema
        self.ids = split.ids(units)
        self.proteins = []
        for unit in units.tolist():
            (place,), _ = split.draw(unit, 1, 0, 0)
            self.proteins.append(split.token_ids(place))
        self.spans = split.spans(units)
        """Residues of each protein without those of linkers between chains; none without linkers."""
        self.known: list[npt.NDArray[np.int64]] | None = None
        """Positions of the labelled residues of each protein."""
        if not split.schema.task.per_residue:
            self.labels = split.labels(units)
            return
        classes = split.token_labels(units)
        self.known = [np.flatnonzero(each != IGNORED) for each in classes]
        chosen = [each[known] for each, known in zip(classes, self.known, strict=True)]
        column = np.concatenate([np.empty(0), *chosen]).astype(np.float32)
        self.labels = column[:, None]

    def features(self, run: Callable[..., list[Any]], kind: type[np.floating] = np.float32) -> Any:
        """Return the features of the examples, (N, F).

        Args:
            run: function that returns the features of proteins, (F,) each, or (length, F) for a residue task.
                With linkers between chains, it also gets ``spans``, the residues without them.
            kind: type of the result.
        """
        found = []
        for first in range(0, len(self.proteins), _AT_ONCE):
            proteins = self.proteins[first : first + _AT_ONCE]
            spans = self.spans[first : first + _AT_ONCE]
            rows = run(proteins, spans=spans) if any(spans) else run(proteins)
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
        folder: folder that is being prepared.
        name: name of the split.
        rows: positions in ``records`` of the split's proteins, in their order.
        records: all records of the table.
        labels: labels of all records.
        clusters: clusters of all records; None without any.
    """
    per_residue = labels.schema.task.per_residue
    width = len(labels.schema.columns)
    label_type = pa.large_list(pa.int16()) if per_residue else pa.list_(pa.float32(), width)
    schema = SCHEMA.append(pa.field(LABEL_COLUMN, label_type))
    linkers = [linkers_of(record.spans) for record in records]
    has_linkers = any(linkers)
    if has_linkers:
        schema = schema.append(pa.field(LINKER_COLUMN, pa.list_(pa.int32())))
    lengths = np.array([len(records[index].tokens) for index in rows], dtype=np.int64)

    def batch(start: int, stop: int) -> pa.RecordBatch:
        chosen = list(rows[start:stop])
        offsets = pa.array(np.concatenate([[0], np.cumsum(lengths[start:stop])]))
        tokens = np.frombuffer(b"".join(records[index].tokens for index in chosen), dtype=np.uint8)
        values = pa.array(np.concatenate([_stored(labels, index) for index in chosen]))
        if per_residue:
            label_column = pa.LargeListArray.from_arrays(offsets, values)
        else:
            label_column = pa.FixedSizeListArray.from_arrays(values, width)
        columns = [
            pa.array([records[index].id for index in chosen], type=pa.large_string()),
            pa.LargeListArray.from_arrays(offsets, pa.array(tokens)),
            label_column,
        ]
        if has_linkers:
            of_chosen = [list(itertools.chain(*linkers[index])) for index in chosen]
            columns.append(pa.array(of_chosen, pa.list_(pa.int32())))
        return pa.RecordBatch.from_arrays(columns, schema=schema)

    num_clusters = len({clusters[index] for index in rows}) if clusters is not None else len(rows)
    return write_shards(folder, name, lengths, num_clusters, schema, batch)


def _stored(labels: Labels, index: int) -> npt.NDArray[Any]:
    """Return the labels of a record as they are stored, masked residues as ``MASKED``."""
    mask = labels.masks[index]
    array = labels.arrays[index]
    return array if mask is None else np.where(mask, array, MASKED).astype(array.dtype)
