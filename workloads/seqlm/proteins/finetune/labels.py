"""Labels of a task, and the conversion of their text in a table to numbers.

A protein of a sequence task has one number per label column: 0 or 1 (binary, multilabel), the index of its
class (multiclass) or a measurement (regression). A missing label is NaN. A protein of a residue task has the
index of a class for each residue, or ``IGNORED``.
"""

import json
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.training.data.labelled_records import LABELS_FILE, LabelNames
from seqlm.training.data.manifest import IGNORED
from seqlm.training.data.table_rows import Problems

from .residue_cells import NO_LABEL, Mask, counted_items, residue_items, residue_mask
from .table import TRUTH, Record, first_of
from .task_kinds import TASK_KINDS, TaskKind

Floats = npt.NDArray[np.float32]
Classes = npt.NDArray[np.int16]

SHOWN_CLASSES = 5
"""Largest number of classes in a message."""
UNKNOWN_RESIDUE = "-"
"""Text of a residue's label that is not known, unless a class has this name."""
MAX_UNKNOWN_SHARE = 0.2
"""Share of residues without a label above which a preparation warns: DSSP writes ``-`` for a coil."""
MISSING_WORDS = frozenset(("na", "nan", "n/a", "#n/a", "<na>", "null", "none", "missing"))
"""Words in lower case that programs write for a missing value."""
MISSING_LETTERS = frozenset((".", "?", "X", "x"))
"""Letters that programs write for the label of a residue that is not known."""
MAX_CLASSES = 1000


@dataclass(frozen=True)
class LabelSchema(LabelNames):
    """Names of the labels and outputs of a task; ``kind`` is one of ``TASK_KINDS``."""

    @property
    def task(self) -> TaskKind:
        return TASK_KINDS[self.kind]

    @property
    def num_outputs(self) -> int:
        """Number of logits or values that a model computes for a protein, or for a residue."""
        return len(self.output_names)

    @property
    def output_names(self) -> tuple[str, ...]:
        return self.classes if self.task.one_of_many else self.columns


@dataclass(frozen=True)
class Labels:
    """Labels of all records, in their order."""

    schema: LabelSchema
    arrays: list[npt.NDArray[Any]]
    """(columns,) float32 for each record, or (length,) int16 in a residue task."""
    masks: list[Mask | None]
    """Mask of the residues of each record; None without one. Masked residues have no label."""

    def has_any(self, index: int) -> bool:
        """Return whether a record has a label."""
        array = self.arrays[index]
        known = array != IGNORED if self.schema.task.per_residue else np.isfinite(array)
        return bool(known.any())


def read_labels(
    kind: TaskKind,
    columns: Sequence[str],
    classes: Sequence[str],
    records: Sequence[Record],
    mask_columns: Sequence[str] = (),
) -> Labels:
    """Read the label cells of all records.

    Args:
        kind: kind of the task.
        columns: label columns: one, or any number for multilabel and regression.
        classes: names of the classes in their order, (negative, positive) for a binary task. If it is empty,
            the classes are the sorted values in the table.
        records: records of the table.
        mask_columns: columns with masks of residues.

    Raises:
        ValueError: for columns and classes that do not fit the kind, and for bad cells with their lines.
    """
    _check_columns(kind, columns, classes)
    problems = Problems()
    masks = [residue_mask(record, mask_columns, problems) for record in records]
    problems.raise_if_any(f"the mask column(s) {', '.join(mask_columns)}")
    if kind.one_of_many and not classes:
        classes = _found_classes(kind, columns[0], records, masks)
    if kind.two_classes and not classes:
        schema = LabelSchema(kind.name, tuple(columns), (f"not {columns[0]}", columns[0]))
    else:
        schema = LabelSchema(kind.name, tuple(columns), tuple(classes))
    arrays: list[npt.NDArray[Any]]
    if kind.per_residue:
        arrays = [
            _residue_classes(record, mask, columns[0], schema.classes, problems)
            for record, mask in zip(records, masks, strict=True)
        ]
    else:
        names = {name: float(place) for place, name in enumerate(classes)}
        rows = (
            [_number(record, name, kind, names, problems) for name in columns] for record in records
        )
        arrays = [np.array(row, dtype=np.float32) for row in rows]
    problems.raise_if_any(f"the label column(s) {', '.join(columns)}")
    return Labels(schema, arrays, masks)


