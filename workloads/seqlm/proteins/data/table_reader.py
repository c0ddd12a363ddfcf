"""Rows of tables of proteins as blocks of records."""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path

from seqlm.proteins.reading.columns import Role, chosen_columns
from seqlm.training.data.limits import Limits
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_forms import TableForm
from seqlm.training.data.table_rows import Cell, Problems, Table, TableUse
from seqlm.training.data.workspace import source_file

from .blocks import AnyBlock, RowBlock
from .sources import NamedColumns

COLUMN_FIELDS = {Role.ID: "data.id_column", Role.SEQUENCE: "data.sequence_column"}
"""Fields of the run file that name the columns of tables."""
SOURCE_TABLE = TableUse(fields=" and ".join(COLUMN_FIELDS.values()), other_formats="FASTA")
ROW_BYTES = 100
"""Bytes of memory of a row besides its texts."""


class UnevenRows(Problems):
    """Rows that a table cannot read, since the last call of ``taken``."""

    def __init__(self) -> None:
        super().__init__()
        self._rows: list[tuple[str, str]] = []

    def add(self, where: str, text: str, kind: str = "") -> None:
        self._rows.append((where, text))

    def taken(self) -> list[tuple[str, str]]:
        """Return the places and reasons of the rows since the last call."""
        found = self._rows
        self._rows = []
        return found


class TableReader:
    """One pass over a table.

    Args:
        path: file.
        form: form of the table.
        mark: text between the file and the position of a row in messages.
        columns: columns that the run file names.
        numbers: ids for the rows if the table has no column of ids.
        on_bytes: function that gets the number of bytes that were read.

    Raises:
        ValueError: if the table lacks the columns, or it is not clear which ones they are.
    """

    def __init__(
        self,
        path: Path,
        form: TableForm,
        *,
        mark: str,
        columns: NamedColumns,
        numbers: Iterator[int],
        on_bytes: Callable[[int], object],
    ) -> None:
        self._path = path
        self._mark = mark
        self._table = Table(path, SOURCE_TABLE, form)
        self._numbers = numbers
        self._on_bytes = on_bytes
        self._columns = chosen_columns(
            self._table.header,
            str(path),
            id_column=columns.id,
            sequence_column=columns.sequence,
            fields=COLUMN_FIELDS,
        )
        if form.source is None:  # a structure reports its chains
            note_once(f"{path} is {form.title}; {self._columns.describe()}")

    def blocks(self, limits: Limits) -> Iterator[AnyBlock]:
        """Yield the rows.

        Raises:
            ValueError: if the file cannot be read, or has no row.
        """
        columns = self._columns
        wanted = [columns.sequence] if columns.id is None else [columns.id, columns.sequence]
        uneven = UnevenRows()
        block = self._new_block()
        size = 0
        is_empty = True
        # A last row of None is the end, so that uneven rows behind the others are not forgotten.
        for row in itertools.chain(self._table.rows(wanted, uneven), [None]):
            for where, reason in uneven.taken():
                position = self._position(where)
                block.uneven[position] = reason
                self._add(block, position, b"", b"")
                size += ROW_BYTES + len(reason)
            if row is not None:
                where, cells = row
                name = self._id(cells)
                sequence = cell_bytes(cells[columns.sequence])
                self._add(block, self._position(where), name, sequence)
                size += ROW_BYTES + len(name) + len(sequence)
            is_full = size >= limits.block_bytes or len(block.positions) >= limits.block_records
            if block.positions and (is_full or row is None):
                yield block
                is_empty = False
                block = self._new_block()
                size = 0
        if is_empty:
            raise ValueError(f"{self._path} has no row below its header; give at least one")
        self._on_bytes(self._path.stat().st_size)

    def sha256(self) -> str:
        """Return the SHA-256 of the file as it lies on disk."""
        return source_file(self._path, self._path.name).sha256

    def close(self) -> None:
        """Do nothing: the file is closed after its last row."""

    def _new_block(self) -> RowBlock:
        return RowBlock(str(self._path), self._mark)

    def _position(self, where: str) -> int:
        return int(where[len(f"{self._path}{self._mark}") :])

    def _id(self, cells: dict[str, Cell]) -> bytes:
        if self._columns.id is None:
            return str(next(self._numbers)).encode()
        return cell_bytes(cells[self._columns.id])

    @staticmethod
    def _add(block: RowBlock, position: int, name: bytes, sequence: bytes) -> None:
        block.positions.append(position)
        block.ids.append(name)
        block.sequences.append(sequence)


def cell_bytes(cell: Cell) -> bytes:
    """Return the text of a cell; empty if it has none, or is a list."""
    return cell.encode() if isinstance(cell, str) else b""
