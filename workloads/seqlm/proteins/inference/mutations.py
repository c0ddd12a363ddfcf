"""Mutations to score, from a table or all single mutants of a protein. Needs no torch.

A mutation such as ``A42G`` has the residue of the wild type, its position from 1, and the new residue. A
colon joins several mutations.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS
from seqlm.proteins.reading.columns import mutation_columns
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, rejected
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_forms import Layout, TableForm
from seqlm.training.data.table_rows import Cell, Problems, Table, TableUse

from .records import Protein, nothing_used

_FORM = re.compile(r"([A-Za-z])([1-9][0-9]{0,5})([A-Za-z])")
SEPARATOR = ":"
"""Separator of several mutations in a name."""
MUTATIONS = TableUse(
    fields="inference.mutation_column and inference.id_column", other_formats="no list at all"
)
MAX_NAME_SHOWN = 60
"""Largest number of characters of a name that a message repeats."""


@dataclass(frozen=True)
class Substitution:
    wild: int
    """Token id of the residue in the wild type."""
    place: int
    """Position, from 0."""
    mutant: int
    """Token id of the new residue."""


@dataclass(frozen=True)
class Variant:
    name: str
    substitutions: tuple[Substitution, ...]


class MutationError(ValueError):
    """A text that is no mutation of a protein."""

    def __init__(self, kind: Kind, reason: str) -> None:
        super().__init__(kind, reason)
        self.kind = kind
        self.reason = reason

    def __str__(self) -> str:
        return self.reason


class MutationRow(NamedTuple):
    """Row of a table of mutations."""

    where: str
    """``file:line``."""
    protein: str | None
    """Id of the protein; None for the only protein of the input."""
    mutation: str
    """Name of the variant, such as ``A42G:K50R``."""


class MutationTable:
    """Mutations to score, by protein.

    Args:
        rows: rows of the table.
        rejects: rows that cannot be read.
    """

    def __init__(self, rows: Iterable[MutationRow], rejects: Iterable[Reject] = ()) -> None:
        self._by_protein: dict[str | None, list[MutationRow]] = defaultdict(list)
        self._used: set[str] = set()
        """Places of the rows that fit a protein."""
        self._unread = list(rejects)
        self._rejects: dict[str, Reject] = {reject.where: reject for reject in self._unread}
        """First reject of each row that does not fit a protein, by place."""
        digest = hashlib.blake2b(digest_size=16)
        for row in rows:
            self._by_protein[row.protein].append(row)
            digest.update(repr((row.protein, row.mutation)).encode())
        self.fingerprint = digest.hexdigest()
        self.has_rows_without_id = None in self._by_protein

    def parsed(self, protein: Protein) -> Iterator[Variant | Reject]:
        """Yield a variant for each row that names this protein or none, or a reject if it does not fit."""
        for row in [*self._by_protein.get(None, []), *self._by_protein.get(protein.id, [])]:
            try:
                variant = parse_variant(row.mutation, protein)
            except MutationError as error:
                yield self._rejected(row, error.kind, str(error))
            else:
                self._used.add(row.where)
                yield variant

    def of_others(self, proteins: set[str]) -> list[Reject]:
        """Return rejects of the rows that cannot be read, or name a protein other than these."""
        others = [
            self._rejected(row, Kind.NO_PROTEIN, f"no protein {protein} in the input")
            for protein, rows in self._by_protein.items()
            if protein is not None and protein not in proteins
            for row in rows
        ]
        return [*self._unread, *others]

    def counts(self) -> Counts:
        """Return the numbers of rows that fit a protein, and of the others, of all that were parsed."""
        counts = Counts("mutations", len(self._used))
        counts.leave_out(
            reject for where, reject in self._rejects.items() if where not in self._used
        )
        return counts

    def check_used(self) -> None:
        """Raise ValueError if no row fits a protein, after all proteins were parsed."""
        if not self._used:
            first = next(iter(self._rejects.values()), None)
            raise nothing_used("inference.mutations", self.counts(), first, Reader.INFERENCE)

    def _rejected(self, row: MutationRow, kind: Kind, reason: str) -> Reject:
        """Return the reject of a row."""
        reject = rejected(Reader.INFERENCE, Reject(kind, row.where, reason))
        self._rejects.setdefault(row.where, reject)
        return reject


def with_rejected_mutations(
    records: Iterable[Protein | Reject], table: MutationTable
) -> Iterator[Protein | Reject]:
    """Yield each record and, after a protein, the mutations that do not fit it.

    Mutations of proteins that the input lacks come last.

    Raises:
        ValueError: if a mutation has no id although the input has several proteins, or if none fits.
    """
    known = set[str]()
    num_proteins = 0
    for record in records:
        yield record
        if isinstance(record, Protein):
            known.add(record.id)
            num_proteins += 1
            yield from (found for found in table.parsed(record) if isinstance(found, Reject))
    if num_proteins > 1 and table.has_rows_without_id:
        raise ValueError(
            f"inference.mutations: a row has no id, and the input has {num_proteins} proteins; give the "
            "table a column id, filled in every row"
        )
    yield from table.of_others(known)
    table.check_used()


def parse_variant(name: str, protein: Protein) -> Variant:
    """Return the variant of a protein that a name describes.

    Raises:
        MutationError: (a ValueError) if the name has another form, or does not fit the protein.
    """
    found: list[Substitution] = []
    for text in name.split(SEPARATOR):
        match = _FORM.fullmatch(text.strip())
        if match is None:
            raise MutationError(
                Kind.BAD_MUTATION,
                f"{text[:MAX_NAME_SHOWN]!r} is not a mutation; write the residue, its position from 1 and "
                "the new residue: A42G, or A42G:K50R for several",
            )
        wild = match[1].upper()
        number = int(match[2])
        mutant = match[3].upper()
        for letter in (wild, mutant):
            if letter not in STANDARD_RESIDUES:
                reason = f"{text}: {letter} is not one of the residues {STANDARD_RESIDUES}"
                raise MutationError(Kind.BAD_MUTATION, reason)
        if number > len(protein.tokens):
            raise MutationError(
                Kind.OTHER_PROTEIN,
                f"{text}: position {number} is after the end of {protein.id}, which has "
                f"{len(protein.tokens)} residues",
            )
        there = TOKENS[int(protein.tokens[number - 1])]
        if there != wild:
            raise MutationError(
                Kind.OTHER_PROTEIN,
                f"{text}: the wild type {protein.id} has {there} at position {number}, not {wild}; is this "
                "the right protein, and are its positions counted from 1?",
            )
        if any(other.place == number - 1 for other in found):
            reason = f"{name[:MAX_NAME_SHOWN]}: position {number} occurs twice; give it once"
            raise MutationError(Kind.BAD_MUTATION, reason)
        found.append(Substitution(TOKENS.index(wild), number - 1, TOKENS.index(mutant)))
    return Variant(name, tuple(found))


def all_single_mutants(protein: Protein) -> list[Variant]:
    """Return every variant that replaces one standard residue by one of the 19 others."""
    standard = [TOKENS.index(letter) for letter in STANDARD_RESIDUES]
    variants = []
    for place, wild in enumerate(protein.tokens.tolist()):
        if wild not in standard:
            continue
        for mutant in standard:
            if mutant != wild:
                name = f"{TOKENS[wild]}{place + 1}{TOKENS[mutant]}"
                variants.append(Variant(name, (Substitution(wild, place, mutant),)))
    return variants


class _Rows(Problems):
    """Mistakes in rows of a table of mutations, which become its rejects."""

    def __init__(self) -> None:
        super().__init__()
        self.rejects: list[Reject] = []

    def add(self, where: str, text: str, kind: str = "") -> None:
        self.rejects.append(rejected(Reader.INFERENCE, Reject(Kind(kind), where, text)))


def read_mutations(
    path: Path, mutation_column: str | None = None, id_column: str | None = None
) -> MutationTable:
    """Read a table with a column of mutations, and one of ids if there are several proteins.

    Args:
        path: file.
        mutation_column: column with the mutations; None to find it by its name.
        id_column: column with the ids of the proteins, if the table has it; None to find it by its name.

    Raises:
        ValueError: if the file cannot be read, or is no such table.
    """
    try:
        # A list with a single column has no separator by which it is recognised.
        form = table_of_proteins(path) or TableForm(Layout.TEXT)
        table = Table(path, MUTATIONS, form)
        columns = mutation_columns(table.header, str(path), mutation_column, id_column)
        note_once(f"{path} is {form.title}; {columns.describe()}")
        wanted = [columns.mutation] if columns.id is None else [columns.mutation, columns.id]
        problems = _Rows()
        rows = []
        for where, cells in table.rows(list(dict.fromkeys(wanted)), problems):
            protein = None if columns.id is None else _text(cells[columns.id])
            rows.append(MutationRow(where, protein, _text(cells[columns.mutation]) or ""))
    except OSError as error:
        raise ValueError(f"inference.mutations: {path} cannot be read: {error.strerror}") from None
    return MutationTable(rows, problems.rejects)


def _text(cell: Cell) -> str | None:
    """Return the text of a cell, the items of a list in one."""
    return SEPARATOR.join(cell) if isinstance(cell, tuple) else cell
