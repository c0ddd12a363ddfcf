"""Form of a table, recognised by its content: Parquet, a workbook, or text with a separator.

A ``RecordSource`` reads files that are no tables, such as structures of proteins, as rows with columns.

Names of files play a part only for a table with a single column, which has no separator.
"""

import csv
import io
import json
import zipfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from .source_file import Beginning, beginning_of, reading

if TYPE_CHECKING:
    from _csv import Reader

PARQUET_MAGIC = b"PAR1"
WORKBOOK_MEMBER = "xl/workbook.xml"
"""File in every workbook (ECMA-376), which is a zip archive."""
_ZIP_MAGIC = b"PK"
SAMPLE_ROWS = 20
"""Rows by which a separator is recognised."""
TAB = "\t"
SEPARATORS: Mapping[str, str] = {TAB: "tabs", ";": "semicolons", ",": "commas"}
"""Separators of cells with their names. Of those that fit equally well, the first one is chosen: commas and
semicolons are common inside the cells of other tables, and tabs are not."""
SINGLE_COLUMN_SUFFIXES = (".csv", ".tsv", ".tab")
TABLE_SUFFIXES = (*SINGLE_COLUMN_SUFFIXES, ".parquet", ".pq", ".xlsx")
"""Suffixes of tables, for the files of a folder. A file that is named may have any suffix."""


class Layout(Enum):
    """Storage of the cells of a table."""

    TEXT = "text"
    PARQUET = "Parquet"
    WORKBOOK = "xlsx"
    RECORDS = "records"
    """No table: a ``RecordSource`` gives the rows."""


class RecordSource(Protocol):
    """Reader of one format of files that are no tables."""

    @property
    def title(self) -> str:
        """Name of the format, with its article."""

    @property
    def header(self) -> Sequence[str]:
        """Names of the columns of all such files."""

    def rows(self, path: Path) -> Iterator[Mapping[str, str]]:
        """Yield the cells of each row.

        Raises:
            ValueError: if the file cannot be read.
        """


@dataclass(frozen=True)
class TableForm:
    """Form of a table."""

    layout: Layout
    separator: str = ","
    """Separator of the cells of a text."""
    is_quoted: bool = True
    """Whether quotes enclose cells, as in CSV. Text with tabs has no quoting (IANA text/tab-separated-values)
    unless all names of its columns are quoted, as R writes it."""
    first_line: int = 1
    """Line of the header."""
    source: RecordSource | None = None
    """Reader of the layout ``RECORDS``; None for tables."""

    @property
    def title(self) -> str:
        """Description for the line that says what was read."""
        if self.source is not None:
            return self.source.title
        if self.layout is not Layout.TEXT:
            return self.layout.value
        return f"text with {SEPARATORS[self.separator]}"


def binary_form(path: Path) -> TableForm | None:
    """Return the form of a Parquet file or a workbook; None for all other files."""
    with reading(path), path.open("rb") as file:
        head = file.read(len(PARQUET_MAGIC))
    if head == PARQUET_MAGIC:
        return TableForm(Layout.PARQUET)
    if head.startswith(_ZIP_MAGIC) and zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as archive:
            if WORKBOOK_MEMBER in archive.namelist():
                return TableForm(Layout.WORKBOOK)
    return None


def table_form(path: Path) -> TableForm | None:
    """Return the form of a table; None if the file is not one.

    Raises:
        ValueError: if the content cannot be read.
    """
    found = binary_form(path)
    if found is not None:
        return found
    return text_form(beginning_of(path), path.name)


def text_form(beginning: Beginning, name: str) -> TableForm | None:
    """Return the form of a text that is a table; None for other texts.

    Args:
        beginning: beginning of the text.
        name: name of the file.
    """
    first_line = 1
    text = beginning.text
    if _has_metadata(text):
        first_line = 2
        text = text.partition("\n")[2]
    if text.lstrip().startswith(">"):
        return None
    best: TableForm | None = None
    most_columns = 1
    for separator in SEPARATORS:
        form = TableForm(
            Layout.TEXT, separator, is_quoted=_is_quoted(text, separator), first_line=first_line
        )
        rows = _sample(text, form, is_whole=beginning.is_whole)
        columns = len(rows[0]) if rows else 0
        if columns > most_columns and all(len(row) == columns for row in rows):
            best = form
            most_columns = columns
    if best is not None:
        return best
    return _uneven_form(text, name, first_line)


def reader_of(lines: Iterable[str], form: TableForm) -> "Reader":
    """Return a reader of the rows of a text, given as its lines with their line ends."""
    if form.is_quoted:
        return csv.reader(lines, delimiter=form.separator, strict=True)
    return csv.reader(lines, delimiter=form.separator, quoting=csv.QUOTE_NONE, strict=True)


def _has_metadata(text: str) -> bool:
    """Return whether the first line is an object of JSON, as in the files of the Observed Antibody Space."""
    line = text.partition("\n")[0].strip()
    if not line.startswith(("{", '"{')):
        return False
    plain = line[1:-1].replace('""', '"') if line.startswith('"') else line
    try:
        return isinstance(json.loads(plain), dict)
    except ValueError:
        return False


def _is_quoted(text: str, separator: str) -> bool:
    """Return whether cells are quoted."""
    if separator != TAB:
        return True
    names = text.lstrip("\r\n").partition("\n")[0].rstrip("\r").split(TAB)
    return all(len(name) > 1 and name.startswith('"') and name.endswith('"') for name in names)


def _sample(text: str, form: TableForm, *, is_whole: bool) -> list[list[str]]:
    """Return the first rows that are not blank; those before a mistake if there is one."""
    rows: list[list[str]] = []
    whole_lines = text if is_whole else text.rpartition("\n")[0]
    reader = reader_of(io.StringIO(whole_lines, newline=""), form)
    # The mistake is reported when the table is read, with its line.
    with suppress(csv.Error):
        for row in reader:
            if row:
                rows.append(row)
            if len(rows) == SAMPLE_ROWS:
                break
    return rows


def _uneven_form(text: str, name: str, first_line: int) -> TableForm | None:
    """Return the form of a table whose rows differ in length, or that has a single column.

    The separator is the one with the most columns in the header. Its rows are then reported one by one.
    """
    header = text.lstrip("\r\n").partition("\n")[0]
    counts = {separator: header.count(separator) for separator in SEPARATORS}
    separator = max(counts, key=lambda one: counts[one])
    is_table = counts[separator] > 0 or _is_named_as_table(name)
    if not is_table:
        return None
    if not counts[separator]:
        separator = ","
    return TableForm(
        Layout.TEXT, separator, is_quoted=_is_quoted(text, separator), first_line=first_line
    )


def _is_named_as_table(name: str) -> bool:
    """Return whether a file with a single column is named as a table, compressed or not."""
    parts: Sequence[str] = name.lower().split(".")
    return any(f".{part}" in SINGLE_COLUMN_SUFFIXES for part in parts[-2:])
