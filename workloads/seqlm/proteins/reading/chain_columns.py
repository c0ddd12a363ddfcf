"""Columns of tables whose rows are chains of one record: cells of single-cell sequencing in the form of AIRR.

A row of AIRR (https://docs.airr-community.org/en/stable/datarep/rearrangements.html) is a chain. Rows with
one ``cell_id`` come from one cell, and ``locus`` says which chain a row is. Without ``locus``, the genes
(``v_call``) say it, whose names begin with the same letters.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .columns import normalized

CELL = "cell_id"
"""Column with the cell of a row."""
WORDS = ("locus", "chain_type")
"""Columns with the chain of a row."""
GENES = ("v_call", "j_call", "c_call")
"""Columns with genes, whose names begin with the locus."""
_LOCUS = re.compile(r"IG[HKL]|TR[ABDG]", re.IGNORECASE)
"""Locus at the beginning of a gene's name."""


@dataclass(frozen=True)
class CellColumns:
    """Columns by which rows of chains belong to cells."""

    cell: str
    names: tuple[str, ...]
    """Columns that name the chain, the best first."""

    @property
    def all(self) -> tuple[str, ...]:
        """All these columns."""
        return (self.cell, *self.names)

    def chain_of(self, cells: Mapping[str, object]) -> str | None:
        """Return the name of the chain of a row; None if no column has one."""
        for column in self.names:
            cell = cells[column]
            if not isinstance(cell, str):
                continue
            locus = _LOCUS.match(cell)
            if locus is not None:
                return locus[0].upper()
            if normalized(column) in WORDS:
                return cell
        return None


def cell_columns(header: Sequence[str]) -> CellColumns | None:
    """Return the columns by which the rows of a table belong to cells; None if it has none."""
    by_name = {normalized(name): name for name in header}
    names = tuple(by_name[name] for name in (*WORDS, *GENES) if name in by_name)
    return CellColumns(by_name[CELL], names) if CELL in by_name and names else None
