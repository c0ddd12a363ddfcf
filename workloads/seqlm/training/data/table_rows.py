"""Rows of CSV, TSV and Parquet files.

Every cell becomes text, so that a value is read, checked and reported in one way whatever the format.
"""

import csv
import difflib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from .limits import Limits
from .source_file import open_text

CSV_DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")
SHOWN_PROBLEMS = 10

Cell: TypeAlias = str | tuple[str, ...] | None
"""Text of a cell, the texts of a list, or None for an empty cell."""
Row: TypeAlias = tuple[str, dict[str, Cell]]
"""Position of a row (file:line, or the row of a Parquet file) and its cells by column."""


@dataclass
class Problems:
    """Mistakes in records: all are counted, the first ones are reported."""

    count: int = 0
    first: list[str] = field(default_factory=list)

    def add(self, where: str, text: str) -> None:
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
    """Allowed formats besides CSV, TSV and Parquet, with their suffixes."""


def read_rows(
    path: Path, columns: Sequence[str], problems: Problems, use: TableUse
) -> Iterator[Row]:
    """Iterate over the rows of a CSV, TSV or Parquet file.

    Args:
        path: file.
        columns: columns to read.
        problems: record of the mistakes in rows, which are left out.
        use: purpose of the table.

    Raises:
        ValueError: if the file cannot be read, or lacks a column.
    """
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(PARQUET_SUFFIXES):
        return _parquet_rows(path, columns, use)
    for suffix, delimiter in CSV_DELIMITERS.items():
        if name.endswith(suffix):
            return _csv_rows(path, delimiter, columns, problems, use)
    raise ValueError(
        f"{path}: its name does not tell the kind of table; allowed are "
        f"{', '.join([*CSV_DELIMITERS, *PARQUET_SUFFIXES])} (the first two also with .gz) and, "
        f"{use.other_formats}"
    )


def _csv_rows(
    path: Path, delimiter: str, columns: Sequence[str], problems: Problems, use: TableUse
) -> Iterator[Row]:
    # The module's own bound of 128 KiB is below the longest records with a label for each token.
    csv.field_size_limit(Limits.for_workers(1).record_bytes)
    try:
        with open_text(path, "") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_columns(path, header, columns, use)
            places = {name: header.index(name) for name in columns}
            line = reader.line_num + 1
            for fields in reader:
                where = f"{path}:{line}"
                line = reader.line_num + 1
                if not fields:
                    continue
                if len(fields) != len(header):
                    problems.add(where, f"{len(fields)} fields, the header has {len(header)}")
                    continue
                yield where, {name: fields[place].strip() or None for name, place in places.items()}
    except csv.Error as error:
        raise ValueError(
            f"{path}:{reader.line_num}: {error}; correct the quotes of this row"
        ) from None


def _parquet_rows(path: Path, columns: Sequence[str], use: TableUse) -> Iterator[Row]:
    row = 0
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, columns, use)
        for batch in file.iter_batches(columns=list(columns)):
            values = {name: batch.column(name).to_pylist() for name in columns}
            for index in range(len(batch)):
                row += 1
                yield f"{path} row {row}", {name: _cell(values[name][index]) for name in columns}
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
    near = difflib.get_close_matches(missing[0], header, n=1, cutoff=0.5)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(
        f"{path} has no column {missing[0]!r}{hint}; it has {', '.join(map(repr, header))}. Name the table's "
        f"columns in {use.fields}"
    )
