"""Table of the scores of variants, in nats. Above 0, the model finds the variant likelier than the wild type.

M are the mutated places of a variant, x the wild type with the residues w, y the variant with the residues m.
``x without i`` is x with the residue at i masked. The first three scores are those of Meier et al. 2021
(https://doi.org/10.1101/2021.07.09.450648), computed as their program does. They take several mutations as
independent of each other, and need a variant as long as the wild type.

The run file's values, its schema and ``--help``, ``seqlm.Model.variants`` and the documentation follow from
the table. Imports the standard library alone, because ``--help`` reads it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from seqlm.proteins.mutations.edits import Variant

    Tokens = npt.NDArray[np.uint8]
    Floats = npt.NDArray[np.float64]


class LogProbabilities(Protocol):
    """Log probabilities of the vocabulary by a model; V is its size."""

    def masked(self, protein: Tokens, places: Sequence[int]) -> Mapping[int, Floats]:
        """Return those of each place, (V,), when it alone is masked in the protein (L,)."""

    def seen(self, proteins: Sequence[Tokens]) -> Sequence[Floats]:
        """Return those of all residues of each protein, (L, V), when nothing is masked."""


@dataclass(frozen=True, kw_only=True)
class VariantScore:
    """Way to score the variants of a protein."""

    formula: str
    """Definition, as the documentation shows it."""
    passes: str
    """Number of proteins that the model reads for one wild type, as the documentation shows it."""
    exactness: str
    """Whether the score is exact, and what it leaves out, as the documentation shows it."""
    use: str
    """Use of the score, as the documentation shows it."""
    takes_indels: bool
    """Whether variants may be shorter or longer than the wild type."""
    is_distribution: bool
    """Whether the scores of a place's residues come from one distribution, which gives its entropy."""
    compute: Callable[[LogProbabilities, Tokens, Sequence[Variant]], list[float]]
    """Return the scores of variants of one protein, whose token ids (L,) it gets."""
    num_reads: Callable[[Tokens, Iterable[Variant]], int]
    """Return the number of proteins that the model reads for ``compute``; 0 without variants."""


def _masked_marginals(
    logs: LogProbabilities, wild: Tokens, wanted: Sequence[Variant]
) -> list[float]:
    log_p = logs.masked(wild, places_of(wanted))
    return [_total(variant, log_p) for variant in wanted]


def _wild_type_marginals(
    logs: LogProbabilities, wild: Tokens, wanted: Sequence[Variant]
) -> list[float]:
    [log_p] = logs.seen([wild])
    return [_total(variant, log_p) for variant in wanted]


def _mutant_marginals(
    logs: LogProbabilities, wild: Tokens, wanted: Sequence[Variant]
) -> list[float]:
    scores: list[float] = []
    for first in range(0, len(wanted), VARIANTS_AT_ONCE):
        group = wanted[first : first + VARIANTS_AT_ONCE]
        found = logs.seen([variant.tokens for variant in group])
        scores += [_total(variant, log_p) for variant, log_p in zip(group, found, strict=True)]
    return scores


def _pseudo_log_likelihoods(
    logs: LogProbabilities, wild: Tokens, wanted: Sequence[Variant]
) -> list[float]:
    found = {
        name: pseudo_log_likelihood(logs, variant.tokens, variant.scored_places.tolist())
        for name, variant in _different(wanted).items()
    }
    of_wild = found[_identity(wanted[0].unchanged)]
    return [found[_identity(variant)] - of_wild for variant in wanted]


def _different(wanted: Iterable[Variant]) -> dict[tuple[bytes, bytes], Variant]:
    """Return the wild type and each variant once, however they are called; empty without variants."""
    found: dict[tuple[bytes, bytes], Variant] = {}
    for variant in wanted:
        if not found:
            wild = variant.unchanged
            found[_identity(wild)] = wild
        found[_identity(variant)] = variant
    return found


