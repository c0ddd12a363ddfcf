"""Wild type of the variants of a table: from the run file, or by reverting named mutations."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import TOKENS, decode
from seqlm.proteins.finetune.fasta_table import ID, FastaTable
from seqlm.proteins.mutations.changes import Change, ChangeKind, Named
from seqlm.proteins.mutations.errors import MutationError
from seqlm.proteins.mutations.fitting import (
    check_first,
    check_numbering,
    fits_by_number,
    parse_variant,
)
from seqlm.proteins.mutations.names import Description, described
from seqlm.proteins.reading.policies import Kind, Reader
from seqlm.proteins.reading.rejects import Reject, rejected
from seqlm.proteins.reading.sequences import SequenceError, read_sequence
from seqlm.training.data.table_rows import Cell, Problems, Row
from seqlm.training.strict_yaml import shown

FIELD = "task.wild_type"
MUTATION_FIELD = "task.mutation_column"
POSITION_FIELD = "task.first_position"
DEFAULT_ID = "WT"
"""Id of a wild type that has no name."""
GIVE_IT = f"give the wild type in {FIELD}, as a sequence or a FASTA file"
_SEQUENCE = re.compile(r"[A-Za-z\s]+\*?\s*")
_TEXT = "sequence"
"""Column of the proteins in a FASTA file."""


@dataclass(frozen=True)
class WildTypeProtein:
    """Protein that variants are made of."""

    id: str
    tokens: npt.NDArray[np.uint8]
    """Token ids, (L,)."""

    @property
    def sequence(self) -> str:
        """Residues as letters."""
        return decode(self.tokens)


@dataclass(frozen=True)
class NamedSequence:
    """Sequence of a table with the name of its variant."""

    where: str
    """``file:line``."""
    name: str
    tokens: bytes


def is_sequence(text: str) -> bool:
    """Return whether the text of ``task.wild_type`` is a sequence, rather than the name of a file."""
    return _SEQUENCE.fullmatch(text) is not None


def read_wild_type(text: str, path: Path | None) -> WildTypeProtein:
    """Return the wild type that the run file names.

    Args:
        text: value of ``task.wild_type``.
        path: fetched FASTA file; None if the text is the sequence.

    Raises:
        ValueError: if it is no protein, or the file has none or several.
    """
    name: Cell = DEFAULT_ID
    sequence: Cell = text
    if path is not None:
        rows = list(FastaTable(path, _TEXT).rows([ID, _TEXT], Problems()))
        if len(rows) != 1:
            raise ValueError(f"{FIELD}: {path} has {len(rows)} records; give the wild type alone")
        [(_, cells)] = rows
        name = cells[ID] or DEFAULT_ID
        sequence = cells[_TEXT]
    try:
        tokens = read_sequence(str(sequence or ""))
    except SequenceError as error:
        raise ValueError(f"{FIELD}: {error}") from None
    if not len(tokens):
        raise ValueError(f"{FIELD}: {shown(text)} has no residues; {GIVE_IT}")
    return WildTypeProtein(str(name), tokens)


def built_sequences(
    rows: Iterable[Row],
    mutation_column: str,
    into: str,
    wild: WildTypeProtein,
    first_position: int,
    rejects: list[Reject],
) -> Iterator[Row]:
    """Yield the rows of a table without sequences, with the sequences of the named variants.

    Args:
        rows: rows of the table.
        mutation_column: column with the names of variants.
        into: column that the sequences get.
        wild: wild type.
        first_position: number of its first residue in the names.
        rejects: list that receives the rows whose names are no variants of the wild type.

    Raises:
        ValueError: if exactly one other number of the first residue makes all names fit.
    """
    kept = list(rows)
    names = [text_of(cells[mutation_column]) for _, cells in kept]
    check_numbering(names, wild, first_position, POSITION_FIELD)
    for name, (where, cells) in zip(names, kept, strict=True):
        try:
            variant = parse_variant(name, wild, first_position, POSITION_FIELD)
        except MutationError as error:
            rejects.append(rejected(Reader.FINETUNE, Reject(error.kind, where, str(error))))
            continue
        yield where, {**cells, into: decode(variant.tokens)}


def text_of(cell: Cell) -> str:
    """Return the text of a cell with a variant, the items of a list in one."""
    return ":".join(cell) if isinstance(cell, tuple) else cell or ""


def reverted(rows: Sequence[NamedSequence], first_position: int, place: str) -> WildTypeProtein:
    """Return the wild type to which the named substitutions of all rows revert.

    Rows say nothing about it if their names cannot be read, insert or delete residues, or are sequences.

    Args:
        rows: sequences with the names of their variants.
        first_position: number of the first residue in the names.
        place: column of the names, for messages.

    Raises:
        ValueError: if a name does not fit its sequence, the rows revert to no or several proteins, or names
            number the residues in another way.
    """
    problems = Problems()
    first: dict[bytes, NamedSequence] = {}
    for row in rows:
        try:
            description = described(row.name)
        except MutationError:
            continue
        try:
            wild = _reverted(row, description, first_position)
        except MutationError as error:
            problems.add(row.where, str(error), error.kind)
            continue
        if wild is not None:
            first.setdefault(wild, row)
    if problems.count:
        _check_first(rows, first_position, place)
    problems.raise_if_any(f"{place}, from which the wild type follows, or {GIVE_IT}")
    if not first:
        raise ValueError(f"no name in {place} is a substitution or WT; {GIVE_IT}")
    if len(first) > 1:
        (one, row), (other, other_row) = list(first.items())[:2]
        raise ValueError(
            f"the mutations of {place} revert to {len(first)} wild types: {_difference(one, other)}, as "
            f"{shown(row.name)} ({row.where}) and {shown(other_row.name)} ({other_row.where}) show; "
            f"{GIVE_IT}, or give the variants of one protein alone"
        )
    [tokens] = first
    return WildTypeProtein(DEFAULT_ID, np.frombuffer(tokens, dtype=np.uint8))


def _check_first(rows: Sequence[NamedSequence], first_position: int, place: str) -> None:
    """Raise ValueError if the mutants of names are in their sequences with exactly one other numbering."""
    fits = Counter[int]()
    num_stated = 0
    for row in rows:
        try:
            description = described(row.name)
        except MutationError:
            continue
        mutants = {
            Named(change.inserted, change.named[0].number)
            for change in description.changes
            if _is_substitution(change)
        }
        fits.update(fits_by_number(mutants, np.frombuffer(row.tokens, dtype=np.uint8)))
        num_stated += len(mutants)
    check_first(place, fits, num_stated, first_position, POSITION_FIELD)


def _is_substitution(change: Change) -> bool:
    is_one = len(change.named) == 1 and len(change.inserted) == 1
    return is_one and change.kind is ChangeKind.REPLACED


def _difference(one: bytes, other: bytes) -> str:
    """Describe how two proteins differ."""
    if len(one) != len(other):
        return f"they have {len(one)} and {len(other)} residues"
    differences = [place for place in range(len(one)) if one[place] != other[place]]
    place = differences[0]
    return f"they have {TOKENS[one[place]]} and {TOKENS[other[place]]} as residue {place + 1}"


def _reverted(row: NamedSequence, description: Description, first_position: int) -> bytes | None:
    """Return the wild type of one row; None if its name does not say it.

    Raises:
        MutationError: if the sequence lacks a residue that the name gives it.
    """
    if description.sequence is not None:
        return None
    wild = bytearray(row.tokens)
    for change in description.changes:
        if change.kind is not ChangeKind.SAME and not _is_substitution(change):
            return None
        for named in change.named:
            place = named.number - first_position
            mutant = change.inserted or named.letter
            found = TOKENS[wild[place]] if 0 <= place < len(wild) else None
            if found != mutant:
                has = f"has {found} there" if found else f"has {len(wild)} residues"
                raise MutationError(
                    f"{shown(row.name)}: the sequence of this row {has}, and not {mutant} at position "
                    f"{named.number}; is its first residue number {first_position} ({POSITION_FIELD})?",
                    Kind.OTHER_PROTEIN,
                )
            wild[place] = TOKENS.index(named.letter)
    return bytes(wild)
