"""Labelled proteins as rows: from CSV, Parquet, or FASTA with a table of labels beside it.

Every cell becomes text, so that a value is read, checked and reported in one way whatever the format. A
table is held in memory: 100,000 proteins take about 200 MB.
"""

import csv
import difflib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq

from seqlm.proteins.alphabet import encode
from seqlm.proteins.data.fasta import (
    CONTROL_CHARACTER,
    RECORD_START,
    SourceReader,
    parse_block,
    record_lines,
)
from seqlm.proteins.data.sources import PROTEINS
from seqlm.training.data.limits import Limits
from seqlm.training.data.source_file import open_text
from seqlm.training.strict_yaml import shown

CSV_DELIMITERS = {".csv": ",", ".tsv": "\t"}
PARQUET_SUFFIXES = (".parquet", ".pq")
SHOWN_PROBLEMS = 10

Cell: TypeAlias = str | tuple[str, ...] | None
"""Text of the table, one text per residue, or None for an empty cell."""
Row: TypeAlias = tuple[str, dict[str, Cell]]
"""Position of a row (file:line, or the row of a Parquet file) and its cells by column."""


@dataclass(frozen=True)
class Record:
    """One labelled protein."""

    id: str
    where: str
    """``file:line``, for messages."""
    tokens: bytes
    """One token id a residue."""
    cells: Mapping[str, Cell]


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
        """Raise a ValueError that lists the first problems, if there is any."""
        if not self.count:
            return
        more = [f"... and {self.count - len(self.first)} more"] if self.count > len(self.first) else []
        lines = "\n".join(f"  {line}" for line in [*self.first, *more])
        raise ValueError(f"{self.count} bad record(s) in {what}; correct or remove them:\n{lines}")


def is_fasta(path: Path) -> bool:
    return path.name.lower().endswith(PROTEINS.suffixes)


def read_records(
    files: Sequence[Path],
    labels: Path | None,
    *,
    id_column: str,
    sequence_column: str,
    columns: Sequence[str],
) -> list[Record]:
    """All records of the tables, in their order.

    Args:
        files: CSV, TSV or Parquet with ids, sequences and ``columns``; or FASTA.
        labels: CSV, TSV or Parquet with ids and ``columns``, needed with FASTA and with nothing else.
        id_column: name of the column of ids.
        sequence_column: name of the column of sequences.
        columns: the other columns to keep.

    Raises:
        ValueError: for files that cannot be read, missing columns, and bad records with their lines.
    """
    fasta = [path for path in files if is_fasta(path)]
    if fasta and labels is None:
        raise ValueError(
            f"{fasta[0]} is FASTA, which has no labels; give a CSV, TSV or Parquet file with the columns "
            f"{', '.join([id_column, *columns])} as task.labels"
        )
    if labels is not None and len(fasta) < len(files):
        other = next(path for path in files if not is_fasta(path))
        raise ValueError(
            f"task.labels is {labels}, but {other} is a table that has its own label columns; "
            "leave task.labels out, or give the proteins as FASTA"
        )
    problems = Problems()
    if labels is not None:
        records = _fasta_records(files, labels, id_column, columns, problems)
    else:
        wanted = [id_column, sequence_column, *columns]
        rows = (row for path in files for row in read_rows(path, wanted, problems))
        records = list(table_records(rows, id_column, sequence_column, problems))
    _check_ids(records, problems)
    problems.raise_if_any(", ".join(path.name for path in files))
    if not records:
        raise ValueError(f"{', '.join(map(str, files))}: no record below the header; give at least one")
    return records


