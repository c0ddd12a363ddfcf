"""Rows of CSV, TSV and Parquet files, of workbooks, and of files that a ``RecordSource`` reads.

Every cell becomes text, so that a value is read, checked and reported in one way whatever the format.
"""

import csv
import difflib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import IO, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from seqlm.training.strict_yaml import shown, shown_first

from .limits import Limits, check_row
from .parquet_file import parquet_batches
from .source_file import open_text
from .table_forms import Layout, TableForm, reader_of, table_form
from .workbook import workbook_rows

TABLE_FORMATS = "CSV (with commas or semicolons), TSV, Parquet or xlsx"
SHOWN_PROBLEMS = 10
WRONG_FIELDS = "fields"
"""Kind of a row that has another number of cells than the header."""
MAX_COMPARED = 1_000
"""Number of columns, and length of their names, among which a similar name is looked for."""

Cell: TypeAlias = str | tuple[str, ...] | None
"""Text of a cell, the texts of a list, or None for an empty cell."""
Row: TypeAlias = tuple[str, dict[str, Cell]]
"""Position of a row (file:line, or the row of a file without lines) and its cells by column."""


@dataclass
class Problems:
    """Mistakes in records: all are counted, the first ones are reported."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str, text: str, kind: str = "") -> None:
        """Add a mistake.

        Args:
            where: place of the record.
            text: description.
            kind: kind of the mistake, for those who count kinds.
        """
        self.count += 1
        if self.count <= SHOWN_PROBLEMS:
            self.first.append(f"{where}: {text}")

    def raise_if_any(self, what: str) -> None:
        """Raise a ValueError that lists the first problems, if there are any."""
        if not self.count:
            return
        more = (
            [f"... and {self.count - len(self.first)} more"] if self.count > len(self.first) else []
        )
        lines = "\n".join(f"  {line}" for line in [*self.first, *more])
        raise ValueError(f"{self.count} bad record(s) in {what}; correct or remove them:\n{lines}")


@dataclass(frozen=True)
class TableUse:
    """Purpose of a table, for messages about it."""

    fields: str
    """Fields of the run file that name the columns."""
    other_formats: str
    """Allowed formats besides tables."""


class Table:
    """Table in a file, whose header has been read.

    Args:
        path: file.
        use: purpose of the table.
        form: form of the file; by default, it is recognised.

    Raises:
        ValueError: if the file is no table or cannot be read.
    """

    def __init__(self, path: Path, use: TableUse, form: TableForm | None = None) -> None:
        found = form or table_form(path)
        if found is None:
            raise ValueError(f"{path} is not a table; give {TABLE_FORMATS} or {use.other_formats}")
        self.path = path
        self.form = found
        self._use = use
        self.header = self._header()
        """Names of the columns."""

    def rows(self, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
        """Iterate over the rows.

        Args:
            columns: columns to read.
            problems: record of the mistakes in rows, which are left out.

        Raises:
            ValueError: if the file cannot be read, or lacks a column.
        """
        _check_columns(self.path, self.header, columns, self._use)
        match self.form.layout:
            case Layout.PARQUET:
                return self._parquet_rows(columns)
            case Layout.WORKBOOK:
                return self._workbook_rows(columns)
            case Layout.RECORDS:
                return self._records(columns)
            case Layout.TEXT:
                return self._text_rows(columns, problems)

    def _header(self) -> list[str]:
        match self.form.layout:
            case Layout.PARQUET:
                with _reading_parquet(self.path):
                    return list(pq.read_schema(self.path).names)
            case Layout.WORKBOOK:
                return [_cell_text(cell).strip() for cell in next(workbook_rows(self.path), [])]
            case Layout.RECORDS:
                assert self.form.source is not None
                return list(self.form.source.header)
            case Layout.TEXT:
                with open_text(self.path, "") as stream, self._text_reader(stream) as reader:
                    return [name.strip() for name in next(reader, [])]

    @contextmanager
    def _text_reader(self, stream: IO[str]) -> Iterator["_TextRows"]:
        """Return the reader of a text, the header first; errors of the block name the line."""
        # The module's own bound of 128 KiB is below the longest records with a label for each token.
        csv.field_size_limit(Limits.for_workers(1).record_bytes)
        for _ in range(self.form.first_line - 1):
            stream.readline()
        reader = _TextRows(self.path, stream, self.form)
        try:
            yield reader
        except csv.Error as error:
            line = reader.line_num + self.form.first_line - 1
            raise ValueError(
                f"{self.path}:{line}: {error}; correct the quotes of this row"
            ) from None

    def _text_rows(self, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
        places = {name: self.header.index(name) for name in columns}
        num_columns = len(self.header)
        with open_text(self.path, "") as stream, self._text_reader(stream) as reader:
            next(reader, None)
            line = reader.line_num + self.form.first_line
            for fields in reader:
                where = f"{self.path}:{line}"
                line = reader.line_num + self.form.first_line
                if not fields:
                    continue
                if len(fields) != num_columns:
                    reason = f"{len(fields)} fields, the header has {num_columns}"
                    problems.add(where, reason, WRONG_FIELDS)
                    continue
                yield where, {name: fields[place].strip() or None for name, place in places.items()}

    def _parquet_rows(self, columns: Sequence[str]) -> Iterator[Row]:
        number = 0
        with _reading_parquet(self.path):
            for batch in parquet_batches(self.path, columns):
                values = {name: batch.column(name).to_pylist() for name in columns}
                for index in range(len(batch)):
                    number += 1
                    cells = {name: _cell(values[name][index]) for name in columns}
                    yield f"{self.path} row {number}", cells

    def _workbook_rows(self, columns: Sequence[str]) -> Iterator[Row]:
        places = {name: self.header.index(name) for name in columns}
        rows = workbook_rows(self.path)
        next(rows, None)
        for number, row in enumerate(rows, start=1):
            if any(cell is not None for cell in row):
                # A sheet drops the empty cells at the end of a row.
                cells = [*row, *[None] * (len(self.header) - len(row))]
                check_row(self.path, sum(len(cell) for cell in row if isinstance(cell, str)))
                yield (
                    f"{self.path} row {number}",
                    {name: _cell(cells[place]) for name, place in places.items()},
                )

    def _records(self, columns: Sequence[str]) -> Iterator[Row]:
        assert self.form.source is not None
        for number, record in enumerate(self.form.source.rows(self.path), start=1):
            check_row(self.path, sum(map(len, record.values())))
            yield f"{self.path} row {number}", {name: record[name] or None for name in columns}


class _TextRows:
    """Rows of a text, whose lines together have a bounded length.

    A line break in quotes does not end a row, so that short lines may add up to a row of any length.

    Args:
        path: file of the text, for the message.
        stream: text.
        form: form of the text.
    """

    def __init__(self, path: Path, stream: IO[str], form: TableForm) -> None:
        self._path = path
        self._length = 0
        """Number of characters of the row so far."""
        self._reader = reader_of(self._lines(stream), form)

    @property
    def line_num(self) -> int:
        """Number of lines that have been read."""
        return self._reader.line_num

    def __iter__(self) -> "_TextRows":
        return self

    def __next__(self) -> list[str]:
        self._length = 0
        return next(self._reader)

    def _lines(self, stream: IO[str]) -> Iterator[str]:
        for line in stream:
            self._length += len(line)
            check_row(self._path, self._length)
            yield line


def read_rows(
    path: Path, columns: Sequence[str], problems: Problems, use: TableUse
) -> Iterator[Row]:
    """Iterate over the rows of a table.

    Args:
        path: file.
        columns: columns to read.
        problems: record of the mistakes in rows, which are left out.
        use: purpose of the table.

    Raises:
        ValueError: if the file cannot be read, or lacks a column.
    """
    return Table(path, use).rows(columns, problems)


@contextmanager
def _reading_parquet(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise ValueError(
            f"{path} cannot be read as Parquet ({error}); check it or write it again"
        ) from None


def _cell(value: object) -> Cell:
    if isinstance(value, list):
        return tuple(_cell_text(item) for item in value)
    return _cell_text(value).strip() or None


def _cell_text(value: object) -> str:
    if value is None or value != value:  # NaN alone differs from itself
        return ""
    if isinstance(value, bool):
        return str(int(value))
    if isinstance(value, date):  # a time is one, too
        return value.isoformat()
    return repr(value) if isinstance(value, float) else str(value)


def _check_columns(
    path: Path, header: Sequence[str], columns: Sequence[str], use: TableUse
) -> None:
    missing = [name for name in columns if name not in header]
    if not missing:
        twice = [name for name in columns if list(header).count(name) > 1]
        if twice:
            raise ValueError(f"{path} has the column {twice[0]!r} twice; rename one")
        return
    # The search takes a time that grows with the number and the length of the names.
    names = [name for name in header[:MAX_COMPARED] if len(name) <= MAX_COMPARED]
    near = difflib.get_close_matches(missing[0], names, n=1, cutoff=0.5)
    hint = f" (did you mean {shown(near[0])}?)" if near else ""
    raise ValueError(
        f"{path} has no column {shown(missing[0])}{hint}; it has {shown_first(header)}. Name the table's "
        f"columns in {use.fields}"
    )
