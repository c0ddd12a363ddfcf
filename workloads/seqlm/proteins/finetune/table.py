"""Labelled proteins as rows, from tables or FASTA, with labels and masks in it or in files beside it.

A table is held in memory: 100,000 proteins take about 200 MB.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from seqlm.proteins.config import TaskConfig
from seqlm.proteins.data.chained import chained_text, complex_of
from seqlm.proteins.data.fasta import CONTROL_CHARACTER
from seqlm.proteins.data.sources import is_fasta
from seqlm.proteins.reading.chain_modes import JOINING_MODES, chain_mode
from seqlm.proteins.reading.chains import (
    ChainSpan,
    Complex,
    choice_needed,
    has_chains,
    joined,
)
from seqlm.proteins.reading.columns import (
    Role,
    chosen_columns,
    described_sequences,
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
from .table_columns import FIELDS, completed, described, variant_columns
from .task_kinds import TASK_KINDS
from .variants.wild_type import FIELD, GIVE_IT, WildTypeProtein, built_sequences

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
    complex: Complex | None = None
    """Chains of the record; None if it has one. ``tokens`` are then those of all chains."""
    spans: tuple[ChainSpan, ...] = ()
    """Places of the chains in ``tokens`` that are read as one protein; empty for one chain."""

    @property
    def residues(self) -> bytes:
        """One token id per residue, without those of linkers between chains."""
        if not self.spans:
            return self.tokens
        return b"".join(self.tokens[span.start : span.stop] for span in self.spans)


@dataclass(frozen=True)
class LabelledTable:
    """Labelled proteins, and the task with the columns that were found."""

    records: list[Record]
    task: TaskConfig
    rejects: list[Reject]
    """Proteins without a row in the file of labels, and rows whose names are no variants of the protein."""
    has_ids: bool = True
    """Whether a column has the ids; otherwise rows are numbered."""


@dataclass(frozen=True)
class _Source:
    """Opened file with proteins, labels or masks."""

    table: Table | FastaTable
    id: str | None
    """Column with the ids; None numbers the rows."""
    sequences: tuple[str, ...] = ()
    """Columns with the sequences, one for each chain. None in a file beside the proteins, and if ``mutation``
    names variants."""
    format: FieldFormat | None = None
    has_labels: bool = True
    """Whether it has labels, so that proteins without a row in it are left out."""
    mutation: str | None = None
    """Column with the names of variants of one protein; None without any."""

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
        if self.sequences:
            columns += f", {described_sequences(self.sequences)}"
        if self.mutation is not None:
            columns += f", mutation: {self.mutation}"
        roles = described(task, self.header)
        return f"{self.path} is {what}; {columns}{', ' if roles else ''}{roles}"


def read_records(
    task: TaskConfig,
    files: Sequence[Path],
    labels: Path | None = None,
    mask: Path | None = None,
    wild_type: WildTypeProtein | None = None,
) -> LabelledTable:
    """Return all records of the tables, in their order.

    Args:
        task: task, whose columns are found if it does not name them.
        files: tables or FASTA files with the proteins.
        labels: table or FASTA file with labels beside FASTA files, by id; None if they have labels.
        mask: table or FASTA file with masks of residues, by id; None without, or if the tables have them.
        wild_type: protein of the variants in tables that name them, and have no sequences; None if the run
            file gives none.

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
    task = completed(replace(task, mutation_column=proteins[0].mutation), names, known, place)
    for source in (*proteins, *beside):
        note_once(source.describe(task))

    problems = Problems()
    rejects: list[Reject] = []
    records = _joined(task, proteins, beside, problems, rejects, wild_type)
    # Repeated measurements of a variant may have one id.
    if task.split.variants is None:
        if not beside:
            records = _with_unique_ids(task, records, proteins)
        _check_ids(records, problems)
    problems.raise_if_any(", ".join(path.name for path in files))
    if not records:
        raise ValueError(
            f"{', '.join(map(str, files))}: no record below the header; give at least one"
        )
    has_ids = all(source.id is not None for source in proteins)
    return LabelledTable(records, task, rejects, has_ids)


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
        return _Source(table, ID, (SEQUENCE,), format_of(table.header, in_fasta=True))
    if task.split.variants is not None:
        variants = variant_columns(task, table.header, str(path))
        sequences = () if variants.sequence is None else (variants.sequence,)
        return _Source(table, variants.id, sequences, variants.format, mutation=variants.mutation)
    columns = chosen_columns(
        table.header,
        str(path),
        id_column=task.id_column,
        sequence_column=task.sequence_column,
        fields=FIELDS,
        sequence_columns=task.sequence_columns,
    )
    return _Source(table, columns.id, columns.sequences, columns.format)


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
    return [name for name in source.header if name not in (source.id, *source.sequences)]


