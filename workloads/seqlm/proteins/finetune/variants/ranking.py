"""Scores of a ranking of variants, and the comparison of two rankings by a paired bootstrap.

NDCG and the recall of the best are those of ProteinGym (Notin et al. 2023), as its program computes them:
``calc_ndcg`` and ``calc_toprecall`` of ``proteingym/performance_DMS_benchmarks.py`` in
github.com/OATML-Markslab/ProteinGym, commit 1a99bd0. Larger values are better.

Shapes: N variants, C columns of measurements.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Doubles = npt.NDArray[np.float64]

TOP_SHARE = 0.1
"""Share of the variants that are the best ones, in NDCG and in the recall."""
RESAMPLES = 1000
"""Samples of the bootstrap."""
INTERVAL = (2.5, 97.5)
"""Percentiles between which 95 % of the resampled differences lie."""


@dataclass(frozen=True)
class Difference:
    """Spearman's correlation of one prediction minus that of another, with its interval of 95 %."""

    value: float
    low: float
    high: float

    @property
    def is_better(self) -> bool:
        """Whether the first prediction is better, beyond the interval."""
        return self.low > 0


def ndcg(truth: Doubles, predicted: Doubles) -> float:
    """Return the normalized discounted cumulative gain of the tenth that is predicted best.

    Gains are the measured values, scaled to 0 to 1. Variants with equal predictions have the mean of their
    gains, because their order means nothing; ProteinGym takes them as they come. It is NaN for fewer than ten
    variants, or if all values are equal.
    """
    num_top = int(len(truth) * TOP_SHARE)
    if not num_top or np.ptp(truth) == 0:
        return float("nan")
    gains = (truth - truth.min()) / np.ptp(truth)
    discounts = 1 / np.log2(np.arange(num_top) + 2)
    _, groups = np.unique(-predicted, return_inverse=True)
    means = np.bincount(groups, gains) / np.bincount(groups)
    ranked = np.repeat(means, np.bincount(groups))[:num_top]
    ideal = np.sort(gains)[::-1][:num_top]
    return float((ranked * discounts).sum() / (ideal * discounts).sum())


def top_recall(truth: Doubles, predicted: Doubles) -> float:
    """Return the share of the best tenth that is in the tenth predicted best; NaN if all values are equal."""
    share = 100 * (1 - TOP_SHARE)
    is_top = truth > np.percentile(truth, share) if len(truth) else np.zeros(0, bool)
    if not is_top.any():
        return float("nan")
    is_predicted = predicted > np.percentile(predicted, share)
    return float((is_top & is_predicted).sum() / is_top.sum())


def spearman(truth: Doubles, predicted: Doubles) -> float:
    """Return Spearman's correlation; 0 for a constant prediction, which ranks nothing (Hsu et al. 2022).

    It is NaN for fewer than two variants, or if all values are equal.
    """
    if len(truth) < 2 or np.ptp(truth) == 0:
        return float("nan")
    ones = np.ones(len(truth))
    return _Ranked(truth).correlation(_Ranked(predicted), ones)


def rmse(truth: Doubles, predicted: Doubles) -> float:
    """Return the root mean squared error; NaN without variants."""
    if not len(truth):
        return float("nan")
    return float(np.sqrt(np.mean((truth - predicted) ** 2)))


Score = Callable[[Doubles, Doubles], float]


def compared(labels: Doubles, predicted: Doubles, other: Doubles) -> Difference:
    """Bootstrap the difference of Spearman's correlations over variants, the same ones for both predictions.

    Args:
        labels: (N, C) measured values, NaN where one is missing.
        predicted: (N, C) predictions.
        other: (N, C) predictions to compare with.
    """
    columns = []
    for truth, first, second in zip(labels.T, predicted.T, other.T, strict=True):
        known = np.isfinite(truth)
        ranked = (_Ranked(truth[known]), _Ranked(first[known]), _Ranked(second[known]))
        columns.append((known, ranked))

    def difference(counts: Doubles) -> float:
        """Return the mean difference over the columns, each variant taken so many times."""
        found = []
        for known, (truth, first, second) in columns:
            weights = counts[known]
            found.append(truth.correlation(first, weights) - truth.correlation(second, weights))
        return float(np.mean(found))

    num = len(labels)
    draw = np.random.default_rng(0)
    resampled = []
    for _ in range(RESAMPLES):
        counts = np.bincount(draw.integers(num, size=num), minlength=num)
        resampled.append(difference(counts.astype(np.float64)))
    low, high = np.percentile(resampled, INTERVAL)
    return Difference(difference(np.ones(num)), float(low), float(high))


class _Ranked:
    """Values whose order is known, so that samples of them are ranked without sorting.

    Args:
        values: (N,) values.
    """

    def __init__(self, values: Doubles) -> None:
        _, self._groups = np.unique(values, return_inverse=True)

    def _ranks(self, counts: Doubles) -> Doubles:
        """Return the mean rank of each value, (N,), if each is there so many times."""
        sizes = np.bincount(self._groups, counts)
        ranks = np.cumsum(sizes) - (sizes - 1) / 2
        return np.asarray(ranks[self._groups])

    def correlation(self, other: "_Ranked", counts: Doubles) -> float:
        """Return Spearman's correlation with other values; 0 if one of both is constant, or without two."""
        total = counts.sum()
        if total < 2:
            return 0.0
        mine = self._ranks(counts)
        theirs = other._ranks(counts)
        mine = mine - (counts * mine).sum() / total
        theirs = theirs - (counts * theirs).sum() / total
        scale = np.sqrt((counts * mine**2).sum() * (counts * theirs**2).sum())
        # Rounding leaves a constant ranking with a tiny spread.
        if scale <= _ROUNDING * total**3:
            return 0.0
        return float((counts * mine * theirs).sum() / scale)


_ROUNDING = 1e-12
"""Spread of ranks, relative to the third power of their number, that is rounding."""
