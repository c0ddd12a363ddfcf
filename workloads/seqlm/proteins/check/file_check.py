"""Check of one file: its form, its columns, its records and what may be wrong with them."""

import itertools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from seqlm.proteins.data.blocks import Record, bad_row, by_chain, each_record
from seqlm.proteins.data.fasta import protein_of
from seqlm.proteins.data.inputs import ProteinInput
from seqlm.proteins.data.table_reader import UnevenRows, cell_bytes
from seqlm.proteins.reading.columns import (
    WELL_KNOWN,
    Role,
    chosen_columns,
    format_of,
    named,
    normalized,
    well_known_column,
)
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject
from seqlm.training.data.limits import Limits
from seqlm.training.data.source_file import Source
from seqlm.training.data.table_forms import Layout, TableForm
from seqlm.training.data.table_rows import Cell, Table, TableUse

from .label_scan import LabelScan
from .oddities import REMEMBERED, Oddities
from .spreadsheets import ColumnScan

ID_OPTION = "--id-column"
SEQUENCE_OPTION = "--sequence-column"
LABEL_OPTION = "--label-column"
MUTATION_OPTION = "--mutation-column"
FIELDS = {Role.ID: ID_OPTION, Role.SEQUENCE: SEQUENCE_OPTION}
CHECKED_TABLE = TableUse(fields=f"{ID_OPTION} and {SEQUENCE_OPTION}", other_formats="FASTA")
NAMES_OF_GENES = frozenset(
    ("gene", "genes", "gene_name", "gene_names", "gene_symbol", "symbol", "hgnc_symbol")
)
"""Names of columns that hold names, as ``normalized`` spells them."""
ROWS_WITH_RESIDUES = 100
"""Rows by which columns with labels of residues are found."""
NUCLEOTIDES_SHARE = 0.5
"""Share of records like DNA from which on commands refuse a file."""


@dataclass(frozen=True)
class NamedByUser:
    """Columns that the user names."""

    id: str | None = None
    sequence: str | None = None
    mutation: str | None = None
    labels: Sequence[str] = ()


@dataclass
class FileCheck:
    """Findings about a file."""

    path: Path
    form: list[str] = field(default_factory=list)
    """Lines that describe the form and the columns."""
    what: str = "proteins"
    """Word for the records."""
    oddities: Oddities = field(default_factory=Oddities)
    labels: list[LabelScan] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    unusable: str = ""
    """Reason why nothing of the file can be used; empty if something can."""

    @property
    def counts(self) -> Counts:
        """Numbers of records that are read, used and left out."""
        counts = Counts(self.what, self.oddities.used)
        counts.left_out.update(self.oddities.left_out)
        return counts

    def lines(self) -> Iterator[str]:
        """Yield the findings for people."""
        yield str(self.path)
        for line in self.form:
            yield f"  {line}"
        if self.oddities.used or self.oddities.counts:
            yield f"  {self.counts.line()}"
        if self.oddities.residues:
            yield (
                f"  residues: {self.oddities.residues:,}, lengths {self.oddities.shortest:,} to "
                f"{self.oddities.longest:,}"
            )
        for oddity in self.oddities.described():
            yield f"  {oddity.title}"
            for example in oddity.examples:
                yield f"    {self._short(example)}"
        for scan in self.labels:
            yield f"  labels in {scan.describe()}"
        for warning in self.warnings:
            yield f"  warning: {self._short(warning)}"
        if self.unusable:
            yield f"  nothing can be used: {self.unusable}"

    def _short(self, text: str) -> str:
        """Return a text in which lines and rows stand without the name of the file."""
        return text.replace(f"{self.path}:", "line ").replace(f"{self.path} row ", "row ")


def check_file(path: Path, columns: NamedByUser) -> FileCheck:
    """Read a file and return the findings. Nothing is computed or written."""
    check = FileCheck(path)
    if not path.is_file():
        found = "not a regular file" if path.exists() else "no such file"
        check.unusable = f"{found}; give a file with proteins"
        return check
    try:
        _check(check, columns)
    except (ValueError, OSError) as error:
        check.unusable = str(error).removeprefix(f"{path} ")
        return check
    if check.oddities.is_partial:
        check.warnings.append(
            f"repeated ids and sequences are sought among the first {REMEMBERED:,} proteins only"
        )
    nucleotides = check.oddities.counts[Kind.NUCLEOTIDES]
    if nucleotides and nucleotides >= NUCLEOTIDES_SHARE * check.oddities.used:
        check.unusable = (
            f"{nucleotides:,} of {check.oddities.used:,} records look like DNA or RNA; translate them into "
            "proteins"
        )
    elif not check.oddities.used:
        check.unusable = f"none of its {check.what} is usable"
    return check


def _check(check: FileCheck, columns: NamedByUser) -> None:
    source = ProteinInput(check.path, check.path.name)
    form = source.form
    title = "FASTA"
    if form is not None:
        title = form.title if form.source is not None else f"table, {form.title}"
    check.form.append(", ".join([title, *_encoding(check.path, form)]))
    if form is None:
        _check_fasta(check, source)
    else:
        _check_table(check, Table(check.path, CHECKED_TABLE, form), columns)


def _encoding(path: Path, form: TableForm | None) -> list[str]:
    """Return the compression and the encoding of a text, which is read to its end."""
    if form is not None and form.layout in (Layout.PARQUET, Layout.WORKBOOK):
        return []
    with Source(path, max_line_bytes=None) as source:
        while source.read(1 << 20):
            pass
        return [*([source.compression] if source.compression else []), source.encoding]


