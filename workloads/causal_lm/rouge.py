"""ROUGE-1, -2, -L and -Lsum (Lin 2004) by Google's rouge-score, as F-measures without a stemmer.

Its words are runs of the letters a to z and of digits: text in other scripts scores 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from rouge_score.rouge_scorer import RougeScorer

MEASURES = ("rouge1", "rouge2", "rougeL", "rougeLsum")


def rouge(reference: str, written: str) -> dict[str, float]:
    """Scores of one text, 0 to 1. ROUGE-Lsum takes a line for a sentence."""
    found = RougeScorer(list(MEASURES), use_stemmer=False).score(reference, written)
    return {name: float(found[name].fmeasure) for name in MEASURES}


def mean_scores(scores: Sequence[Mapping[str, float]]) -> dict[str, float]:
    return {name: float(np.mean([found[name] for found in scores])) for name in MEASURES}
