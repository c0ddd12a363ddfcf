"""A split of labelled proteins: a ``ProteinSplit`` whose units have labels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from workloads.esm2.proteins import ProteinSplit, Split

from .label_shards import LABEL_COLUMN
from .labels import Floats, class_counts, load_schema


class LabelledSplit(ProteinSplit):
    """One split of a folder that ``prepare_table`` made; unit n is protein n.

    Raises:
        ValueError: if the folder is not such data, lacks the split, or is damaged.
    """

    def __init__(self, folder: str | Path, split: Split) -> None:
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
        width = 1 if self.schema.kind == "residue" else len(self.schema.columns)
        return class_counts(self.schema, (values.reshape(-1, width) for values, _ in self._labels))

    def _rows(self, units: npt.NDArray[np.int64]) -> Iterator[tuple[int, int]]:
        batches = np.searchsorted(self._first_unit, units, side="right") - 1
        yield from zip(batches.tolist(), (units - self._first_unit[batches]).tolist(), strict=True)

    def _check_kind(self, *, per_residue: bool) -> None:
        assert (self.schema.kind == "residue") == per_residue, f"labels of a {self.schema.kind} task"


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
