"""Table of the mutations to score. Needs no torch."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.errors import MutationError, ResidueError
from seqlm.proteins.mutations.in_chains import check_numbering_of, variant_named
from seqlm.proteins.reading.columns import mutation_columns
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.first_items import FirstItems
from seqlm.proteins.reading.formats import table_of_proteins
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import OF_MUTATIONS, Reject, rejected
from seqlm.training.data.source_file import note_once
from seqlm.training.data.table_forms import Layout, TableForm
from seqlm.training.data.table_rows import Cell, Problems, Table, TableUse
from seqlm.training.strict_yaml import shown

from .records import Protein, first_refused, nothing_used
from .variant_scores import MASKED_MARGINALS, SCORES, score_of

MUTATIONS = TableUse(
    fields="inference.mutation_column and inference.id_column", other_formats="no list at all"
)


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
        first_position: number of a protein's first residue in the table.
        score: name of the score that is computed.
    """

    def __init__(
        self,
        rows: Iterable[MutationRow],
        rejects: Iterable[Reject] = (),
        *,
        first_position: int = 1,
        score: str = MASKED_MARGINALS,
    ) -> None:
        self._first_position = first_position
        self._score = score
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

    def _rows_of(self, protein: Protein) -> list[MutationRow]:
        """Return the rows that name a protein, or none."""
        return [*self._by_protein.get(None, []), *self._by_protein.get(protein.id, [])]

    def check_numbering(self, protein: Protein) -> None:
        """Raise ValueError if the table fits a protein with exactly one other number of its first residue."""
        names = [row.mutation for row in self._rows_of(protein)]
        check_numbering_of(names, protein, self._first_position)

    def parsed(
        self, protein: Protein, first_rows: FirstItems | None = None
    ) -> Iterator[Variant | Reject]:
        """Yield a variant for each row that names this protein or none, or a reject if it does not fit.

        Args:
            protein: wild type.
            first_rows: count of the first rows of the table, which is continued; None counts none.

        Raises:
            ValueError: if the residues of all first rows are not those of their proteins.
        """
        for row in self._rows_of(protein):
            try:
                variant = variant_named(row.mutation, protein, self._first_position)
                check_indels(variant, self._score)
            except MutationError as error:
                found: Variant | Reject = self._rejected(row, error.kind, str(error))
                is_refused = isinstance(error, ResidueError)
            else:
                self._used.add(row.where)
                found = variant
                is_refused = False
            if first_rows is not None and first_rows.are_refused(is_refused):
                first = next(iter(self._rejects.values()))
                problem = "mutations have other residues than their proteins"
                raise first_refused("inference.mutations", problem, first, Reader.INFERENCE)
            yield found

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
        counts = Counts(OF_MUTATIONS, len(self._used))
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
        reject = _reject(kind, row.where, reason)
        self._rejects.setdefault(row.where, reject)
        return reject


def with_rejected_mutations(
    records: Iterable[Protein | Reject], table: MutationTable
) -> Iterator[Protein | Reject]:
    """Yield each record and, after a protein, the mutations that do not fit it.

    Mutations of proteins that the input lacks come last.

    Raises:
        ValueError: if a mutation has no id although the input has several proteins, if mutations number the
            residues of a protein in another way, if the residues of all first ones are not those of their
            proteins, or if none fits.
    """
    first_rows = FirstItems()
    known = set[str]()
    num_proteins = 0
    for record in records:
        yield record
        if isinstance(record, Protein):
            known.add(record.id)
            num_proteins += 1
            table.check_numbering(record)
            yield from (
                found for found in table.parsed(record, first_rows) if isinstance(found, Reject)
            )
    if num_proteins > 1 and table.has_rows_without_id:
        raise ValueError(
            f"inference.mutations: a row has no id, and the input has {num_proteins} proteins; give the "
            "table a column id, filled in every row, or name the column in inference.id_column"
        )
    yield from table.of_others(known)
    table.check_used()


def _reject(kind: Kind, where: str, reason: str) -> Reject:
    """Return the reject of a row."""
    return rejected(Reader.INFERENCE, Reject(kind, where, reason, what=OF_MUTATIONS))


class _Rows(Problems):
    """Mistakes in rows of a table of mutations, which become its rejects."""

    def __init__(self) -> None:
        super().__init__()
        self.rejects: list[Reject] = []

    def add(self, where: str, text: str, kind: str = "") -> None:
        self.rejects.append(_reject(Kind(kind), where, text))


def read_mutations(
    path: Path,
    mutation_column: str | None = None,
    id_column: str | None = None,
    *,
    first_position: int = 1,
    score: str = MASKED_MARGINALS,
) -> MutationTable:
    """Read a table with a column of mutations, and one of ids if there are several proteins.

    Args:
        path: file.
        mutation_column: column with the mutations; None to find it by its name.
        id_column: column with the ids of the proteins, if the table has it; None to find it by its name.
        first_position: number of a protein's first residue in the table.
        score: name of the score that is computed.

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
    return MutationTable(rows, problems.rejects, first_position=first_position, score=score)


def _text(cell: Cell) -> str | None:
    """Return the text of a cell, the items of a list in one."""
    return ":".join(cell) if isinstance(cell, tuple) else cell


def check_indels(variant: Variant, score: str) -> None:
    """Raise MutationError if a variant inserts or deletes residues, and a score takes none."""
    if not variant.keeps_length and not score_of(score).takes_indels:
        others = ", ".join(name for name, one in SCORES.items() if one.takes_indels)
        raise MutationError(
            f"{shown(variant.name)} inserts or deletes residues, which {score} cannot score; use {others} "
            "(inference.score)"
        )
