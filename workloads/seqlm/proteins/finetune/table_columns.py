"""Columns of a labelled table: those that the run file names, and those that are found.

A format of the field names its own columns. Otherwise well-known names decide
(``seqlm.proteins.reading.columns``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from seqlm.proteins.config import SplitConfig, TaskConfig
from seqlm.proteins.reading.columns import (
    Role,
    format_of,
    id_column_of,
    listed,
    named,
    only_one,
    sequence_column_of,
    well_known_column,
)
from seqlm.proteins.reading.field_formats import FieldFormat, FormatSplit

from .task_kinds import TASK_KINDS

FIELDS: Mapping[Role, str] = {
    Role.ID: "task.id_column",
    Role.SEQUENCE: "task.sequence_column",
    Role.MUTATION: "task.mutation_column",
    Role.LABEL: "task.label_columns",
    Role.MASK: "task.mask_columns",
    Role.SPLIT: "task.split.column",
}
"""Fields of the run file that name the columns of a role."""
SEQUENCE_RANKS = 3
"""Last rank of the names of sequences that count in a table with names of variants."""


def completed(
    task: TaskConfig, header: Sequence[str], known: FieldFormat | None, place: str
) -> TaskConfig:
    """Return a task with the columns of labels, masks and splits that the table has.

    Args:
        task: task of the run file.
        header: names of all columns, those of files beside the proteins included.
        known: format of the field that the table has.
        place: file, for messages.

    Raises:
        ValueError: if columns are ambiguous, or there are no labels.
    """
    labels = task.label_columns or _labels(task, header, known, place)
    others = [name for name in header if name not in labels]
    return replace(
        task,
        label_columns=tuple(labels),
        mask_columns=task.mask_columns or _masks(task, others, known, place),
        split=_split(task.split, others, known, place),
    )


@dataclass(frozen=True)
class VariantColumns:
    """Columns of a table of variants of one protein, which has sequences, names of variants, or both."""

    id: str | None
    """Column with the ids, which may be that of the names; None if the table has neither."""
    sequence: str | None
    mutation: str | None
    format: FieldFormat | None


def variant_columns(task: TaskConfig, header: Sequence[str], place: str) -> VariantColumns:
    """Return the columns of a table of variants of one protein.

    Args:
        task: task of the run file.
        header: names of all columns.
        place: file, for messages.

    Raises:
        ValueError: if it has neither sequences nor names of variants, or columns are ambiguous.
    """
    known = format_of(header)
    mutation = task.mutation_column
    if mutation is None:
        of_format = named(header, known.mutations) if known is not None else []
        field = FIELDS[Role.MUTATION]
        mutation = only_one(of_format, Role.MUTATION, place, field)
        mutation = mutation or well_known_column(header, Role.MUTATION, place, field)
    sequence = task.sequence_column
    if sequence is None and mutation is None:
        fields = (
            f"{FIELDS[Role.SEQUENCE]}, or that of the variants' names in {FIELDS[Role.MUTATION]}"
        )
        sequence = sequence_column_of(header, known, place, fields)
    elif sequence is None:
        sequence = _sequence_beside_names(header, known, place)
    name = task.id_column or id_column_of(header, known, place, FIELDS[Role.ID])
    return VariantColumns(name or mutation, sequence, mutation, known)


def _sequence_beside_names(
    header: Sequence[str], known: FieldFormat | None, place: str
) -> str | None:
    """Return the column of sequences of a table that names variants; None if it has none."""
    field = FIELDS[Role.SEQUENCE]
    of_format = named(header, known.sequences) if known is not None else []
    column = only_one(of_format, Role.SEQUENCE, place, field)
    # Vaguer names, such as protein, often stand for something else beside names of variants.
    return column or well_known_column(header, Role.SEQUENCE, place, field, SEQUENCE_RANKS)


def _labels(
    task: TaskConfig, header: Sequence[str], known: FieldFormat | None, place: str
) -> Sequence[str]:
    kind = TASK_KINDS[task.kind]
    found = named(header, known.labels_for(kind.name)) if known is not None else []
    if found and kind.several_columns:
        return found
    field = FIELDS[Role.LABEL]
    one = only_one(found, Role.LABEL, place, field)
    if one is None and kind.name != "multilabel":
        one = well_known_column(header, Role.LABEL, place, field)
    if one is None:
        raise ValueError(
            f"{field}: got none, and {place} has no column that is known for them; name its column(s) of "
            f"labels. It has {listed(header)}"
        )
    return [one]


def _masks(
    task: TaskConfig, header: Sequence[str], known: FieldFormat | None, place: str
) -> tuple[str, ...]:
    if not TASK_KINDS[task.kind].per_residue:
        return ()
    if known is not None and (of_format := named(header, known.masks)):
        return tuple(of_format)
    one = well_known_column(header, Role.MASK, place, FIELDS[Role.MASK])
    return () if one is None else (one,)


def _split(
    split: SplitConfig, header: Sequence[str], known: FieldFormat | None, place: str
) -> SplitConfig:
    """Return the rule of the split: the run file's, or else that of the format or of a column ``split``."""
    by_other = (split.cluster, split.cluster_column, split.clusters, split.variants)
    if split.column is None and any(rule is not None for rule in by_other):
        return split
    of_format = known.split if known is not None else None
    if of_format is not None:
        candidates = named(header, of_format.columns)
        column = split.column or (candidates[0] if candidates else None)
        if column in candidates:
            return _with_format(replace(split, column=column), header, of_format)
    if split.column is not None:
        return split
    column = well_known_column(header, Role.SPLIT, place, FIELDS[Role.SPLIT])
    return replace(split, column=column)


def _with_format(split: SplitConfig, header: Sequence[str], of_format: FormatSplit) -> SplitConfig:
    """Return a rule with the values of the format, unless the run file has values."""
    if split.validation or split.test or split.fold is not None or split.validation_column:
        return split
    marked = named(header, [of_format.validation_column] if of_format.validation_column else [])
    return replace(
        split,
        validation=of_format.validation,
        test=of_format.test,
        fold=of_format.fold,
        validation_column=marked[0] if marked else None,
    )


def described(task: TaskConfig, columns: Sequence[str]) -> str:
    """Return the roles of some columns for the line that says what was read; empty without any.

    Args:
        task: task with all its columns.
        columns: columns of one file.
    """
    split = task.split
    roles = {
        "labels": task.label_columns,
        "mask": task.mask_columns,
        "split": (split.column,),
        "validation": (split.validation_column,),
        "clusters": (split.cluster_column,),
    }
    parts = []
    for role, names in roles.items():
        shown = [name for name in names if name in columns]
        if shown:
            parts.append(f"{role}: {', '.join(filter(None, shown))}")
    if split.fold is not None and split.column in columns:
        parts.append(f"fold of the test: {split.fold}")
    return ", ".join(parts)
