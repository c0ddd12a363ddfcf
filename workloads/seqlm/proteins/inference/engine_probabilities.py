"""Log probabilities of residues by a masked language model; scores of variants, and pseudo-perplexity."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import MASK
from seqlm.proteins.mutations.edits import Variant

from .engine import MASKED_LOGITS, TOKEN_LOGITS, Array, Engine
from .variant_scores import MASKED_MARGINALS, pseudo_log_likelihood, score_of

Tokens = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


class EngineProbabilities:
    """Log probabilities of the vocabulary, which an engine computes.

    Args:
        engine: engine with a masked language model.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def masked(self, protein: Tokens, places: Sequence[int]) -> dict[int, Floats]:
        """Return those of each place, (V,), when it alone is masked; a long protein is read around it."""
        max_residues = self._engine.max_residues
        masked = [_masked(protein, place, max_residues) for place in places]
        answers = self._engine.run(masked, MASKED_LOGITS)
        return {place: _log_softmax(found) for place, found in zip(places, answers, strict=True)}

    def seen(self, proteins: Sequence[Tokens]) -> list[Floats]:
        """Return those of all residues of each protein, (L, V); long ones are read in windows."""
        return [_log_softmax(found) for found in self._engine.run(proteins, TOKEN_LOGITS)]


def score_variants(
    engine: Engine, protein: Tokens, wanted: Sequence[Variant], score: str = MASKED_MARGINALS
) -> list[float]:
    """Return the scores of variants of one protein, in nats.

    Args:
        engine: engine with a masked language model.
        protein: token ids of the wild type, (L,), without CLS and EOS.
        wanted: variants of the protein.
        score: name of the score.

    Raises:
        ValueError: if there is no such score, or a variant has insertions or deletions that it does not take.
    """
    if not wanted:
        return []
    return score_of(score).compute(EngineProbabilities(engine), protein, wanted)


def pseudo_perplexity(
    engine: Engine, protein: Tokens, places: Sequence[int] | None = None
) -> float:
    """Return exp of the mean of -log p of residues, each masked alone.

    Args:
        engine: engine with a masked language model.
        protein: token ids, (L,).
        places: places of the residues that count; all by default.
    """
    chosen = range(len(protein)) if places is None else places
    total = pseudo_log_likelihood(EngineProbabilities(engine), protein, chosen)
    return float(np.exp(-total / len(chosen)))


def _masked(protein: Tokens, place: int, max_residues: int) -> Tokens:
    """Return the protein with one residue masked; of a long protein, the window around that residue."""
    centred = max(0, place - max_residues // 2)
    last_start = max(0, len(protein) - max_residues)
    start = min(centred, last_start)
    window = protein[start : start + max_residues].copy()
    window[place - start] = MASK
    return window


def _log_softmax(logits: Array) -> Floats:
    """Return log probabilities over the whole vocabulary, (..., V), like the training loss."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