def read_rows(path: Path, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
    """Rows of a CSV, TSV or Parquet file with the columns asked for."""
    name = path.name.lower().removesuffix(".gz")
    if name.endswith(PARQUET_SUFFIXES):
        return _parquet_rows(path, columns)
    for suffix, delimiter in CSV_DELIMITERS.items():
        if name.endswith(suffix):
            return _csv_rows(path, delimiter, columns, problems)
    raise ValueError(
        f"{path}: its name does not tell the kind of table; allowed are "
        f"{', '.join([*CSV_DELIMITERS, *PARQUET_SUFFIXES])} (the first two also with .gz) and, for proteins, "
        f"{', '.join(PROTEINS.suffixes)}"
    )


def _csv_rows(path: Path, delimiter: str, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
    # The module's own bound of 128 KiB is below the longest proteins with a label for each residue.
    csv.field_size_limit(Limits.for_workers(1).record_bytes)
    try:
        with open_text(path, "") as stream:
            reader = csv.reader(stream, delimiter=delimiter, strict=True)
            header = [name.strip() for name in next(reader, [])]
            _check_columns(path, header, columns)
            places = {name: header.index(name) for name in columns}
            line = reader.line_num + 1
            for fields in reader:
                where, line = f"{path}:{line}", reader.line_num + 1
                if not fields:
                    continue
                if len(fields) != len(header):
                    problems.add(where, f"{len(fields)} fields, the header has {len(header)}")
                    continue
                yield where, {name: fields[place].strip() or None for name, place in places.items()}
    except csv.Error as error:
        raise ValueError(f"{path}:{reader.line_num}: {error}; correct the quotes of this row") from None


def _parquet_rows(path: Path, columns: Sequence[str]) -> Iterator[Row]:
    row = 0
    try:
        file = pq.ParquetFile(path)
        _check_columns(path, file.schema_arrow.names, columns)
        for batch in file.iter_batches(columns=list(columns)):
            values = {name: batch.column(name).to_pylist() for name in columns}
            for index in range(len(batch)):
                row += 1
                yield f"{path} row {row}", {name: _cell(values[name][index]) for name in columns}
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        raise ValueError(f"{path} cannot be read as Parquet ({error}); check it or write it again") from None


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


def _check_columns(path: Path, header: Sequence[str], columns: Sequence[str]) -> None:
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
        "columns in task.id_column, task.sequence_column, task.label_columns and task.split, or for embed "
        "and predict in inference.id_column and inference.sequence_column"
    )


def table_records(
    rows: Iterable[Row], id_column: str, sequence_column: str, problems: Problems
) -> Iterator[Record]:
    for where, cells in rows:
        name, sequence = cells[id_column], cells[sequence_column]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {id_column!r}")
        elif CONTROL_CHARACTER.search(name):
            problems.add(where, f"the id {shown(name)} has control characters; rename the record")
        elif name.startswith(">"):
            problems.add(where, f"the id {shown(name)} begins with '>'; remove that sign")
        elif not isinstance(sequence, str):
            problems.add(where, f"record {name[:60]} has no sequence in column {sequence_column!r}")
        else:
            try:
                # A stop at the end is as usual in tables of translated genes as it is in FASTA.
                tokens = encode("".join(sequence.split()).removesuffix("*")).tobytes()
            except ValueError as error:
                problems.add(where, f"record {name[:60]}: {error}")
                continue
            if tokens:
                yield Record(name, where, tokens, cells)
            else:
                problems.add(where, f"record {name[:60]} has no sequence in column {sequence_column!r}")


def _fasta_records(
    files: Sequence[Path], labels: Path, id_column: str, columns: Sequence[str], problems: Problems
) -> list[Record]:
    if is_fasta(labels):
        raise ValueError(f"task.labels is {labels}, which is FASTA; give a CSV, TSV or Parquet file")
    rows: dict[str, Row] = {}
    for where, cells in read_rows(labels, [id_column, *columns], problems):
        name = cells[id_column]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {id_column!r}")
        elif name in rows:
            problems.add(where, f"the id {name[:60]} was used before, at {rows[name][0]}")
        else:
            rows[name] = (where, cells)
    records, named = [], set[str]()
    for name, where, tokens in _proteins(files):
        named.add(name)
        if name in rows:
            # A wrong label is looked for in the table, not in the FASTA file.
            records.append(Record(name, rows[name][0], tokens, rows[name][1]))
        else:
            problems.add(where, f"record {name[:60]} has no row in {labels.name} (column {id_column!r})")
    for name, (where, _) in rows.items():
        if name not in named:
            problems.add(where, f"no protein {name} in {', '.join(path.name for path in files)}")
    return records


def _proteins(files: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    """(id, file:line, tokens) of every FASTA record."""
    limits = Limits.for_workers(1)
    for path in files:
        with closing(SourceReader(path)) as reader:
            for block in reader.blocks(RECORD_START, limits.block_bytes, limits.record_bytes):
                _, tokens = parse_block(block)
                for (name, line), protein in zip(record_lines(block), tokens, strict=True):
                    yield name.decode(), f"{path}:{line}", protein


def _check_ids(records: Sequence[Record], problems: Problems) -> None:
    places: dict[str, str] = {}
    for record in records:
        if record.id in places:
            problems.add(
                record.where,
                f"the id {record.id[:60]} was used before, at {places[record.id]}; ids must be unique",
            )
        places.setdefault(record.id, record.where)


def first_of(items: Sequence[str]) -> str:
    """Examples for a message."""
    return ", ".join(items[:5]) + (", ..." if len(items) > 5 else "")
