"""Rows of AIRR as records of cells: the chains of one cell make one record."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from seqlm.proteins.finetune.table import Record
from seqlm.proteins.reading.chain_columns import CellColumns
from seqlm.proteins.reading.chains import Chain, ChainError, Complex
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.strict_yaml import shown

ORDER = ("IGH", "TRB", "TRD", "IGK", "IGL", "TRA", "TRG")
"""Order of the chains of a cell, whatever that of the rows. Chains with a D gene come first, as in VH|VL."""


def paired(records: Iterable[Record | Reject], columns: CellColumns) -> Iterator[Record | Reject]:
    """Yield a record for each cell, after the rejects and the rows without a cell.

    Args:
        records: rows of the table, and rows that cannot be used.
        columns: columns by which rows belong to cells.
    """
    cells: dict[str, list[Record]] = {}
    for record in records:
        cell = None if isinstance(record, Reject) else record.cells[columns.cell]
        if isinstance(record, Reject) or not isinstance(cell, str):
            yield record
        else:
            cells.setdefault(cell, []).append(record)
    for cell, rows in cells.items():
        yield _of_cell(cell, rows, columns)


def _of_cell(cell: str, rows: Sequence[Record], columns: CellColumns) -> Record | Reject:
    """Return the record of a cell."""
    chains: list[Chain] = []
    for row in rows:
        name = columns.chain_of(row.cells)
        if row.complex is not None or name is None:
            reason = "has several chains" if name else f"names no chain in {columns.names[0]!r}"
            return _wrong(cell, row.where, f"row {shown(row.id)} {reason}")
        chains.append(Chain(name, np.frombuffer(row.tokens, dtype=np.uint8)))
    chains.sort(key=_place)
    try:
        found = Complex(cell, tuple(chains))
    except ChainError as error:
        return _wrong(cell, rows[0].where, f"{error}, or keep one row of each")
    tokens = b"".join(chain.tokens.tobytes() for chain in chains)
    return Record(cell, rows[0].where, tokens, rows[0].cells, found)


def _place(chain: Chain) -> tuple[int, str]:
    """Return the place of a chain in a record."""
    place = ORDER.index(chain.name) if chain.name in ORDER else len(ORDER)
    return place, chain.name


def _wrong(cell: str, where: str, reason: str) -> Reject:
    """Return the reject of a cell."""
    return Reject(Kind.BAD_CHAINS, where, f"cell {shown(cell)}: {reason}", cell)