def _check_fasta(check: FileCheck, source: ProteinInput) -> None:
    ids = ColumnScan("id", holds_names=True)
    with closing(source.reader(itertools.count(1))) as reader:
        for block in reader.blocks(Limits.for_workers(1)):
            for record in each_record(block):
                check.oddities.look_at(record)
                if record.bad is None:
                    ids.look_at(record.where, record.id.decode())
    check.warnings += ids.warnings()


@dataclass(frozen=True)
class _Roles:
    """Columns of a table by their roles."""

    id: str | None
    sequence: str | None
    mutation: str | None
    labels: Sequence[str]


def _roles(table: Table, columns: NamedByUser, check: FileCheck) -> _Roles:
    """Return the columns that are read.

    Raises:
        ValueError: if the table has neither sequences nor mutations nor labels, or if it is not clear which
            column has them.
    """
    header = table.header
    place = str(table.path)
    known = format_of(header)
    labels = list(columns.labels)
    if not labels and known is not None:
        of_kinds = [name for names in known.labels.values() for name in names]
        labels = named(header, list(dict.fromkeys(of_kinds)))
    if not labels:
        found = well_known_column(header, Role.LABEL, place, LABEL_OPTION)
        labels = [found] if found else []
    mutation = columns.mutation or well_known_column(header, Role.MUTATION, place, MUTATION_OPTION)
    has_others = bool(mutation or labels)
    sequences = {name for names in WELL_KNOWN[Role.SEQUENCE] for name in names}
    may_have_sequences = columns.sequence or not sequences.isdisjoint(map(normalized, header))
    if known is not None and known.sequences:
        may_have_sequences = True
    if has_others and not may_have_sequences:
        name = columns.id or well_known_column(header, Role.ID, place, ID_OPTION)
        check.what = "mutations" if mutation else "labels"
        read = {"id": name, "mutation": mutation, "labels": ", ".join(labels)}
        check.form.append(", ".join(f"{role}: {column}" for role, column in read.items() if column))
        return _Roles(name, None, mutation, labels)
    chosen = chosen_columns(
        header, place, id_column=columns.id, sequence_column=columns.sequence, fields=FIELDS
    )
    if table.form.source is not None:  # its columns are those of the reader
        return _Roles(chosen.id, chosen.sequence, mutation, labels)
    described = chosen.describe()
    if mutation:
        described += f", mutation: {mutation}"
    if labels:
        described += f", labels: {', '.join(labels)}"
    check.form.append(described)
    return _Roles(chosen.id, chosen.sequence, mutation, labels)


def _check_table(check: FileCheck, table: Table, columns: NamedByUser) -> None:
    roles = _roles(table, columns, check)
    chosen = [roles.id, roles.sequence, roles.mutation, *roles.labels]
    read = [name for name in chosen if name is not None]
    if table.form.layout is not Layout.PARQUET:  # no spreadsheet writes Parquet
        read += table.header
    read = [name for name in dict.fromkeys(read) if table.header.count(name) == 1 or name in chosen]
    scans = {name: ColumnScan(name, _holds_names(name, roles)) for name in read}
    check.labels = [LabelScan(name) for name in roles.labels]
    others: list[LabelScan] = []
    if table.form.source is None:  # columns of other names may have labels of residues
        others = [LabelScan(name) for name in read if name not in chosen]
    uneven = UnevenRows()
    for number, row in enumerate(itertools.chain(table.rows(read, uneven), [None]), start=1):
        for where, reason in uneven.taken():
            check.oddities.leave_out(Reject(Kind.FIELDS, where, reason))
        if row is None:
            continue
        where, cells = row
        for name, scan in scans.items():
            cell = cells[name]
            if isinstance(cell, str):
                scan.look_at(where, cell)
        length = _look_at_row(check, roles, where, cells, number)
        for label in (*check.labels, *others):
            label.look_at(cells[label.name], length)
        if number == ROWS_WITH_RESIDUES:
            others = [label for label in others if label.has_residues]
    check.labels += [label for label in others if label.has_residues]
    for scan in scans.values():
        check.warnings += scan.warnings()
    for label in check.labels:
        check.warnings += label.warnings()


def _holds_names(name: str, roles: _Roles) -> bool:
    return name in (roles.id, roles.mutation) or normalized(name) in NAMES_OF_GENES


def _look_at_row(
    check: FileCheck, roles: _Roles, where: str, cells: Mapping[str, Cell], number: int
) -> int:
    """Count a row; return the length of its protein, or 0 if it has none."""
    if roles.sequence is None:
        _look_at_other(check, roles, where, cells)
        return 0
    name = str(number).encode() if roles.id is None else cell_bytes(cells[roles.id])
    sequence = cell_bytes(cells[roles.sequence])
    bad = bad_row(where, name, sequence)
    for record in by_chain(Record(number, where, name, sequence, bad), str(check.path)):
        check.oddities.look_at(record)
    return len(protein_of(sequence))


def _look_at_other(check: FileCheck, roles: _Roles, where: str, cells: Mapping[str, Cell]) -> None:
    """Count a row of mutations or labels."""
    if roles.mutation is not None and not cells[roles.mutation]:
        check.oddities.leave_out(Reject(Kind.BAD_MUTATION, where, "no mutation"))
    elif roles.id is not None and not cells[roles.id]:
        check.oddities.leave_out(Reject(Kind.NO_ID, where, "no id"))
    else:
        check.oddities.used += 1
