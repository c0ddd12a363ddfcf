"""FASTA files read as tables: an id, a text, and the words ``NAME=value`` of biotrainer's headers.

The text is a protein, the labels of its residues, or a mask of them.
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.data.fasta import RECORD_START, SourceReader, single_records
from seqlm.training.data.limits import Limits
from seqlm.training.data.table_rows import Cell, Problems, Row

ID = "id"
"""Column of the ids."""
PARTNER = "INTERACTOR"
"""Word with the second protein of a pair."""
WORDS = ("TARGET", "SET", "VALIDATION", "MASK", PARTNER)
"""Names of biotrainer's words in headers (biotrainer, docs/data_standardization.md)."""
_WORD = re.compile(rf"({'|'.join(WORDS)})=(\S+)")


@dataclass(frozen=True)
class _FastaRecord:
    """One record of a FASTA file."""

    where: str
    cells: dict[str, Cell]


class FastaTable:
    """FASTA file whose records are rows. It is held in memory.

    Args:
        path: file.
        text: name of the column with the text of the records.

    Raises:
        ValueError: if the file is not FASTA or cannot be read.
    """

    title = "FASTA"

    def __init__(self, path: Path, text: str) -> None:
        self.path = path
        self.text = text
        self._records = list(self._read())
        found = {name for record in self._records for name in record.cells}
        self.header = [ID, text, *(name for name in WORDS if name in found)]
        """Names of the columns."""

    def rows(self, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
        """Iterate over the records with these columns, as ``Table.rows`` does.

        Raises:
            ValueError: if the file lacks a column.
        """
        missing = [name for name in columns if name not in self.header]
        if missing:
            raise ValueError(
                f"{self.path} is FASTA and has no {missing[0]!r}; it has {', '.join(map(repr, self.header))}"
            )
        for record in self._records:
            yield record.where, {name: record.cells.get(name) for name in columns}

    def _read(self) -> Iterator[_FastaRecord]:
        limits = Limits.for_workers(1)
        with closing(SourceReader(self.path)) as reader:
            for block in reader.blocks(RECORD_START, limits.block_bytes, limits.record_bytes):
                for record in single_records(block):
                    header, _, text = record.data[1:].decode(errors="replace").partition("\n")
                    cells: dict[str, Cell] = dict(_WORD.findall(header))
                    cells[ID] = next(iter(header.split(maxsplit=1)), None)
                    cells[self.text] = "".join(text.split()) or None
                    yield _FastaRecord(f"{self.path}:{record.first_line}", cells)
