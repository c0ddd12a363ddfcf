"""Predictions of a run for a split, with the labels: for its report, and as a table to look through."""

from __future__ import annotations

import csv
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from .labels import UNKNOWN_RESIDUE, Floats, LabelSchema


@dataclass(frozen=True)
class Predictions:
    """N proteins of a split, of a residue task N residues; C columns of labels, L outputs."""

    ids: npt.NDArray[np.str_]
    """(proteins,) in the order of the rows."""
    offsets: npt.NDArray[np.int64]
    """(proteins + 1,) first row of each."""
    labels: Floats
    """(N, C), NaN where there is none; of a residue task C is 1."""
    outputs: Floats
    """(N, L) logits, or values in the labels' units."""

    def save(self, path: Path) -> None:
        """As an npz archive, whole or not at all."""
        partial = path.with_name(path.name + ".partial")
        with partial.open("wb") as file:
            np.savez_compressed(
                file, ids=self.ids, offsets=self.offsets, labels=self.labels, outputs=self.outputs
            )
        os.replace(partial, path)

    @staticmethod
    def load(path: Path) -> Predictions:
        """Raises OSError, ValueError or KeyError for what ``save`` did not write."""
        with np.load(path, allow_pickle=False) as arrays:
            return Predictions(*(arrays[name] for name in ("ids", "offsets", "labels", "outputs")))


def predictions_file(run_dir: Path, split: str) -> Path:
    return run_dir / f"predictions-{split}.npz"


def write_prediction_table(path: Path, schema: LabelSchema, found: Predictions) -> None:
    """Write CSV with a line a protein, whole or not at all; a cell is empty where there is no label.

    Columns are ``id`` and, of classes that exclude each other, ``true``, ``predicted`` and a ``probability``
    of each class; of labels, ``true`` (0 or 1) and ``probability`` of each; of a regression, ``true`` and
    ``predicted`` of each measurement; of a residue task, ``true`` and ``predicted`` with a class a residue.
    """
    partial = path.with_name(path.name + ".partial")
    with partial.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(_lines(schema, found))
    os.replace(partial, path)


def _lines(schema: LabelSchema, found: Predictions) -> Iterator[list[str]]:
    ids = found.ids.tolist()
    task = schema.task
    if task.per_residue:
        yield ["id", "true", "predicted"]
        separator = "" if all(len(name) == 1 for name in schema.classes) else " "
        truth = _names(schema.classes, found.labels[:, 0], UNKNOWN_RESIDUE)
        predicted = _names(schema.classes, found.outputs.argmax(axis=1), UNKNOWN_RESIDUE)
        for name, start, stop in zip(ids, found.offsets, found.offsets[1:], strict=False):
            yield [name, separator.join(truth[start:stop]), separator.join(predicted[start:stop])]
        return
    if task.one_of_many:
        yield ["id", "true", "predicted", *(f"probability {name}" for name in schema.classes)]
        values = task.values(found.outputs)
        truth = _names(schema.classes, found.labels[:, 0], "")
        predicted = _names(schema.classes, values.argmax(axis=1), "")
        for name, true, said, row in zip(ids, truth, predicted, values.tolist(), strict=True):
            yield [name, true, said, *map(_text, row)]
        return
    names = schema.classes[1:] if task.two_classes else schema.columns
    what = "predicted" if task.measured else "probability"
    yield ["id", *(f"{column} {name}" for name in names for column in ("true", what))]
    values = task.values(found.outputs)
    for name, labels, row in zip(ids, found.labels.tolist(), values.tolist(), strict=True):
        yield [name, *(_text(value) for pair in zip(labels, row, strict=True) for value in pair)]


def _names(classes: Sequence[str], places: npt.NDArray[Any], unknown: str) -> list[str]:
    return [classes[int(place)] if np.isfinite(place) else unknown for place in places]


def _text(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""
