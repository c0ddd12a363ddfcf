"""Labels of prepared records: names in ``labels.json``, values in a column of the shards.

A record has one number per label column, NaN if the label is missing. Or each of its tokens has the index of
a class, ``IGNORED`` if the class is unknown.
"""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from seqlm.training.records import RecordSplit, Split

from .split_shards import numpy_numbers

LABELS_FILE = "labels.json"
LABEL_COLUMN = "labels"
"""Column of the shards: a fixed-size list of float32, or a list of int16 with a class per token."""


@dataclass(frozen=True)
class LabelNames:
    """Names of the labels of a prepared folder."""

    kind: str
    """Kind of task, as in ``task.kind``."""
    columns: tuple[str, ...]
    """Label columns of the table."""
    classes: tuple[str, ...] = ()
    """Names of the classes; of a binary task (negative, positive); empty for multilabel and regression."""

    @classmethod
    def load(cls, folder: Path) -> tuple[Self, dict[str, Any]]:
        """Read the names from a prepared folder, and the facts that are stored beside them.

        Raises:
            ValueError: if the folder has no labels, or ``labels.json`` is damaged.
        """
        path = folder / LABELS_FILE
        try:
            facts = json.loads(path.read_text())
            names = cls(facts.pop("kind"), tuple(facts.pop("columns")), tuple(facts.pop("classes")))
        except (FileNotFoundError, NotADirectoryError):
            raise ValueError(
                f"{folder} holds no labelled proteins: no {LABELS_FILE}; run make data with the fine-tuning "
                "configuration first, or choose another data.path"
            ) from None
        except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"{path} is damaged ({error!r}); delete the folder and run make data again"
            ) from None
        return names, facts


class LabelledRecords(RecordSplit):
    """One split of a prepared folder with labels; unit n is record n.

    Raises:
        ValueError: if the folder has no labels, lacks the split, or is damaged.
    """

    schemas: type[LabelNames] = LabelNames
    """Class of ``schema``."""

    def __init__(self, folder: str | Path, split: Split) -> None:
        self.schema, self.facts = self.schemas.load(Path(folder))
        super().__init__(folder, split)

    def labels(self, units: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
        """Return the labels of records, shape (N, columns); NaN for missing ones."""
        shape = (len(units), len(self.schema.columns))
        return np.array(list(self._labels(units)), dtype=np.float32).reshape(shape)

    def token_labels(self, units: npt.NDArray[np.int64]) -> list[npt.NDArray[np.int64]]:
        """Return the classes of the tokens of each record, (length,); ``IGNORED`` for unknown ones."""
        return [values.astype(np.int64) for values in self._labels(units)]

    def ids(self, units: npt.NDArray[np.int64]) -> list[str]:
        """Return the ids of records, as the table has them."""
        return [batch.column("id")[row].as_py() for batch, row in self._rows(units)]

    def _labels(self, units: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[Any]]:
        for batch, row in self._rows(units):
            yield numpy_numbers(batch.column(LABEL_COLUMN)[row].values)

    def _rows(self, units: npt.NDArray[np.int64]) -> Iterator[tuple[pa.RecordBatch, int]]:
        numbers = np.searchsorted(self._first_unit, units, side="right") - 1
        rows = units - self._first_unit[numbers]
        for number, row in zip(numbers.tolist(), rows.tolist(), strict=True):
            yield self.record_batches[number], row
