"""Table of the mutations to score. Needs no torch."""

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.fitting import check_numbering, parse_variant

from .records import Protein, Reject
from .variant_scores import MASKED_MARGINALS, check_indels


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
        first_position: number of a protein's first residue in the table.
        score: name of the score that is computed.
    """

    def __init__(
        self,
        rows: Iterable[MutationRow],
        first_position: int = 1,
        score: str = MASKED_MARGINALS,
    ) -> None:
        self._first_position = first_position
        self._score = score
        self._by_protein: dict[str | None, list[MutationRow]] = defaultdict(list)
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
        check_numbering(names, protein, self._first_position)

    def parsed(self, protein: Protein) -> Iterator[Variant | Reject]:
        """Yield a variant for each row that names this protein or none, or a reject if it does not fit."""
        for row in self._rows_of(protein):
            try:
                variant = parse_variant(row.mutation, protein, self._first_position)
                check_indels(variant, self._score)
            except ValueError as error:
                yield Reject(row.where, str(error))
            else:
                yield variant

    def of_others(self, proteins: set[str]) -> list[Reject]:
        """Return rejects of the rows that name a protein other than these."""
        rejects = []
        for protein, rows in self._by_protein.items():
            if protein is not None and protein not in proteins:
                rejects += [Reject(row.where, f"no protein {protein} in the input") for row in rows]
        return rejects


def with_rejected_mutations(
    records: Iterable[Protein | Reject], table: MutationTable
) -> Iterator[Protein | Reject]:
    """Yield each record and, after a protein, the mutations that do not fit it.

    Mutations of proteins that the input lacks come last.

    Raises:
        ValueError: if a mutation has no id although the input has several proteins, or mutations number the
            residues of a protein in another way.
    """
    known = set[str]()
    num_proteins = 0
    for record in records:
        yield record
        if isinstance(record, Protein):
            known.add(record.id)
            num_proteins += 1
            table.check_numbering(record)
            yield from (found for found in table.parsed(record) if isinstance(found, Reject))
    if num_proteins > 1 and table.has_rows_without_id:
        raise ValueError(
            f"inference.mutations: a row has no id, and the input has {num_proteins} proteins; give the "
            "table a column id, filled in every row"
        )
    yield from table.of_others(known)


def read_mutations(
    path: Path, first_position: int = 1, score: str = MASKED_MARGINALS
) -> MutationTable:
    """Read a CSV with the column ``mutation``, and ``id`` if there are several proteins.

    Raises:
        ValueError: if the file cannot be read, or is no such table.
    """
    try:
        with path.open(encoding="utf-8-sig", newline="") as stream:
            reader = csv.DictReader(stream, strict=True)
            columns = reader.fieldnames or []
            if "mutation" not in columns:
                listed = ", ".join(map(repr, columns)) or "nothing"
                raise ValueError(
                    f"{path} has no column 'mutation'; it has {listed}. Its first line names the columns: "
                    "mutation, and id for more than one protein"
                )
            rows = []
            for row in reader:
                protein = (row.get("id") or "").strip() or None
                mutation = (row["mutation"] or "").strip()
                rows.append(MutationRow(f"{path}:{reader.line_num}", protein, mutation))
            return MutationTable(rows, first_position, score)
    except OSError as error:
        raise ValueError(f"inference.mutations: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not CSV: {error}; correct its quotes") from None
