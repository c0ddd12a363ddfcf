"""Cells with one item for each residue: labels, and masks of the residues that count.

A mask has 1 for a residue that counts, and 0 for one that is neither trained on nor scored, such as one that
a structure does not resolve. FLIP, biotrainer and NetSurfP write masks like this.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqlm.training.data.table_rows import Cell, Problems
from seqlm.training.strict_yaml import shown

from .table import TRUTH, Record

Mask = npt.NDArray[np.bool_]
"""Whether each residue counts, shape (length,)."""
NO_LABEL = ""
"""Item of a residue without a label."""


def residue_items(cell: Cell) -> Sequence[str]:
    """Return the items of a cell: those of a list, words of a text, or letters of a single word."""
    if isinstance(cell, str):
        words = cell.split()
        return words if len(words) > 1 else cell
    return cell or ()


def counted_items(items: Sequence[str], mask: Mask | None) -> Sequence[str]:
    """Return the items of a label cell, without those of masked residues.

    A cell of another length is returned as it is, because it is a mistake that is reported later.
    """
    if mask is None or len(items) != len(mask):
        return items
    return [item if counts else NO_LABEL for item, counts in zip(items, mask.tolist(), strict=True)]


def residue_mask(record: Record, columns: Sequence[str], problems: Problems) -> Mask | None:
    """Return the residues of a protein that count in all its masks; None if it has no mask.

    Args:
        record: protein.
        columns: columns with masks. An empty cell masks nothing.
        problems: record of the mistakes.
    """
    whole: Mask | None = None
    for column in columns:
        items = residue_items(record.cells[column])
        if not items:
            continue
        length = len(record.tokens)
        if len(items) != length:
            problems.add(
                record.where,
                f"record {record.id}: {len(items)} items in the mask {column!r} for {length} residues; "
                "allowed are as many digits, or as many numbers with blanks between them",
            )
            continue
        unknown = next((item for item in items if item.lower() not in TRUTH), None)
        if unknown is not None:
            problems.add(
                record.where,
                f"record {record.id}: {shown(unknown)} in the mask {column!r}; allowed are 1 for a residue "
                "that counts, and 0",
            )
            continue
        mask = np.array([TRUTH[item.lower()] for item in items], dtype=bool)
        whole = mask if whole is None else whole & mask
    return whole
