"""Predictions of a run for a split with the labels, as arrays for its report and as a table for people."""

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.training.whole_file import write_whole, writing_whole

from .labels import UNKNOWN_RESIDUE, Floats, LabelSchema
from .task_kinds import THRESHOLD


@dataclass(frozen=True)
class Predictions:
    """Labels and outputs of a split.

    Shapes: N rows (proteins, or residues of a residue task), C columns of labels, L outputs.
    """

    ids: npt.NDArray[np.str_]
    """(proteins,) ids in the order of the rows."""
    offsets: npt.NDArray[np.int64]
    """(proteins + 1,) first row of each protein."""
    labels: Floats
    """(N, C) labels, NaN where a label is missing; C is 1 for a residue task."""
    outputs: Floats
    """(N, L) logits, or values in the labels' units."""
    lengths: npt.NDArray[np.int64]
    """(proteins,) numbers of residues; 0 in files of earlier versions, which lack them."""
    num_masked: int = 0
    """Number of masked residues of a residue task, whose labels are missing, too."""

    def residue_counts(self, schema: LabelSchema) -> dict[str, int]:
        """Return the numbers of residues that are scored, masked, or without a label, by name.

        Only residue tasks have such numbers.
        """
        if not schema.task.per_residue:
            return {}
        num_scored = int(np.isfinite(self.labels[:, 0]).sum())
        return {
            "scored_residues": num_scored,
            "masked_residues": self.num_masked,
            "unlabelled_residues": len(self.labels) - num_scored - self.num_masked,
        }

    def save(self, path: Path) -> None:
        """Write an npz archive, whole or not at all."""
        with writing_whole(path) as partial:
            np.savez_compressed(partial, **vars(self))

    @staticmethod
    def load(path: Path) -> "Predictions":
        """Read a file.

        Raises:
            OSError: if it cannot be read.
            ValueError: if ``save`` did not write it.
            KeyError: if it lacks an array.
        """
        with np.load(path, allow_pickle=False) as arrays:
            ids = arrays["ids"]
            lengths = arrays["lengths"] if "lengths" in arrays else np.zeros(len(ids), np.int64)
            num_masked = int(arrays["num_masked"]) if "num_masked" in arrays else 0
            return Predictions(
                ids,
                arrays["offsets"],
                arrays["labels"],
                arrays["outputs"],
                lengths,
                num_masked,
            )


def predictions_file(run_dir: Path, split: str) -> Path:
    return run_dir / f"predictions-{split}.npz"


def write_prediction_table(path: Path, schema: LabelSchema, found: Predictions) -> None:
    """Write a CSV file with one line per protein, whole or not at all.

    The columns are those of ``make predict`` with the labels:

    * classes: ``id``, ``length``, ``true``, ``label`` and a ``probability_<class>`` of each class. If labels
      do not exclude each other, ``true`` joins those of a protein with semicolons, and an unknown one ends in
      a question mark.
    * residue task: ``id``, ``length``, ``true`` and ``label``, with a class for each residue
    * regression: ``id``, ``length``, and ``true_<measurement>`` and ``<measurement>`` of each measurement

    A cell is empty where there is no label.
    """
    text = io.StringIO(newline="")
    csv.writer(text).writerows(_lines(schema, found))
    write_whole(path, text.getvalue())


def _lines(schema: LabelSchema, found: Predictions) -> Iterator[list[object]]:
    proteins = list(zip(found.ids.tolist(), found.lengths.tolist(), strict=True))
    task = schema.task
    if task.per_residue:
        yield ["id", "length", "true", "label"]
        separator = residue_separator(schema.classes)
        truth = _names(schema.classes, found.labels[:, 0], UNKNOWN_RESIDUE)
        predicted = _names(schema.classes, found.outputs.argmax(axis=1), UNKNOWN_RESIDUE)
        for protein, start, stop in zip(proteins, found.offsets, found.offsets[1:], strict=False):
            yield [
                *protein,
                separator.join(truth[start:stop]),
                separator.join(predicted[start:stop]),
            ]
        return
    values = task.values(found.outputs)
    rows = zip(proteins, found.labels.tolist(), values.tolist(), strict=True)
    if task.measured:
        titles: list[object] = ["id", "length"]
        for name in schema.columns:
            titles += [f"true_{name}", name]
        yield titles
        for protein, labels, row in rows:
            line: list[object] = list(protein)
            for measured, predicted_value in zip(labels, row, strict=True):
                line += [_text(measured), _text(predicted_value)]
            yield line
        return
    names = schema.classes[1:] if task.two_classes else schema.output_names
    yield ["id", "length", "true", "label", *(f"probability_{name}" for name in names)]
    for protein, labels, row in rows:
        if task.several_columns:
            # NaN is true, too.
            found_labels = [
                (name, label) for name, label in zip(names, labels, strict=True) if label
            ]
            true = ";".join(f"{name}?" if np.isnan(label) else name for name, label in found_labels)
            label = ";".join(
                name for name, value in zip(names, row, strict=True) if value >= THRESHOLD
            )
        else:
            place = np.argmax(row) if task.one_of_many else row[0] >= THRESHOLD
            true, label = _names(schema.classes, np.array([labels[0], place]), "")
        yield [*protein, true, label, *map(_text, row)]


def residue_separator(names: Sequence[str]) -> str:
    """Return the text between the classes of residues: nothing if each has one letter."""
    return "" if all(len(name) == 1 for name in names) else " "


def _names(classes: Sequence[str], places: npt.NDArray[Any], unknown: str) -> list[str]:
    """Return the names of classes by their numbers; NaN is ``unknown``."""
    return [classes[int(place)] if np.isfinite(place) else unknown for place in places]


def _text(value: float) -> str:
    return f"{value:.6g}" if np.isfinite(value) else ""
