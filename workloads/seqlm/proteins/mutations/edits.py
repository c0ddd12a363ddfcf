"""Variants of a protein as edits of its token ids."""

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .errors import MutationError


class WildType(Protocol):
    """Protein that variants are made of."""

    @property
    def id(self) -> str:
        """Id of the protein, for messages."""

    @property
    def tokens(self) -> npt.NDArray[np.uint8]:
        """Token ids, (L,), without CLS and EOS."""


@dataclass(frozen=True, slots=True)
class Edit:
    """Consecutive residues of the wild type, and what replaces them."""

    start: int
    """Place of the first replaced residue, from 0."""
    stop: int
    """Place after the last replaced residue; ``start`` if nothing is replaced, as by an insertion."""
    inserted: bytes
    """Token ids in their place; empty for a deletion."""


@dataclass(frozen=True, slots=True)
class Substitution:
    """Residue in the place of another."""

    wild: int
    """Token id of the residue in the wild type."""
    place: int
    """Position, from 0."""
    mutant: int
    """Token id of the new residue."""


@dataclass(frozen=True, slots=True)
class Variant:
    """Variant of a protein."""

    name: str
    """Name as the user wrote it."""
    edits: tuple[Edit, ...]
    """Edits in the order of the name, none of which touches another. Empty for the wild type."""
    wild: npt.NDArray[np.uint8]
    """Token ids of the wild type, (L,)."""
    linkers: tuple[tuple[int, int], ...] = ()
    """First place of each linker between chains of the wild type, and the place after it."""

    @property
    def keeps_length(self) -> bool:
        """Whether each edit replaces residues by as many, so that the variant consists of substitutions."""
        return all(len(edit.inserted) == edit.stop - edit.start for edit in self.edits)

    @property
    def substitutions(self) -> tuple[Substitution, ...]:
        """Substitutions of the variant, in the order of the name.

        Raises:
            MutationError: if residues are inserted or deleted.
        """
        if not self.keeps_length:
            raise MutationError(f"{self.name} inserts or deletes residues")
        return tuple(
            Substitution(int(self.wild[place]), place, mutant)
            for edit in self.edits
            for place, mutant in enumerate(edit.inserted, start=edit.start)
            if mutant != self.wild[place]
        )

    @property
    def num_mutations(self) -> int:
        """Number of residues that are replaced, inserted or deleted.

        An edit that inserts and deletes counts the larger of both numbers.
        """
        return sum(max(len(edit.inserted), edit.stop - edit.start) for edit in self.edits)

    @property
    def position(self) -> int | None:
        """First place that an edit changes, from 0; None for the wild type."""
        return min((edit.start for edit in self.edits), default=None)

    @property
    def tokens(self) -> npt.NDArray[np.uint8]:
        """Token ids of the variant, (L',)."""
        return self._edited(self.wild, self.edits)

    @property
    def scored_places(self) -> npt.NDArray[np.int64]:
        """Places of the variant's residues in ``tokens``, without those of linkers."""
        counts = np.ones(len(self.wild), dtype=np.uint8)
        for start, stop in self.linkers:
            counts[start:stop] = 0
        of_residues = [replace(edit, inserted=b"\1" * len(edit.inserted)) for edit in self.edits]
        return np.flatnonzero(self._edited(counts, of_residues))

    @property
    def unchanged(self) -> "Variant":
        """Wild type as a variant of itself."""
        return replace(self, edits=())

    @staticmethod
    def _edited(wild: npt.NDArray[np.uint8], edits: Sequence[Edit]) -> npt.NDArray[np.uint8]:
        """Return an array of one byte per residue, after edits."""
        parts: list[bytes] = []
        end = 0
        for edit in sorted(edits, key=_place_of):
            parts += [wild[end : edit.start].tobytes(), edit.inserted]
            end = edit.stop
        parts.append(wild[end:].tobytes())
        return np.frombuffer(b"".join(parts), dtype=np.uint8)


def _place_of(edit: Edit) -> tuple[int, int]:
    return edit.start, edit.stop


def check_apart(name: str, edits: Sequence[Edit], first_position: int = 1) -> None:
    """Raise MutationError if two edits of a variant touch one residue, or insert at one place.

    Args:
        name: name of the variant for messages.
        edits: edits of the variant.
        first_position: number of the protein's first residue in names.
    """
    by_place = sorted(edits, key=_place_of)
    for one, following in itertools.pairwise(by_place):
        if following.start < one.stop or following.start == one.start:
            raise MutationError(
                f"{name}: two mutations change the residue at position {following.start + first_position}; "
                "give each residue one mutation"
            )


def edits_between(wild: bytes, mutant: bytes) -> tuple[Edit, ...]:
    """Return the edits that make one sequence of token ids from another.

    Sequences of one length differ by substitutions. Others differ by one edit, from the first to the last
    difference.
    """
    if len(wild) == len(mutant):
        return tuple(
            Edit(place, place + 1, mutant[place : place + 1])
            for place in range(len(wild))
            if wild[place] != mutant[place]
        )
    shorter = min(len(wild), len(mutant))
    first = 0
    while first < shorter and wild[first] == mutant[first]:
        first += 1
    last = 0
    while last < shorter - first and wild[-1 - last] == mutant[-1 - last]:
        last += 1
    return (Edit(first, len(wild) - last, mutant[first : len(mutant) - last]),)
