"""Mutations to score, from a CSV or all single mutants of a protein. Needs no torch.

A mutation such as ``A42G`` has the residue of the wild type, its position from 1, and the new residue. A
colon joins several mutations.
"""

import csv
import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS

from .records import Protein, Reject

_FORM = re.compile(r"([A-Za-z])([1-9][0-9]{0,5})([A-Za-z])")
SEPARATOR = ":"
MAX_NAME_SHOWN = 60


def asked_for(records: Iterable[Protein | Reject], asked: "Wanted | None") -> Iterator[Protein | Reject]:
    """Yield each protein, then the mutations that do not fit it; at the end those without a protein."""
    if asked is None:
        yield from records
        return
    known, count = set[str](), 0
    for record in records:
        yield record
        if isinstance(record, Protein):
            known.add(record.id)
            count += 1
            yield from (found for found in asked.parsed(record) if isinstance(found, Reject))
    if count > 1 and asked.names_no_protein:
        raise ValueError(
            f"inference.mutations: a row has no id, and the input has {count} proteins; give the table a "
            "column id, filled in every row"
        )
    yield from asked.of_others(known)


@dataclass(frozen=True)
class Substitution:
    wild: int
    """Token id."""
    place: int
    """Position, from 0."""
    mutant: int
    """Token id."""


@dataclass(frozen=True)
class Variant:
    name: str
    substitutions: tuple[Substitution, ...]


class Wanted:
    """Table of mutations, by protein.

    Args:
        rows: position of each row, id of its protein (None for the only protein of the input), and mutations.
    """

    def __init__(self, rows: Iterable[tuple[str, str | None, str]]) -> None:
        self._by_protein: dict[str | None, list[tuple[str, str]]] = defaultdict(list)
        digest = hashlib.blake2b(digest_size=16)
        for where, protein, name in rows:
            self._by_protein[protein].append((where, name))
            digest.update(repr((protein, name)).encode())
        self.fingerprint = digest.hexdigest()
        self.names_no_protein = None in self._by_protein

    def parsed(self, protein: Protein) -> Iterator[Variant | Reject]:
        """Yield the variants of the rows that name this protein or none; rejects of those that do not fit."""
        for where, name in [*self._by_protein.get(None, []), *self._by_protein.get(protein.id, [])]:
            try:
                yield parse_variant(name, protein)
            except ValueError as error:
                yield Reject(where, str(error))

    def of_others(self, proteins: set[str]) -> list[Reject]:
        """Return rejects of the rows that name a protein other than these."""
        return [
            Reject(where, f"no protein {protein} in the input")
            for protein, rows in self._by_protein.items()
            if protein is not None and protein not in proteins
            for where, _ in rows
        ]


def parse_variant(name: str, protein: Protein) -> Variant:
    """Return the variant of a protein that a name describes.

    Raises:
        ValueError: if the name has another form, or does not fit the protein.
    """
    found: list[Substitution] = []
    for text in name.split(SEPARATOR):
        match = _FORM.fullmatch(text.strip())
        if match is None:
            shown = repr(text[:MAX_NAME_SHOWN])
            raise ValueError(
                f"{shown} is not a mutation; write the residue, its position from 1 and the new residue: "
                "A42G, or A42G:K50R for several"
            )
        wild, number, mutant = match[1].upper(), int(match[2]), match[3].upper()
        for letter in (wild, mutant):
            if letter not in STANDARD_RESIDUES:
                raise ValueError(f"{text}: {letter} is not one of the residues {STANDARD_RESIDUES}")
        if number > len(protein.tokens):
            raise ValueError(
                f"{text}: position {number} is after the end of {protein.id}, which has "
                f"{len(protein.tokens)} residues"
            )
        there = TOKENS[int(protein.tokens[number - 1])]
        if there != wild:
            raise ValueError(
                f"{text}: the wild type {protein.id} has {there} at position {number}, not {wild}; is this "
                "the right protein, and are its positions counted from 1?"
            )
        if any(other.place == number - 1 for other in found):
            raise ValueError(f"{name[:MAX_NAME_SHOWN]}: position {number} occurs twice; give it once")
        found.append(Substitution(TOKENS.index(wild), number - 1, TOKENS.index(mutant)))
    return Variant(name, tuple(found))


def all_single_mutants(protein: Protein) -> list[Variant]:
    """Return every variant that replaces one standard residue by one of the 19 others."""
    standard = [TOKENS.index(letter) for letter in STANDARD_RESIDUES]
    return [
        Variant(f"{TOKENS[wild]}{place + 1}{TOKENS[mutant]}", (Substitution(wild, place, mutant),))
        for place, wild in enumerate(protein.tokens.tolist())
        if wild in standard
        for mutant in standard
        if mutant != wild
    ]


def read_mutations(path: Path) -> Wanted:
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
            return Wanted(
                (
                    f"{path}:{reader.line_num}",
                    (row.get("id") or "").strip() or None,
                    (row["mutation"] or "").strip(),
                )
                for row in reader
            )
    except OSError as error:
        raise ValueError(f"inference.mutations: {path} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text ({error.reason}); save it as UTF-8") from None
    except csv.Error as error:
        raise ValueError(f"{path} is not CSV: {error}; correct its quotes") from None