def label_notes(labels: Labels) -> Iterator[str]:
    """Yield notes and warnings about labels that may not mean what they were taken for."""
    schema = labels.schema
    by_spelling: dict[str, list[str]] = {}
    for name in schema.classes:
        by_spelling.setdefault(" ".join(name.lower().split()), []).append(name)
    for alike in by_spelling.values():
        if len(alike) > 1:
            yield (
                f"warning: the classes {', '.join(map(repr, alike))} differ in case or blanks only, and are "
                "learned as different ones; write them in one way if they are one class"
            )
    if schema.task.per_residue:
        yield from _unknown_residues(labels)


def _unknown_residues(labels: Labels) -> Iterator[str]:
    """Yield the share of residues without a label in the proteins that have labels."""
    num_residues = 0
    num_masked = 0
    num_unknown = 0
    for array, mask in zip(labels.arrays, labels.masks, strict=True):
        without = int((array == IGNORED).sum())
        if without < len(array):
            masked = 0 if mask is None else int((~mask).sum())
            num_residues += len(array)
            num_masked += masked
            num_unknown += without - masked
    share = num_unknown / max(num_residues - num_masked, 1)
    masked_text = (
        f" and {num_masked:,} ({num_masked / num_residues:.1%}) are masked" if num_masked else ""
    )
    yield (
        f"labels of residues: {num_residues:,}, of which {num_unknown:,} ({share:.1%}) have none{masked_text}"
    )
    if share > MAX_UNKNOWN_SHARE:
        classes = ", ".join([*labels.schema.classes, f'"{UNKNOWN_RESIDUE}"'])
        yield (
            f"warning: {share:.0%} of the residues have no label, which is written {UNKNOWN_RESIDUE!r}, and "
            f"are not learned from. If it is a class, such as the coil of DSSP, set task.classes: [{classes}]"
        )


def class_counts(schema: LabelSchema, arrays: Iterable[npt.NDArray[Any]]) -> npt.NDArray[np.int64]:
    """Return the count of each class.

    Args:
        schema: labels of the task.
        arrays: labels of one or more proteins each, one protein after the other.

    Returns:
        Shape (columns, 2), negatives and positives, if binary or multilabel; (1, classes) if multiclass or
        residue; (columns, 0) for regression, which has no classes.
    """
    if schema.task.measured:
        return np.zeros((len(schema.columns), 0), dtype=np.int64)
    shape = (1, len(schema.classes)) if schema.task.one_of_many else (len(schema.columns), 2)
    counts = np.zeros(shape, dtype=np.int64)
    for array in arrays:
        for column, row in zip(array.reshape(-1, len(counts)).T, counts, strict=True):
            known = column[np.isfinite(column) & (column >= 0)].astype(np.int64)
            row += np.bincount(known, minlength=shape[1])
    return counts


def save_schema(folder: Path, schema: LabelSchema, facts: dict[str, Any]) -> None:
    (folder / LABELS_FILE).write_text(json.dumps({**asdict(schema), **facts}, indent=1) + "\n")


def _check_columns(kind: TaskKind, columns: Sequence[str], classes: Sequence[str]) -> None:
    if not columns:
        raise ValueError("task.label_columns: got none; name the table's column(s) of labels")
    if len(set(columns)) < len(columns):
        raise ValueError(f"task.label_columns: got {list(columns)}; name each column once")
    if len(columns) > 1 and not kind.several_columns:
        raise ValueError(
            f"task.label_columns: got {len(columns)} columns; a {kind.name} task has one "
            "(several columns of 0 and 1 are kind: multilabel)"
        )
    if classes and kind.several_columns:
        raise ValueError(
            f"task.classes: got {list(classes)}; a {kind.name} task has no classes and names its outputs "
            "after the label columns; remove task.classes"
        )
    if len(set(classes)) < len(classes):
        raise ValueError(f"task.classes: got {list(classes)}; name each class once")
    if classes and kind.two_classes and len(classes) != 2:
        raise ValueError(
            f"task.classes: got {list(classes)}; a binary task has two, the negative one first, "
            "or none where the labels are 0 and 1"
        )