def _joined(
    task: TaskConfig,
    proteins: Sequence[_Source],
    beside: Sequence[_Source],
    problems: Problems,
    rejects: list[Reject],
    wild_type: WildTypeProtein | None,
) -> list[Record]:
    """Return the records with all cells that the task reads, from every file.

    Args:
        task: task with all its columns.
        proteins: files of proteins.
        beside: files of labels and masks.
        problems: record of the mistakes.
        rejects: list that receives the proteins without labels, and the names that are no variants.
        wild_type: protein of the variants in tables without sequences.
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
        columns = [source.id, *source.sequences, source.mutation, *own]
        known_columns = dict.fromkeys(name for name in columns if name is not None)
        rows: Iterable[Row] = source.table.rows(list(known_columns), problems)
        sequences = source.sequences
        if not sequences:
            assert source.mutation is not None
            sequences = (f"sequence of {source.mutation}",)
            rows = _of_variants(rows, source, sequences[0], task, wild_type, rejects)
        first = len(records) + 1
        read = table_records(rows, source.id, sequences, problems, first)
        records += _with_mode(read, task, problems)
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


def _with_mode(records: Iterable[Record], task: TaskConfig, problems: Problems) -> Iterator[Record]:
    """Yield records, those of several chains as ``task.chains`` reads them.

    Args:
        records: records of a table.
        task: task.
        problems: record of the mistakes.
    """
    for record in records:
        if record.complex is None:
            yield record
        elif TASK_KINDS[task.kind].per_residue:
            reason = (
                f"record {_shown_id(record.id)} has several chains, and labels of residues belong to one; "
                "give each chain a record of its own"
            )
            problems.add(record.where, reason, Kind.CHAINS)
        elif task.chains is None:
            needed = choice_needed(record.complex, "task.chains", JOINING_MODES)
            problems.add(record.where, needed, Kind.CHAINS)
        else:
            whole = joined(record.complex.chains, chain_mode(task.chains))
            yield replace(record, tokens=whole.tokens.tobytes(), spans=whole.spans)


def _of_variants(
    rows: Iterable[Row],
    source: _Source,
    into: str,
    task: TaskConfig,
    wild_type: WildTypeProtein | None,
    rejects: list[Reject],
) -> Iterator[Row]:
    """Return the rows of a table without sequences, with the sequences of its variants in a column.

    Args:
        rows: rows of the table.
        source: table.
        into: column that the sequences get.
        task: task of the run file.
        wild_type: protein of the variants.
        rejects: list that receives the rows whose names are no variants of it.

    Raises:
        ValueError: if there is no wild type.
    """
    assert source.mutation is not None
    if wild_type is None:
        raise ValueError(
            f"{FIELD}: got none, and {source.path} names variants in the column {source.mutation!r} without "
            f"their sequences; {GIVE_IT}, or name a column of sequences in {FIELDS[Role.SEQUENCE]}"
        )
    return built_sequences(rows, source.mutation, into, wild_type, task.first_position, rejects)


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
    sequence_columns: Sequence[str],
    problems: Problems,
    first_number: int = 1,
) -> Iterator[Record]:
    """Yield the records of a table.

    Args:
        rows: rows of the table.
        id_column: column with the ids; None numbers the rows.
        sequence_columns: column with the sequences, or those with the sequences of chains.
        problems: record of the mistakes in rows, which are left out.
        first_number: number of the first row.
    """
    for number, (where, cells) in enumerate(rows, start=first_number):
        name = str(number) if id_column is None else cells[id_column]
        if not isinstance(name, str):
            problems.add(where, f"no id in column {id_column!r}", Kind.NO_ID)
        elif CONTROL_CHARACTER.search(name):
            reason = f"the id {shown(name)} has control characters; rename the record"
            problems.add(where, reason, Kind.CONTROL_CHARACTER)
        elif name.startswith(">"):
            reason = f"the id {shown(name)} begins with '>'; remove that sign"
            problems.add(where, reason, Kind.MARKED_ID)
        else:
            record = _record(name, where, cells, sequence_columns)
            if isinstance(record, Reject):
                problems.add(where, record.reason, record.kind)
            else:
                yield record


def _record(
    name: str, where: str, cells: Mapping[str, Cell], sequence_columns: Sequence[str]
) -> Record | Reject:
    """Return the record of a row, or the reason why it has none."""
    sequences = [_sequence(cells[column]) for column in sequence_columns]
    found: Complex | Reject | None = None
    if len(sequences) > 1 and any(sequences):
        pairs = list(zip(sequence_columns, sequences, strict=True))
        found = complex_of(name, pairs, where=where, file="")
    elif has_chains(sequences[0]):
        found = chained_text(name, sequences[0], None, where=where, file="")
    if isinstance(found, Reject):
        return found
    if found is not None:
        tokens = b"".join(chain.tokens.tobytes() for chain in found.chains)
        return Record(name, where, tokens, cells, found)
    try:
        tokens = read_sequence(sequences[0]).tobytes()
    except SequenceError as error:
        return Reject(error.kind, where, f"record {_shown_id(name)}: {error}")
    if tokens:
        return Record(name, where, tokens, cells)
    columns = ", ".join(map(repr, sequence_columns))
    return Reject(
        Kind.EMPTY, where, f"record {_shown_id(name)} has no sequence in column {columns}"
    )


def _sequence(cell: Cell) -> str:
    """Return the text of a cell with a sequence; empty if it has none, or is a list."""
    return cell if isinstance(cell, str) else ""


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
