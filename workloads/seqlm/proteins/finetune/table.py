"""Labelled proteins as rows, from CSV, Parquet, or FASTA with a table of labels beside it.

A table is held in memory: 100,000 proteins take about 200 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.data.fasta import (
    CONTROL_CHARACTER,
    RECORD_START,
    SourceReader,
    parse_block,
    record_lines,
)
from seqlm.proteins.data.sources import PROTEINS
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.sequences import SequenceError, read_sequence
from seqlm.training.data import table_rows
from seqlm.training.data.limits import Limits
from seqlm.training.data.table_rows import Cell, Problems, Row, TableUse
from seqlm.training.strict_yaml import shown

PROTEIN_TABLE = TableUse(
    fields="task.id_column, task.sequence_column, task.label_columns and task.split, or for embed "
    "and predict in inference.id_column and inference.sequence_column",
    other_formats="FASTA",
)
SHOWN_CHARACTERS = 60
"""Length to which ids are cut in messages."""
SHOWN_ITEMS = 5


@dataclass(frozen=True)
class Record:
    """One labelled protein."""

    id: str
    where: str
    """``file:line``, for messages."""
    tokens: bytes
    """One token id per residue."""
    cells: Mapping[str, Cell]
    """Cells of the table by column."""


def is_named_as_fasta(path: Path) -> bool:
    """Return whether a file is FASTA by its name."""
    return path.name.lower().endswith(PROTEINS.suffixes)


def read_records(
    files: Sequence[Path],
    labels: Path | None,
    *,
    id_column: str,
    sequence_column: str,
    columns: Sequence[str],
) -> list[Record]:
    """Return all records of the tables, in their order.

    Args:
        files: CSV, TSV or Parquet files with ids, sequences and ``columns``, or FASTA files.
        labels: CSV, TSV or Parquet file with ids and ``columns`` beside FASTA files; None beside tables.
        id_column: name of the column of ids.
        sequence_column: name of the column of sequences.
        columns: names of the other columns to keep.

    Raises:
        ValueError: for files that cannot be read, missing columns, and bad records with their lines.
    """
    fasta = [path for path in files if is_named_as_fasta(path)]
    if fasta and labels is None:
        raise ValueError(
            f"{fasta[0]} is FASTA, which has no labels; give a CSV, TSV or Parquet file with the columns "
            f"{', '.join([id_column, *columns])} as task.labels"
        )
    if labels is not None and len(fasta) < len(files):
        other = next(path for path in files if not is_named_as_fasta(path))
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
        raise ValueError(
            f"{', '.join(map(str, files))}: no record below the header; give at least one"
        )
    return records


def read_rows(path: Path, columns: Sequence[str], problems: Problems) -> Iterator[Row]:
    """Yield the rows of a CSV, TSV or Parquet file with the given columns."""
    return table_rows.read_rows(path, columns, problems, PROTEIN_TABLE)


def table_records(
    rows: Iterable[Row], id_column: str | None, sequence_column: str, problems: Problems
) -> Iterator[Record]:
    """Yield the records of a table.

    Args:
        rows: rows of the table.
        id_column: column with the ids; None numbers the rows from 1 on.
        sequence_column: column with the sequences.
        problems: record of the mistakes in rows, which are left out.
    """
    for number, (where, cells) in enumerate(rows, start=1):
        name = str(number) if id_column is None else cells[id_column]
        sequence = cells[sequence_column]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {id_column!r}", Kind.NO_ID)
        elif CONTROL_CHARACTER.search(name):
            reason = f"the id {shown(name)} has control characters; rename the record"
            problems.add(where, reason, Kind.CONTROL_CHARACTER)
        elif name.startswith(">"):
            reason = f"the id {shown(name)} begins with '>'; remove that sign"
            problems.add(where, reason, Kind.MARKED_ID)
        else:
            try:
                tokens = read_sequence(sequence if isinstance(sequence, str) else "").tobytes()
            except SequenceError as error:
                problems.add(where, f"record {_shown_id(name)}: {error}", error.kind)
                continue
            if tokens:
                yield Record(name, where, tokens, cells)
            else:
                reason = f"record {_shown_id(name)} has no sequence in column {sequence_column!r}"
                problems.add(where, reason, Kind.EMPTY)


def _fasta_records(
    files: Sequence[Path], labels: Path, id_column: str, columns: Sequence[str], problems: Problems
) -> list[Record]:
    if is_named_as_fasta(labels):
        raise ValueError(
            f"task.labels is {labels}, which is FASTA; give a CSV, TSV or Parquet file"
        )
    rows: dict[str, Row] = {}
    for where, cells in read_rows(labels, [id_column, *columns], problems):
        name = cells[id_column]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {id_column!r}")
        elif name in rows:
            problems.add(where, f"the id {_shown_id(name)} was used before, at {rows[name][0]}")
        else:
            rows[name] = (where, cells)
    records: list[Record] = []
    named: set[str] = set()
    for name, where, tokens in _proteins(files):
        named.add(name)
        if name in rows:
            # A wrong label is in the table, so messages name the place there, not in the FASTA file.
            where_in_table, cells = rows[name]
            records.append(Record(name, where_in_table, tokens, cells))
        else:
            problems.add(
                where,
                f"record {_shown_id(name)} has no row in {labels.name} (column {id_column!r})",
            )
    for name, (where, _) in rows.items():
        if name not in named:
            problems.add(where, f"no protein {name} in {', '.join(path.name for path in files)}")
    return records


def _proteins(files: Sequence[Path]) -> Iterator[tuple[str, str, bytes]]:
    """Yield id, file:line and tokens of every FASTA record."""
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
                f"the id {_shown_id(record.id)} was used before, at {places[record.id]}; ids must be unique",
            )
        places.setdefault(record.id, record.where)


def _shown_id(name: str) -> str:
    return name[:SHOWN_CHARACTERS]


def first_of(items: Sequence[str]) -> str:
    """Return the first items as text for a message."""
    shown_items = ", ".join(items[:SHOWN_ITEMS])
    return f"{shown_items}, ..." if len(items) > SHOWN_ITEMS else shown_items
