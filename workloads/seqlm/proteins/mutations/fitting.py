"""Variants of a protein from their descriptions: the residues that a name states must be there."""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import TOKENS, encode
from seqlm.proteins.reading.policies import Kind
from seqlm.training.strict_yaml import shown

from .changes import Change, ChangeKind, Named
from .edits import Edit, Variant, WildType, check_apart, edits_between
from .errors import MutationError, ResidueError
from .names import Description, described
from .similarity import num_common_residues

FIRST_POSITION = "inference.first_position"
"""Field of the run file with the number of the first residue."""
LEAST_IDENTITY = 0.5
"""Least share of residues that a whole sequence has in common with the wild type, of the longer one of both.
Unrelated proteins share about 0.3. Of 3,287 pairs of the bundled proteins, cut to 40 residues or more, one
reached 0.5."""
LEAST_FITTING = 0.9
"""Least share of the stated residues that another number of the first residue must explain to be named."""
MOST_BY_CHANCE = 0.5
"""Share of the stated residues above which a number of the first residue is taken as right."""
LARGEST_RATIO = 2.0
"""Largest ratio of the lengths of a whole sequence and its wild type."""
_NOWHERE = np.zeros(0, dtype=np.int64)
"""Places of a residue that a protein does not have."""


def parse_variant(
    name: str, protein: WildType, first_position: int = 1, field: str = FIRST_POSITION
) -> Variant:
    """Return the variant of a protein that a name describes.

    Args:
        name: name of the variant.
        protein: wild type.
        first_position: number of the protein's first residue in names.
        field: name of that number for the user.

    Raises:
        MutationError: if the name has another form, or does not fit the protein.
    """
    return fitted(described(name), protein, first_position, field)


def fitted(
    description: Description,
    protein: WildType,
    first_position: int = 1,
    field: str = FIRST_POSITION,
) -> Variant:
    """Return the variant of a protein that a description means.

    The other parameters are those of ``parse_variant``.

    Raises:
        MutationError: if it does not fit the protein.
    """
    name = description.name
    wild = np.asarray(protein.tokens, dtype=np.uint8)
    if description.sequence is not None:
        return variant_of(name, encode(description.sequence).tobytes(), protein)
    found = [_edit(change, protein, first_position, field) for change in description.changes]
    edits = tuple(edit for edit in found if edit is not None)
    check_apart(shown(name), edits, first_position)
    variant = Variant(name, edits, wild)
    if not len(variant.tokens):
        raise MutationError(f"{shown(name)} deletes all residues of {protein.id}; leave it out")
    return variant


def variant_of(name: str, mutant: bytes, protein: WildType) -> Variant:
    """Return the variant of a protein with the given token ids.

    Raises:
        MutationError: if they are hardly a variant of the protein.
    """
    check_sequence(name, mutant, protein)
    wild = np.asarray(protein.tokens, dtype=np.uint8)
    return Variant(name, edits_between(wild.tobytes(), mutant), wild)


def check_sequence(name: str, mutant: bytes, protein: WildType) -> None:
    """Raise MutationError if a whole sequence is hardly a variant of a protein."""
    wild = bytes(protein.tokens)
    longest = max(len(wild), len(mutant))
    if longest > LARGEST_RATIO * min(len(wild), len(mutant)):
        raise MutationError(
            f"{shown(name)} has {len(mutant)} residues, and {protein.id} has {len(wild)}; give "
            "the whole sequence of the variant, or a mutation such as A42G",
            Kind.OTHER_PROTEIN,
        )
    if len(wild) == len(mutant):
        agreeing = sum(one == other for one, other in zip(wild, mutant, strict=True))
        found = f"{agreeing} of the {longest} residues of {protein.id}"
    else:
        agreeing = num_common_residues(wild, mutant)
        found = (
            f"{len(mutant)} residues, of which {agreeing} are in {protein.id} ({len(wild)} residues) in the "
            "same order"
        )
    if agreeing < LEAST_IDENTITY * longest:
        raise MutationError(
            f"{shown(name)} has {found}; at least half, {math.ceil(LEAST_IDENTITY * longest)}, must agree. "
            "Is this the right protein?",
            Kind.OTHER_PROTEIN,
        )


