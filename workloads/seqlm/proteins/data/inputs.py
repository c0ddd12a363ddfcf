"""Files of proteins that a preparation reads, as blocks of records.

Blocks of FASTA are parsed by workers. The rows of tables are read by this process.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Protocol

from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.training.data.limits import Limits
from seqlm.training.data.table_forms import Layout, TableForm

from .blocks import LINE_MARK, ROW_MARK, AnyBlock
from .fasta import RECORD_START, SourceReader
from .sources import FOUND_BY_NAME, NamedColumns, ProteinFiles


class InputReader(Protocol):
    """One pass over a file of proteins."""

    def blocks(self, limits: Limits) -> Iterator[AnyBlock]:
        """Yield the records."""

    def sha256(self) -> str:
        """Return the SHA-256 of the file as it lies on disk; call after the last block."""

    def close(self) -> None:
        """Close the file."""


@dataclass(frozen=True)
class ProteinInput:
    """File of proteins."""

    path: Path
    name: str
    """Name in the manifest."""
    columns: NamedColumns = FOUND_BY_NAME

    @cached_property
    def form(self) -> TableForm | None:
        """Form of a table; None for FASTA."""
        return table_of_proteins(self.path)

    @property
    def mark(self) -> str:
        """Text between the file and the position of a record in messages."""
        has_lines = self.form is None or self.form.layout is Layout.TEXT
        return LINE_MARK if has_lines else ROW_MARK

    def where(self, position: int) -> str:
        """Return the place of a record for messages."""
        return f"{self.path}{self.mark}{position}"

    def reader(
        self, numbers: Iterator[int], on_bytes: Callable[[int], object] = lambda count: None
    ) -> InputReader:
        """Return a reader for one pass over the file.

        Args:
            numbers: ids for the rows of tables without a column of ids.
            on_bytes: function that gets the number of bytes that were read.
        """
        if self.form is None:
            return FastaReader(self.path, on_bytes)
        from .table_reader import TableReader  # imports Parquet, which FASTA does not need

        return TableReader(
            self.path,
            self.form,
            mark=self.mark,
            columns=self.columns,
            numbers=numbers,
            on_bytes=on_bytes,
        )


def inputs_of(files: ProteinFiles) -> list[ProteinInput]:
    """Return the files of proteins with their names in the manifest."""
    names = files.manifest_names[: len(files.proteins)]
    return [
        ProteinInput(path, name, files.columns)
        for path, name in zip(files.proteins, names, strict=True)
    ]


class FastaReader:
    """One pass over a FASTA file."""

    def __init__(self, path: Path, on_bytes: Callable[[int], object]) -> None:
        self._reader = SourceReader(path, on_bytes=on_bytes)

    def blocks(self, limits: Limits) -> Iterator[AnyBlock]:
        """Yield the records."""
        return self._reader.blocks(RECORD_START, limits.block_bytes, limits.record_bytes)

    def sha256(self) -> str:
        """Return the SHA-256 of the file as it lies on disk; call after the last block."""
        return self._reader.sha256

    def close(self) -> None:
        self._reader.close()
