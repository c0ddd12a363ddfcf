"""Table of the splits of the variants of one protein (``task.split.variants``).

Folds by position are those of ProteinGym's supervised benchmark (Notin et al. 2023, Advances in Neural
Information Processing Systems 36), computed as its program does: ``proteinnpt/utils/cv_split.py`` of
github.com/OATML-Markslab/ProteinNPT, commit 7e715f0. Position means mutated position: positions without a
variant have no fold. That program places a variant by the first mutation of its name. ProteinGym leaves
variants with several mutations out of folds by position; here they stay.

The run file's values, its schema and ``--help`` and the documentation follow from the table. Imports the
standard library alone, because ``--help`` reads it.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

TRAIN = "train"
VALIDATION = "validation"
TEST = "test"
FOLDS = 5
"""Default number of folds, as in ProteinGym."""
LEAST_FOLDS = 3
"""Smallest number of folds: one each for training, validation and the test."""
FIRST_FOLD = 0
"""Fold of the test by default."""
MAX_TRAIN_MUTATIONS = 1
"""Default number of mutations up to which variants are trained on."""
_ALL_HASHES = 2**64


@dataclass(frozen=True)
class Placed:
    """Facts about a variant that decide on its split."""

    position: int | None
    """First position that differs from the wild type, from 0; None for the wild type."""
    num_mutations: int
    key: int
    """64-bit hash of the sequence."""


@dataclass(frozen=True)
class Choice:
    """Numbers of the run file."""

    folds: int
    fold: int
    """Fold of the test."""
    max_train_mutations: int
    validation_fraction: float
    """Share of the variants for training that validates, if there are no folds."""


@dataclass(frozen=True, kw_only=True)
class VariantSplit:
    """Way to hold out variants of one protein."""

    test: str
    """Rule of the test split, as the documentation shows it."""
    validation: str
    """Rule of the validation split, as the documentation shows it."""
    use: str
    """Question that the split answers, as the documentation shows it."""
    takes_indels: bool
    """Whether variants may be shorter or longer than the wild type."""
    has_folds: bool
    """Whether ``folds`` and ``fold`` choose the test; otherwise ``max_train_mutations`` does."""
    by_position: bool
    """Whether the first mutated position decides."""
    assign: Callable[[Sequence[Placed], Choice], list[str]]
    """Return ``TRAIN``, ``VALIDATION`` or ``TEST`` for each variant."""


def position_folds(
    variants: Sequence[Placed], fold_of: Callable[[int, int], int]
) -> list[int | None]:
    """Return the fold of each variant by its first mutated position; None for the wild type.

    Args:
        variants: variants.
        fold_of: function that returns the fold of a position from its rank among all mutated positions, and
            their number.
    """
    positions = sorted({one.position for one in variants if one.position is not None})
    folds = {place: fold_of(rank, len(positions)) for rank, place in enumerate(positions)}
    return [None if one.position is None else folds[one.position] for one in variants]


def _split(folds: Sequence[int | None], choice: Choice) -> list[str]:
    """Return the splits of variants by their folds. The next fold validates, and the wild type trains."""
    parts: dict[int | None, str] = {
        choice.fold: TEST,
        (choice.fold + 1) % choice.folds: VALIDATION,
    }
    return [parts.get(fold, TRAIN) for fold in folds]


def _random(variants: Sequence[Placed], choice: Choice) -> list[str]:
    return _split([one.key % choice.folds for one in variants], choice)


def _contiguous(variants: Sequence[Placed], choice: Choice) -> list[str]:
    def fold_of(rank: int, number: int) -> int:
        """Return the stretch of a position. The first stretches have one more if not all are equal."""
        size, longer = divmod(number, choice.folds)
        in_longer = longer * (size + 1)
        if rank < in_longer:
            return rank // (size + 1)
        return longer + (rank - in_longer) // size

    return _split(position_folds(variants, fold_of), choice)


def _modulo(variants: Sequence[Placed], choice: Choice) -> list[str]:
    return _split(position_folds(variants, lambda rank, number: rank % choice.folds), choice)


def _mutations(variants: Sequence[Placed], choice: Choice) -> list[str]:
    bound = choice.validation_fraction * _ALL_HASHES
    found = []
    for one in variants:
        held_back = VALIDATION if one.key < bound else TRAIN
        found.append(TEST if one.num_mutations > choice.max_train_mutations else held_back)
    return found


VARIANT_SPLITS: Mapping[str, VariantSplit] = {
    "random": VariantSplit(
        test="Fold `fold` of `folds`. A hash of the sequence assigns each variant to a fold.",
        validation="the next fold",
        use="Other residues at positions with measured variants. It is the easiest split.",
        takes_indels=True,
        has_folds=True,
        by_position=False,
        assign=_random,
    ),
    "contiguous": VariantSplit(
        test="Fold `fold` of `folds`. The mutated positions are cut into stretches of equal numbers.",
        validation="the next fold",
        use="A region without measured variants. It is the hardest split by position.",
        takes_indels=False,
        has_folds=True,
        by_position=True,
        assign=_contiguous,
    ),
    "modulo": VariantSplit(
        test="Fold `fold` of `folds`. The mutated positions go to the folds in turn.",
        validation="the next fold",
        use="Positions without measured variants, between positions that have some.",
        takes_indels=False,
        has_folds=True,
        by_position=True,
        assign=_modulo,
    ),
    "mutations": VariantSplit(
        test="Variants with more than `max_train_mutations` mutations.",
        validation="the share `data.validation_fraction` of the others, by a hash of the sequence",
        use="Combinations of mutations that were measured one by one, or in small numbers.",
        takes_indels=True,
        has_folds=False,
        by_position=False,
        assign=_mutations,
    ),
}
"""Values of ``task.split.variants``."""
