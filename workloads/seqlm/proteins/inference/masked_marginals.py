"""Masked marginals (Meier et al. 2021) and pseudo-perplexity; each position is masked alone."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import MASK

from .engine import MASKED_LOGITS, Array, Engine
from .mutations import Variant


def masked_marginals(
    engine: Engine, protein: npt.NDArray[np.uint8], wanted: Sequence[Variant]
) -> list[float]:
    """Return the scores of variants of one protein, in nats.

    Args:
        engine: engine with a masked language model.
        protein: token ids of the wild type, (L,), without CLS and EOS.
        wanted: variants that fit the protein.
    """
    log_p = _log_probabilities(engine, protein, places_of(wanted))
    scores = []
    for variant in wanted:
        changes = [
            log_p[one.place][one.mutant] - log_p[one.place][one.wild]
            for one in variant.substitutions
        ]
        scores.append(float(sum(changes)))
    return scores


def pseudo_perplexity(engine: Engine, protein: npt.NDArray[np.uint8]) -> float:
    """Return exp of the mean of -log p of each residue, masked alone, for token ids (L,)."""
    log_p = _log_probabilities(engine, protein, range(len(protein)))
    of_residues = [log_p[place][token] for place, token in enumerate(protein.tolist())]
    return float(np.exp(-np.mean(of_residues)))


def _log_probabilities(
    engine: Engine, protein: npt.NDArray[np.uint8], places: Sequence[int]
) -> dict[int, npt.NDArray[np.float64]]:
    """Return the log probabilities of the vocabulary, (V,), at each place; a place is masked alone."""
    masked = [_masked(protein, place, engine.max_residues) for place in places]
    answers = engine.run(masked, MASKED_LOGITS)
    return {place: _log_softmax(found) for place, found in zip(places, answers, strict=True)}


def places_of(wanted: Sequence[Variant]) -> list[int]:
    """Return the mutated positions of variants, from 0, in order."""
    return sorted(
        {substitution.place for variant in wanted for substitution in variant.substitutions}
    )


def _masked(protein: npt.NDArray[np.uint8], place: int, max_residues: int) -> npt.NDArray[np.uint8]:
    """Return the protein with one residue masked; of a long protein, the window around that residue."""
    centred = max(0, place - max_residues // 2)
    last_start = max(0, len(protein) - max_residues)
    start = min(centred, last_start)
    window = protein[start : start + max_residues].copy()
    window[place - start] = MASK
    return window


def _log_softmax(logits: Array) -> npt.NDArray[np.float64]:
    """Return log probabilities over the whole vocabulary, like the training loss."""
    shifted = logits.astype(np.float64) - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))