def _edit(change: Change, protein: WildType, first_position: int, field: str) -> Edit | None:
    """Return the edit of a change; None if nothing changes.

    Raises:
        MutationError: if a residue that the change names is not there.
    """
    for named in change.named:
        _check_residue(change, named, protein, first_position, field)
    start = change.named[0].number - first_position
    stop = change.named[-1].number - first_position + 1
    inserted = bytes(TOKENS.index(letter) for letter in change.inserted)
    match change.kind:
        case ChangeKind.REPLACED:
            if inserted == bytes(protein.tokens[start:stop]):
                return None
            return Edit(start, stop, inserted)
        case ChangeKind.INSERTED:
            return Edit(start + 1, start + 1, inserted)
        case ChangeKind.DUPLICATED:
            return Edit(stop, stop, bytes(protein.tokens[start:stop]))
        case ChangeKind.SAME:
            return None


def _check_residue(
    change: Change, named: Named, protein: WildType, first_position: int, field: str
) -> None:
    """Raise ResidueError if a residue that a change names is not there."""
    length = len(protein.tokens)
    last_position = first_position + length - 1
    if not first_position <= named.number <= last_position:
        raise ResidueError(
            f"{change.text}: position {named.number} is outside {protein.id}, which has the positions "
            f"{first_position} to {last_position} ({field} is the number of its first residue)"
        )
    there = TOKENS[int(protein.tokens[named.number - first_position])]
    if there != named.letter:
        raise ResidueError(
            f"{change.text}: {protein.id} has {there} at position {named.number}, not "
            f"{named.letter}; is this the right protein, and is its first residue number {first_position} "
            f"({field})?"
        )


def check_numbering(
    names: Iterable[str],
    protein: WildType,
    first_position: int = 1,
    field: str = FIRST_POSITION,
) -> None:
    """Raise ValueError if names do not fit a protein, and exactly one other numbering makes all fit.

    If there are many names, a few may be wrong. A numbering is not corrected: residues that agree by chance
    would give the scores of other positions. Names that cannot be read are left out.

    Args:
        names: names of variants.
        protein: wild type.
        first_position: number of the protein's first residue in the names.
        field: name of that number for the user.
    """
    stated = set(stated_residues(names))
    fits = fits_by_number(stated, protein.tokens)
    check_first(protein.id, fits, len(stated), first_position, field)


def fits_by_number(stated: Iterable[Named], tokens: npt.NDArray[np.uint8]) -> Counter[int]:
    """Return the number of stated residues that are there, by the number of the protein's first residue.

    Args:
        stated: residues that names state.
        tokens: token ids of the protein, (L,).
    """
    known = list(stated)
    if not known:
        return Counter()
    numbers = [named.number for named in known]
    lowest = min(numbers) - len(tokens) + 1
    counts = np.zeros(max(numbers) - lowest + 1, dtype=np.int64)
    places = {token: np.flatnonzero(tokens == token) for token in np.unique(tokens).tolist()}
    for named in known:
        firsts = named.number - places.get(TOKENS.index(named.letter), _NOWHERE)
        counts[firsts - lowest] += 1
    found = np.flatnonzero(counts)
    return Counter(dict(zip((found + lowest).tolist(), counts[found].tolist(), strict=True)))


def check_first(
    name: str, fits: Mapping[int, int], num_stated: int, first_position: int, field: str
) -> None:
    """Raise ValueError if exactly one number of the first residue fits, and it is another one.

    A number fits if all stated residues are there. If none does, and fewer than half are there with the
    number of the user, most of them are enough.

    Args:
        name: id of the protein.
        fits: number of stated residues that are there, by the number of the first residue.
        num_stated: number of stated residues.
        first_position: number of the first residue.
        field: name of that number for the user.
    """
    with_it = fits.get(first_position, 0)
    if with_it == num_stated:
        return
    fitting = [number for number, count in fits.items() if count == num_stated]
    if not fitting and with_it < MOST_BY_CHANCE * num_stated:
        fitting = [number for number, count in fits.items() if count >= LEAST_FITTING * num_stated]
    if len(fitting) != 1:
        return
    [other] = fitting
    share = "all of them" if fits[other] == num_stated else f"{fits[other]} of {num_stated}"
    raise ValueError(
        f"the mutations of {name} do not fit the residues if the first one has the number "
        f"{first_position}, and {share} fit if it has the number {other}; if that is right, set "
        f"{field}={other}"
    )


def stated_residues(names: Iterable[str]) -> Iterator[Named]:
    """Yield the residues that the readable ones of some names state."""
    for name in names:
        try:
            description = described(name)
        except MutationError:
            continue
        for change in description.changes:
            yield from change.named
