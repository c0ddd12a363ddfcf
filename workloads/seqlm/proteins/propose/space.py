"""Variants that may be proposed: positions of a protein that may change, each with its residues.

A mutation is a number: place among the positions of the space, times 20, plus the residue. A set of N
variants is an array (N, K) of the mutations of each variant in the order of their places, filled up with
``no_mutation``.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import STANDARD_RESIDUES, TOKENS
from seqlm.proteins.mutations.edits import Variant
from seqlm.proteins.mutations.fitting import FIRST_POSITION
from seqlm.training.strict_yaml import shown

Mutations = npt.NDArray[np.int32]
NUM_RESIDUES = len(STANDARD_RESIDUES)
_POSITIONS = re.compile(r"\s*(-?\d{1,6})\s*(?:-\s*(-?\d{1,6})\s*)?(?::\s*([A-Za-z]+)\s*)?")
"""Position or range, and the residues that it may get."""


@dataclass(frozen=True)
class Space:
    """Positions and residues of the variants of one protein."""

    wild: str
    """Residues of the wild type."""
    places: tuple[int, ...]
    """Places of the protein that mutations are known or allowed at, from 0, in order."""
    allowed: tuple[str, ...]
    """New residues that each place may get; empty at places that were mutated but may not change."""
    max_mutations: int
    """Largest number of mutations of a proposed variant."""
    first_position: int = 1
    """Number of the protein's first residue in names."""

    @property
    def no_mutation(self) -> int:
        """Number that stands for no mutation."""
        return len(self.places) * NUM_RESIDUES

    @cached_property
    def _index(self) -> dict[int, int]:
        return {place: index for index, place in enumerate(self.places)}

    @cached_property
    def wild_residues(self) -> npt.NDArray[np.int32]:
        """Residue of the wild type at each place, (P,); -1 if it is none of the 20."""
        return np.array(
            [STANDARD_RESIDUES.find(self.wild[place]) for place in self.places], dtype=np.int32
        )

    def with_places(self, variants: Sequence[Variant]) -> "Space":
        """Return a space that also has the places of variants; no residue is allowed at new places."""
        allowed = dict(zip(self.places, self.allowed, strict=True))
        for variant in variants:
            for one in variant.substitutions:
                allowed.setdefault(one.place, "")
        places = tuple(sorted(allowed))
        return Space(
            self.wild,
            places,
            tuple(allowed[place] for place in places),
            self.max_mutations,
            self.first_position,
        )

    def num_variants(self) -> int:
        """Return the number of variants that may be proposed."""
        counts = [1] + [0] * self.max_mutations
        for residues in self.allowed:
            for number in range(self.max_mutations, 0, -1):
                counts[number] += counts[number - 1] * len(residues)
        return sum(counts[1:])

    def mutations_at(self, index: int) -> Mutations:
        """Return the allowed mutations of the place with this index."""
        numbers = [STANDARD_RESIDUES.index(letter) for letter in self.allowed[index]]
        return np.array(numbers, dtype=np.int32) + index * NUM_RESIDUES

    def all_variants(self) -> Mutations:
        """Return all variants that may be proposed, (N, K)."""
        none = self.no_mutation
        last = np.zeros((1, 0), dtype=np.int32)
        found: list[Mutations] = []
        for number in range(self.max_mutations):
            longer = [np.zeros((0, number + 1), dtype=np.int32)]
            for index in range(len(self.places)):
                new = self.mutations_at(index)
                before = last[last[:, -1] < index * NUM_RESIDUES] if number else last
                rows = np.repeat(before, len(new), axis=0)
                longer.append(np.concatenate([rows, np.tile(new, len(before))[:, None]], axis=1))
            last = np.concatenate(longer)
            found.append(
                np.pad(last, ((0, 0), (0, self.max_mutations - number - 1)), constant_values=none)
            )
        return np.concatenate(found)

    def numbered(self, variants: Sequence[Variant]) -> Mutations:
        """Return variants that substitute residues at known places, (N, K)."""
        rows = []
        for variant in variants:
            by_place = sorted(variant.substitutions, key=lambda one: one.place)
            rows.append(
                [
                    self._index[one.place] * NUM_RESIDUES
                    + STANDARD_RESIDUES.index(TOKENS[one.mutant])
                    for one in by_place
                ]
            )
        width = max([self.max_mutations, *map(len, rows)])
        found = np.full((len(rows), width), self.no_mutation, dtype=np.int32)
        for row, numbers in enumerate(rows):
            found[row, : len(numbers)] = numbers
        return found

    def residues(self, mutations: Mutations) -> npt.NDArray[np.int32]:
        """Return the residue of each variant at each place, (N, P)."""
        found = np.tile(self.wild_residues, (len(mutations), 1))
        rows, columns = np.nonzero(mutations != self.no_mutation)
        numbers = mutations[rows, columns]
        found[rows, numbers // NUM_RESIDUES] = numbers % NUM_RESIDUES
        return found

    def changes(self, row: Mutations) -> Iterator[tuple[int, str]]:
        """Yield place and new residue of each mutation of a variant, (K,)."""
        for number in row.tolist():
            if number != self.no_mutation:
                yield self.places[number // NUM_RESIDUES], STANDARD_RESIDUES[number % NUM_RESIDUES]

    def name(self, row: Mutations) -> str:
        """Return the name of a variant, (K,); ``WT`` without mutations."""
        parts = [
            f"{self.wild[place]}{place + self.first_position}{letter}"
            for place, letter in self.changes(row)
        ]
        return ":".join(parts) or "WT"

    def sequence(self, row: Mutations) -> str:
        """Return the residues of a variant, (K,)."""
        letters = list(self.wild)
        for place, letter in self.changes(row):
            letters[place] = letter
        return "".join(letters)

    def keys(self, mutations: Mutations, width: int) -> list[bytes]:
        """Return a value for each variant, which is equal for equal ones.

        Args:
            mutations: variants, (N, K).
            width: number of columns of all sets that are compared, at least K.
        """
        padding = ((0, 0), (0, width - mutations.shape[1]))
        padded = np.pad(mutations, padding, constant_values=self.no_mutation)
        size = width * padded.itemsize
        data = padded.tobytes()
        return [data[first : first + size] for first in range(0, len(data), size)]


def space_of(
    wild: str,
    positions: Sequence[str],
    residues: str,
    max_mutations: int,
    first_position: int = 1,
    field: str = FIRST_POSITION,
) -> Space:
    """Return the space that the run file describes.

    Args:
        wild: residues of the wild type.
        positions: positions or ranges, with their residues after a colon; empty for all positions.
        residues: residues that positions without a list of their own may get.
        max_mutations: largest number of mutations of a variant.
        first_position: number of the protein's first residue.
        field: name of that number for the user.

    Raises:
        ValueError: if a position is outside the protein, or no variant is left.
    """
    residues = _checked(residues, "propose.residues")
    chosen = _chosen(wild, positions, residues, first_position, field)
    allowed = {
        place: letters.replace(wild[place], "")
        for place, letters in sorted(chosen.items())
        if wild[place] in STANDARD_RESIDUES
    }
    allowed = {place: letters for place, letters in allowed.items() if letters}
    if not allowed:
        raise ValueError(
            "propose.positions, propose.residues: no position may get a residue other than its own; name "
            "more positions or residues"
        )
    return Space(
        wild,
        tuple(allowed),
        tuple(allowed.values()),
        min(max_mutations, len(allowed)),
        first_position,
    )


def _chosen(
    wild: str, positions: Sequence[str], residues: str, first_position: int, field: str
) -> Mapping[int, str]:
    """Return the residues of each place that may change."""
    if not positions:
        return dict.fromkeys(range(len(wild)), residues)
    last_position = first_position + len(wild) - 1
    chosen: dict[int, str] = {}
    for text in positions:
        match = _POSITIONS.fullmatch(text)
        if match is None:
            raise ValueError(
                f"propose.positions: got {shown(text)}; expected a position or a range, maybe with its "
                "residues, such as 39, 39-54 or 41:ACLF"
            )
        start = int(match[1])
        end = start if match[2] is None else int(match[2])
        if not first_position <= start <= end <= last_position:
            raise ValueError(
                f"propose.positions: got {shown(text)}; the protein has the positions {first_position} to "
                f"{last_position} ({field} is the number of its first residue)"
            )
        letters = _checked(match[3], f"propose.positions: {text}") if match[3] else residues
        for position in range(start, end + 1):
            place = position - first_position
            if match[2] is None and wild[place] not in STANDARD_RESIDUES:
                raise ValueError(
                    f"propose.positions: got {shown(text)}; the protein has {wild[place]} there, which is "
                    f"none of the residues {STANDARD_RESIDUES}"
                )
            chosen[place] = letters
    return chosen


def _checked(letters: str, field: str) -> str:
    """Return residues in the order of the alphabet, each once.

    Raises:
        ValueError: if a letter is none of the 20 residues.
    """
    wanted = set(letters.upper())
    wrong = sorted(wanted - set(STANDARD_RESIDUES))
    if wrong or not wanted:
        got = shown("".join(wrong)) if wrong else "no residue"
        raise ValueError(f"{field}: got {got}; allowed are the residues {STANDARD_RESIDUES}")
    return "".join(letter for letter in STANDARD_RESIDUES if letter in wanted)