def _found_classes(
    kind: TaskKind, column: str, records: Sequence[Record], masks: Sequence[Mask | None]
) -> tuple[str, ...]:
    found: set[str] = set()
    for record, mask in zip(records, masks, strict=True):
        cell = record.cells[column]
        if kind.per_residue:
            found.update(counted_items(residue_items(cell), mask))
        elif isinstance(cell, str):
            found.add(cell)
    found.discard(NO_LABEL)
    if kind.per_residue:
        found.discard(UNKNOWN_RESIDUE)
    missing = {name for name in found if name.lower() in MISSING_WORDS}
    if kind.per_residue:
        missing |= found & MISSING_LETTERS
    if missing:
        classes = ", ".join(sorted(found - missing)[:SHOWN_CLASSES])
        written = "'-' for such residues" if kind.per_residue else "nothing in such cells"
        raise ValueError(
            f"the label column {column!r} has {', '.join(map(repr, sorted(missing)))} beside {classes}; "
            f"programs write it where a label is missing. Write {written}, or name it in task.classes if "
            "it is a class"
        )
    if not 2 <= len(found) <= MAX_CLASSES:
        raise ValueError(
            f"the label column {column!r} has {len(found)} different values ({first_of(sorted(found))}); "
            f"a {kind.name} task has 2 to {MAX_CLASSES} classes. Numbers to be predicted as such are "
            "kind: regression"
        )
    if all(name.isascii() and name.isdigit() for name in found):
        return tuple(sorted(found, key=int))
    return tuple(sorted(found))


def _number(
    record: Record, column: str, kind: TaskKind, names: dict[str, float], problems: Problems
) -> float:
    cell = record.cells[column]
    if cell is None:
        return math.nan
    if not isinstance(cell, str):
        problems.add(
            record.where, f"record {record.id}: a list in column {column!r}, expected one value"
        )
        return math.nan
    if kind.measured:
        try:
            value = float(cell)
        except ValueError:
            value = math.nan
        if abs(value) <= float(np.finfo(np.float32).max):  # which is false for NaN
            return value
        allowed = "a number that 32 bits hold, or nothing where it was not measured"
    elif names:
        if cell in names:
            return names[cell]
        allowed = f"one of {', '.join(names)}"
    else:
        if cell.lower() in TRUTH:
            return float(TRUTH[cell.lower()])
        allowed = "0 or 1 (other names are given as task.classes: [negative, positive])"
    problems.add(
        record.where,
        f"record {record.id}: {cell[:40]!r} in column {column!r}; allowed is {allowed}",
    )
    return math.nan


def _residue_classes(
    record: Record,
    mask: Mask | None,
    column: str,
    classes: tuple[str, ...],
    problems: Problems,
) -> Classes:
    names = counted_items(residue_items(record.cells[column]), mask)
    result = np.full(len(record.tokens), IGNORED, dtype=np.int16)
    if names and len(names) != len(record.tokens):
        problems.add(
            record.where,
            f"record {record.id}: {len(names)} labels in column {column!r} for {len(record.tokens)} "
            "residues; allowed are as many letters, or as many names with blanks between them",
        )
        return result
    places = {
        NO_LABEL: IGNORED,
        UNKNOWN_RESIDUE: IGNORED,
        **{name: place for place, name in enumerate(classes)},
    }
    for position, name in enumerate(names):
        if name not in places:
            problems.add(
                record.where,
                f"record {record.id}: {name!r} at residue {position + 1} in column {column!r}; allowed are "
                f"{', '.join(classes)} and {UNKNOWN_RESIDUE!r} for none",
            )
            return result
        result[position] = places[name]
    return result
