"""Counts of the proteins and labels of prepared data that are used or left out."""

import sys
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import REJECTS_FILE
from seqlm.training.data.manifest import IGNORED, Manifest
from seqlm.training.records import Split

from .labelled import LabelledSplit
from .labels import LabelSchema
from .variants.records import NOT_VARIANTS, VariantFacts

NO_LIMIT = sys.maxsize
"""Number of residues that no protein has."""


def label_counts(arrays: Iterable[npt.NDArray[Any]]) -> Counts:
    """Return the numbers of labels: one for each column of a protein, or one for each residue.

    Args:
        arrays: labels of proteins: numbers, NaN where one is missing, or classes of residues.
    """
    counts = Counts("labels")
    for array in arrays:
        known = array != IGNORED if np.issubdtype(array.dtype, np.integer) else np.isfinite(array)
        num_known = int(known.sum())
        counts.used += num_known
        counts.left_out[Kind.NO_LABEL] += array.size - num_known
    return counts


def prepared_counts(folder: Path) -> list[Counts]:
    """Return the numbers of proteins and labels of a prepared table."""
    manifest = Manifest.load(folder)
    names: list[Split] = [
        name for name in ("train", "validation", "test") if manifest.splits[name].records
    ]
    splits = [LabelledSplit(folder, name) for name in names]
    variants = VariantFacts.of(splits[0].facts)
    left_out = Counter(
        {
            Kind.REPEATED_MEASUREMENT: 0 if variants is None else variants.averaged,
            Kind.NO_LABEL: splits[0].facts["unlabelled_dropped"],
            Kind.REPEATED_SEQUENCE: manifest.duplicates_dropped,
            # Data of earlier versions have none of these.
            Kind.NO_ROW: splits[0].facts.get("rowless_dropped", 0),
            Kind.OTHER_SET: splits[0].facts.get("other_sets_dropped", 0),
        }
    )
    for kind, number in splits[0].facts.get(NOT_VARIANTS, {}).items():
        left_out[Kind(kind)] += number
    proteins = Counts("proteins", manifest.records, left_out)
    labels = label_counts(array for split in splits for array in labels_of(split))
    for split in splits:
        _move_masked(labels, split, NO_LIMIT)
    return [proteins, labels]


def split_counts(split: LabelledSplit, max_residues: int) -> list[Counts]:
    """Return the numbers of proteins, residues and labels of a split that are scored.

    Args:
        split: split of a prepared table.
        max_residues: number of residues of a protein that are read.
    """
    _, lengths = split.draw(0, split.num_units, 0, 0)
    num_read = int(np.minimum(lengths, max_residues).sum())
    counts = [Counts("proteins", split.num_units)]
    if num_read < lengths.sum():
        counts.append(
            Counts("residues", num_read, Counter({Kind.LONG: int(lengths.sum()) - num_read}))
        )
    of_read = labels_of(split)
    if split.schema.task.per_residue:
        of_read = [array[:max_residues] for array in of_read]
    labels = label_counts(of_read)
    _move_masked(labels, split, max_residues)
    return [*counts, labels]


def _move_masked(labels: Counts, split: LabelledSplit, max_residues: int) -> None:
    """Count the masked residues of a split as such, not as residues without a label."""
    num_masked = int(split.num_masked(np.arange(split.num_units), max_residues).sum())
    labels.left_out[Kind.NO_LABEL] -= num_masked
    labels.left_out[Kind.MASKED] += num_masked


def labels_of(split: LabelledSplit) -> Sequence[npt.NDArray[Any]]:
    """Return the labels of all proteins of a split."""
    units = np.arange(split.num_units)
    return split.token_labels(units) if split.schema.task.per_residue else [split.labels(units)]


def lines_of(folder: Path) -> list[str]:
    """Return the lines with the numbers of a prepared table."""
    rejects = folder / REJECTS_FILE
    variants = VariantFacts.of(LabelSchema.load(folder)[1])
    about = [] if variants is None else [variants.line]
    return about + [
        one.line(rejects if one.what == "proteins" and rejects.exists() else None)
        for one in prepared_counts(folder)
    ]
