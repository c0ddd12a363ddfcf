"""Log probabilities of residues by a masked language model; scores of variants, and pseudo-perplexity."""

from collections.abc import Iterable, Mapping, Sequence
from itertools import islice

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import MASK
from seqlm.proteins.mutations.edits import Variant

from .engine import MASKED_LOGITS, TOKEN_LOGITS, Array, Engine
from .variant_scores import MASKED_MARGINALS, LogProbabilities, pseudo_log_likelihood, score_of

Tokens = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]


VARIANTS_AT_ONCE = 100_000
"""Variants of a protein that are held in memory at once, each in about 500 bytes."""


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


class _RememberingWildType:
    """Log probabilities of which those of the wild type are computed once, for all groups of its variants.

    Args:
        logs: log probabilities of the model.
        wild: token ids of the wild type, (L,).
    """

    def __init__(self, logs: LogProbabilities, wild: Tokens) -> None:
        self._logs = logs
        self._wild = wild
        self._masked: dict[int, Floats] = {}
        self._seen: Sequence[Floats] = []

    def masked(self, protein: Tokens, places: Sequence[int]) -> Mapping[int, Floats]:
        if protein is not self._wild:
            return self._logs.masked(protein, places)
        missing = [place for place in places if place not in self._masked]
        if missing:
            self._masked.update(self._logs.masked(protein, missing))
        return self._masked

    def seen(self, proteins: Sequence[Tokens]) -> Sequence[Floats]:
        if not (len(proteins) == 1 and proteins[0] is self._wild):
            return self._logs.seen(proteins)
        if not self._seen:
            self._seen = self._logs.seen(proteins)
        return self._seen


def score_variants(
    engine: Engine, protein: Tokens, wanted: Iterable[Variant], score: str = MASKED_MARGINALS
) -> list[float]:
    """Return the scores of variants of one protein, in nats.

    ``VARIANTS_AT_ONCE`` of them are held in memory.

    Args:
        engine: engine with a masked language model.
        protein: token ids of the wild type, (L,), without CLS and EOS.
        wanted: variants of the protein.
        score: name of the score.

    Raises:
        ValueError: if there is no such score, or a variant has insertions or deletions that it does not take.
    """
    chosen = score_of(score)
    logs = _RememberingWildType(EngineProbabilities(engine), protein)
    scores: list[float] = []
    remaining = iter(wanted)
    while group := list(islice(remaining, VARIANTS_AT_ONCE)):
        scores += chosen.compute(logs, protein, group)
    return scores


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