def _identity(variant: Variant) -> tuple[bytes, bytes]:
    """Return what the pseudo-log-likelihood of a variant depends on."""
    return variant.tokens.tobytes(), variant.scored_places.tobytes()


def pseudo_log_likelihood(logs: LogProbabilities, protein: Tokens, places: Sequence[int]) -> float:
    """Return the sum of log p of residues, each masked alone (Salazar et al. 2020).

    Args:
        logs: log probabilities of the model.
        protein: token ids, (L,).
        places: places of the residues that count, all but those of linkers between chains.
    """
    log_p = logs.masked(protein, places)
    return float(sum(log_p[place][int(protein[place])] for place in places))


def _total(variant: Variant, log_p: Mapping[int, Floats] | Floats) -> float:
    """Return the sum of log p(mutant) - log p(wild type) from the log probabilities of each place, (V,)."""
    changes = [
        log_p[one.place][one.mutant] - log_p[one.place][one.wild] for one in variant.substitutions
    ]
    return float(sum(changes))


def places_of(wanted: Iterable[Variant]) -> list[int]:
    """Return the mutated places of variants that keep the length, from 0, in order."""
    return sorted({one.place for variant in wanted for one in variant.substitutions})


VARIANTS_AT_ONCE = 256
"""Number of variants whose log probabilities are held at once; those of 1,000 residues take 264 kB each."""
MASKED_MARGINALS = "masked_marginals"
"""Default score."""
SCORES: Mapping[str, VariantScore] = {
    MASKED_MARGINALS: VariantScore(
        formula="sum over i in M of log p(m_i \\| x without i) - log p(w_i \\| x without i)",
        passes="one per mutated place",
        exactness=(
            "For one mutation: it is the model's log odds of the two residues, given all others. Several "
            "mutations are taken as independent of each other."
        ),
        use="The default, and the best of the first three in that paper.",
        takes_indels=False,
        is_distribution=True,
        compute=_masked_marginals,
        num_reads=lambda wild, wanted: len(places_of(wanted)),
    ),
    "wild_type_marginals": VariantScore(
        formula="sum over i in M of log p(m_i \\| x) - log p(w_i \\| x)",
        passes="one",
        exactness=(
            "No. It approximates masked marginals, because the model sees the residue that it scores. "
            "Several mutations are taken as independent."
        ),
        use="Many proteins, or a first look: it is the fastest.",
        takes_indels=False,
        is_distribution=True,
        compute=_wild_type_marginals,
        num_reads=lambda wild, wanted: int(any(True for _ in wanted)),
    ),
    "mutant_marginals": VariantScore(
        formula="sum over i in M of log p(m_i \\| y) - log p(w_i \\| y)",
        passes="one per variant",
        exactness=(
            "No. The other mutations of a variant count, but the model sees the residues that it scores."
        ),
        use="Variants with several mutations that act on each other.",
        takes_indels=False,
        is_distribution=False,
        compute=_mutant_marginals,
        num_reads=lambda wild, wanted: sum(1 for _ in wanted),
    ),
    "pseudo_log_likelihood": VariantScore(
        formula="sum over all i of log p(m_i \\| y without i), less the same sum for x",
        passes="one per residue of the wild type and of each different variant",
        exactness=(
            "Yes: each residue is masked, and no interaction is left out. It is no log-likelihood, which "
            "masked models do not define. Each residue adds a negative number, so longer variants score "
            "lower; compare variants of similar length."
        ),
        use="Insertions and deletions, which no other score takes; a few variants with many mutations.",
        takes_indels=True,
        is_distribution=False,
        compute=_pseudo_log_likelihoods,
        num_reads=lambda wild, wanted: sum(
            len(one.scored_places) for one in _different(wanted).values()
        ),
    ),
}
"""Values of ``inference.score``."""


def score_of(name: str) -> VariantScore:
    """Return a score by its name.

    Raises:
        ValueError: if there is no such score.
    """
    if name not in SCORES:
        raise ValueError(f"score: got {name!r}; allowed are {', '.join(SCORES)}")
    return SCORES[name]
