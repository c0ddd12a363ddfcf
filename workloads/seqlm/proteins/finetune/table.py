"""Labelled proteins as rows, from tables or FASTA, with labels and masks in it or in files beside it.

A table is held in memory: 100,000 proteins take about 200 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from seqlm.proteins.config import TaskConfig
from seqlm.proteins.data.fasta import CONTROL_CHARACTER
from seqlm.proteins.data.sources import is_fasta
from seqlm.proteins.reading.columns import (
    Role,
    chosen_columns,
    format_of,
    id_column_of,
    listed,
    normalized,
)
from seqlm.proteins.reading.field_formats import FieldFormat
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, rejected
from seqlm.proteins.reading.sequences import SequenceError, read_sequence
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_rows import TABLE_FORMATS, Cell, Problems, Row, Table, TableUse
from seqlm.training.strict_yaml import shown

from .fasta_table import ID, PARTNER, FastaTable
from .table_columns import FIELDS, completed, described

PROTEIN_TABLE = TableUse(
    fields="task.id_column, task.sequence_column, task.label_columns, task.mask_columns and task.split, or "
    "for embed and predict in inference.id_column and inference.sequence_column",
    other_formats="FASTA",
)
SEQUENCE = "sequence"
LABEL = "label"
MASK = "mask"
"""Columns of the text of a FASTA file with proteins, labels and masks."""
TRUTH: Mapping[str, bool] = {
    "0": False,
    "1": True,
    "0.0": False,
    "1.0": True,
    "false": False,
    "true": True,
}
"""Words for false and true in cells, in lower case."""
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
    """Cells of the table by column, those of files beside it included."""


@dataclass(frozen=True)
class LabelledTable:
    """Labelled proteins, and the task with the columns that were found."""

    records: list[Record]
    task: TaskConfig
    rejects: list[Reject]
    """Proteins without a row in the file of labels."""


@dataclass(frozen=True)
class _Source:
    """Opened file with proteins, labels or masks."""

    table: Table | FastaTable
    id: str | None
    """Column with the ids; None numbers the rows."""
    sequence: str | None = None
    """Column with the sequences; None in a file beside the proteins."""
    format: FieldFormat | None = None
    has_labels: bool = True
    """Whether it has labels, so that proteins without a row in it are left out."""

    @property
    def header(self) -> list[str]:
        return self.table.header

    @property
    def path(self) -> Path:
        return self.table.path

    def describe(self, task: TaskConfig) -> str:
        """Return the line that says what was read."""
        table = self.table
        form = table.title if isinstance(table, FastaTable) else table.form.title
        what = form
        if self.format is not None:
            what = self.format.name if self.format.in_fasta else f"{form}, {self.format.name}"
        columns = f"id: {'none, so rows are numbered' if self.id is None else self.id}"
        if self.sequence is not None:
            columns += f", sequence: {self.sequence}"
        roles = described(task, self.header)
        return f"{self.path} is {what}; {columns}{', ' if roles else ''}{roles}"


def read_records(
    task: TaskConfig, files: Sequence[Path], labels: Path | None = None, mask: Path | None = None
) -> LabelledTable:
    """Return all records of the tables, in their order.

    Args:
        task: task, whose columns are found if it does not name them.
        files: tables or FASTA files with the proteins.
        labels: table or FASTA file with labels beside FASTA files, by id; None if they have labels.
        mask: table or FASTA file with masks of residues, by id; None without, or if the tables have them.

    Raises:
        ValueError: for files that cannot be read, missing columns, and bad records with their lines.
    """
    proteins = [_proteins(path, task) for path in files]
    beside = []
    if labels is not None:
        _check_beside(labels, proteins)
        beside.append(_beside("task.labels", labels, LABEL, task))
    if mask is not None:
        beside.append(replace(_beside("task.mask", mask, MASK, task), has_labels=False))
    names = [name for source in (proteins[0], *beside) for name in _described_columns(source)]
    known = next(
        (source.format for source in (*beside, proteins[0]) if source.format is not None), None
    )
    place = str(proteins[0].path if labels is None else labels)
    if labels is None:
        _check_have_labels(proteins, task)
    task = completed(task, names, known, place)
    for source in (*proteins, *beside):
        note_once(source.describe(task))

    problems = Problems()
    rejects: list[Reject] = []
    records = _joined(task, proteins, beside, problems, rejects)
    if not beside:
        records = _with_unique_ids(task, records, proteins)
    _check_ids(records, problems)
    problems.raise_if_any(", ".join(path.name for path in files))
    if not records:
        raise ValueError(
            f"{', '.join(map(str, files))}: no record below the header; give at least one"
        )
    return LabelledTable(records, task, rejects)


def _opened(path: Path, text: str) -> Table | FastaTable:
    """Open a table or a FASTA file, whatever its name.

    Args:
        path: file.
        text: name of the column with the text of FASTA records.

    Raises:
        ValueError: if it is neither.
    """
    form = table_of_proteins(path)
    if form is not None:
        return Table(path, PROTEIN_TABLE, form)
    if not is_fasta(path):
        raise ValueError(f"{path} is not a table; give {TABLE_FORMATS} or FASTA")
    return FastaTable(path, text)


def _proteins(path: Path, task: TaskConfig) -> _Source:
    """Open a file of proteins and choose its columns."""
    table = _opened(path, SEQUENCE)
    if isinstance(table, FastaTable):
        if PARTNER in table.header:
            raise ValueError(
                f"{path} has pairs of proteins ({PARTNER}= in its headers); give labels of single ones"
            )
        return _Source(table, ID, SEQUENCE, format_of(table.header, in_fasta=True))
    columns = chosen_columns(
        table.header,
        str(path),
        id_column=task.id_column,
        sequence_column=task.sequence_column,
        fields=FIELDS,
    )
    return _Source(table, columns.id, columns.sequence, columns.format)


def _beside(field: str, path: Path, text: str, task: TaskConfig) -> _Source:
    """Open a file with labels or masks of proteins in another file."""
    table = _opened(path, text)
    if isinstance(table, FastaTable):
        return _Source(table, ID, format=format_of(table.header, in_fasta=True))
    known = format_of(table.header)
    id_column = task.id_column or id_column_of(table.header, known, str(path), FIELDS[Role.ID])
    if id_column is None:
        raise ValueError(
            f"{field}: {path} has no column that is known for ids, by which its rows belong to proteins; it "
            f"has {listed(table.header)}. Name the column in {FIELDS[Role.ID]}"
        )
    return _Source(table, id_column, format=known)


def _check_beside(labels: Path, proteins: Sequence[_Source]) -> None:
    for source in proteins:
        if isinstance(source.table, Table) and source.table.form.source is None:
            raise ValueError(
                f"task.labels is {labels}, but {source.path} is a table that has its own label columns; "
                "leave task.labels out, or give the proteins as FASTA or structures"
            )


def _check_have_labels(proteins: Sequence[_Source], task: TaskConfig) -> None:
    """Refuse FASTA without labels in its headers and beside it."""
    columns = ", ".join([ID, *(task.label_columns or [LABEL])])
    for source in proteins:
        if isinstance(source.table, FastaTable) and len(source.header) == len((ID, SEQUENCE)):
            raise ValueError(
                f"{source.path} is FASTA, which has no labels; give a table with the columns {columns}, or "
                "FASTA with a label for each residue, as task.labels. Headers may have labels as TARGET=, too"
            )


def _described_columns(source: _Source) -> list[str]:
    """Return the columns of a source that may have labels, masks or splits."""
    return [name for name in source.header if name not in (source.id, source.sequence)]


def _joined(
    task: TaskConfig,
    proteins: Sequence[_Source],
    beside: Sequence[_Source],
    problems: Problems,
    rejects: list[Reject],
) -> list[Record]:
    """Return the records with all cells that the task reads, from every file.

    Args:
        task: task with all its columns.
        proteins: files of proteins.
        beside: files of labels and masks.
        problems: record of the mistakes.
        rejects: list that receives the proteins without labels.
    """
    split = task.split
    of_split = (split.column, split.validation_column, split.cluster_column)
    wanted = [*task.label_columns, *task.mask_columns, *filter(None, of_split)]
    own: list[str] = []
    for name in dict.fromkeys(wanted):
        if not any(name in source.header for source in beside):
            own.append(name)
    missing = [name for name in own if beside and name not in proteins[0].header]
    if missing:
        own = [name for name in own if name not in missing]
    records: list[Record] = []
    for source in proteins:
        assert source.sequence is not None
        columns = (
            [source.sequence, *own] if source.id is None else [source.id, source.sequence, *own]
        )
        rows = source.table.rows(list(dict.fromkeys(columns)), problems)
        first = len(records) + 1
        records += table_records(rows, source.id, source.sequence, problems, first)
    files = ", ".join(source.path.name for source in proteins)
    known = {record.id for record in records}
    for source in beside:
        of_source = [name for name in wanted if name in source.header]
        # A missing column is reported by the file that should have it.
        rows_by_id = _rows_by_id(source, [*of_source, *missing], problems)
        for name, (where, _) in rows_by_id.items():
            if name not in known:
                problems.add(where, f"no protein {_shown_id(name)} in {files}", Kind.NO_PROTEIN)
        records = _with_cells(records, source, rows_by_id, problems, rejects)
    return records


def _rows_by_id(source: _Source, columns: Sequence[str], problems: Problems) -> dict[str, Row]:
    """Return the rows of a file beside the proteins by their ids."""
    assert source.id is not None
    rows: dict[str, Row] = {}
    for where, cells in source.table.rows(list(dict.fromkeys([source.id, *columns])), problems):
        name = cells[source.id]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {source.id!r}", Kind.NO_ID)
        elif name in rows:
            reason = f"the id {_shown_id(name)} was used before, at {rows[name][0]}"
            problems.add(where, reason, Kind.REPEATED_ROW)
        else:
            rows[name] = (where, cells)
    return rows


def _with_cells(
    records: Sequence[Record],
    source: _Source,
    rows: Mapping[str, Row],
    problems: Problems,
    rejects: list[Reject],
) -> list[Record]:
    """Return the records with the cells of the rows of another file that have their ids.

    Args:
        records: proteins.
        source: file with labels or masks.
        rows: rows of that file by id.
        problems: record of the mistakes.
        rejects: list that receives the proteins without labels.
    """
    joined = []
    for record in records:
        if record.id in rows:
            # A wrong label is in this file, so messages name the place there, not that of the protein.
            where, cells = rows[record.id]
            joined.append(replace(record, where=where, cells={**record.cells, **cells}))
            continue
        reason = (
            f"record {_shown_id(record.id)} has no row in {source.path.name} (column {source.id!r})"
        )
        if source.has_labels:
            reject = Reject(Kind.NO_ROW, record.where, reason, record.id)
            rejects.append(rejected(Reader.FINETUNE, reject))
        else:
            problems.add(record.where, reason, Kind.NO_ROW)
    return joined


def _with_unique_ids(
    task: TaskConfig, records: list[Record], proteins: Sequence[_Source]
) -> list[Record]:
    """Number the records if a column that was taken for ids has repeated ones.

    Tables of variants name the same protein in many rows. A column that is called id, or that the run file
    names, is meant to have unique ids, so its repeated ones are mistakes.
    """
    if len({record.id for record in records}) == len(records) or task.id_column is not None:
        return records
    for source in proteins:
        is_fasta_file = isinstance(source.table, FastaTable)
        if is_fasta_file or (source.id is not None and normalized(source.id) == ID):
            return records
    columns = dict.fromkeys(source.id for source in proteins if source.id is not None)
    note_once(
        f"the ids in {', '.join(map(repr, columns))} repeat, so rows are numbered; {FIELDS[Role.ID]} names "
        "another column"
    )
    numbers = count(1)
    return [replace(record, id=str(next(numbers))) for record in records]


def table_records(
    rows: Iterable[Row],
    id_column: str | None,
    sequence_column: str,
    problems: Problems,
    first_number: int = 1,
) -> Iterator[Record]:
    """Yield the records of a table.

    Args:
        rows: rows of the table.
        id_column: column with the ids; None numbers the rows.
        sequence_column: column with the sequences.
        problems: record of the mistakes in rows, which are left out.
        first_number: number of the first row.
    """
    for number, (where, cells) in enumerate(rows, start=first_number):
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
