"""Frozen probes: linear models by scikit-learn on features that stay fixed.

Shapes: N examples (proteins, or residues of a residue task), F features, C label columns, L outputs.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from seqlm.proteins.finetune.labels import Floats, LabelSchema
from seqlm.proteins.finetune.scores import headline_values, scores
from seqlm.training.heartbeat import beat

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the L2 penalty (scikit-learn's ``C``) that are tried on standardized features."""
CERTAIN = 20.0
"""Logit of a label that all training examples have."""
MAX_ITERATIONS = 1000
TOLERANCE = 1e-3
"""Tolerance of logistic regressions: smaller ones change no score and take longer."""
RESAMPLES = 300
"""Samples of a bootstrap."""
INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled scores, between which 95 % of them lie."""


class Examples(NamedTuple):
    """Features and labels of examples."""

    features: Any
    """(N, F) features, dense or sparse."""
    labels: Floats
    """(N, C) labels, NaN where a label is missing; numbers of classes if these exclude each other."""


@dataclass(frozen=True)
class Probe:
    """Fitted probe with the penalty that was best on validation."""

    schema: LabelSchema
    scaler: Any
    models: Sequence[Any]
    """One model per label column; a number is a constant output."""
    strength: float
    validation: float
    """First headline score on validation."""

    def outputs(self, features: Any) -> Floats:
        """Return logits, or values of a regression, (N, L)."""
        scaled = self.scaler.transform(features)
        columns = [_outputs(model, scaled, self.schema) for model in self.models]
        return np.concatenate(columns, axis=1).astype(np.float32)


def fit_probe(
    schema: LabelSchema,
    train: Examples,
    validation: Examples,
    strengths: Sequence[float] = STRENGTHS,
) -> Probe:
    """Fit a probe for each penalty, and return the one with the best first headline score on validation.

    Classes use logistic regression, one for each label that does not exclude others, and measurements ridge
    regression.
    """
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler(with_mean=not hasattr(train.features, "tocsr")).fit(train.features)
    scaled = scaler.transform(train.features)
    headline = schema.task.headlines[0]
    found: list[Probe] = []
    for strength in strengths:
        beat("fitting a probe", slow=True)
        models = [_fitted(schema, scaled, column, strength) for column in train.labels.T]
        probe = Probe(schema, scaler, models, strength, math.nan)
        value = scores(schema, validation.labels, probe.outputs(validation.features))[headline]
        found.append(Probe(schema, scaler, models, strength, value))
    return max(
        found, key=lambda probe: -math.inf if math.isnan(probe.validation) else probe.validation
    )


def _fitted(
    schema: LabelSchema, scaled: Any, column: npt.NDArray[np.float32], strength: float
) -> Any:
    """Return the fitted model of one label column, or a number if its labels do not vary."""
    from sklearn.linear_model import LogisticRegression, Ridge

    known = np.flatnonzero(np.isfinite(column))
    if not len(known):
        return 0.0
    if schema.task.measured:
        return Ridge(alpha=1 / strength).fit(scaled[known], column[known])
    values = np.unique(column[known])
    if len(values) == 1:
        return values[0]
    return LogisticRegression(C=strength, max_iter=MAX_ITERATIONS, tol=TOLERANCE).fit(
        scaled[known], column[known]
    )


def _outputs(model: Any, scaled: Any, schema: LabelSchema) -> npt.NDArray[np.float64]:
    """Return the outputs of one label column, (N, classes) if classes exclude each other, else (N, 1)."""
    count = scaled.shape[0]
    task = schema.task
    is_constant = bool(np.isscalar(model))
    if task.measured:
        return np.full((count, 1), model) if is_constant else model.predict(scaled)[:, None]
    if not task.one_of_many:
        if is_constant:
            return np.full((count, 1), CERTAIN * (2 * model - 1))
        return model.decision_function(scaled)[:, None]
    result = np.full((count, len(schema.classes)), -CERTAIN)
    if is_constant:
        result[:, int(model)] = CERTAIN
        return result
    logits = model.decision_function(scaled)
    if logits.ndim == 1:  # of two classes, the logit of the second over the first
        logits = np.stack([-logits / 2, logits / 2], axis=1)
    result[:, model.classes_.astype(int)] = np.maximum(logits, -CERTAIN)
    return result


def interval(
    schema: LabelSchema,
    labels: Floats,
    outputs: Sequence[Floats],
    groups: Sequence[Any],
) -> list[npt.NDArray[np.float64]]:
    """Bootstrap the first headline score over groups of similar examples, which are drawn as a whole.

    Args:
        schema: labels of the task.
        labels: (N, C) labels.
        outputs: (N, L) outputs of one probe or of two.
        groups: (N,) cluster of each example.

    Returns:
        The bounds (low, high) of the first probe's score and, with two probes, of the first score minus the
        second.
    """
    _, numbers = np.unique(np.asarray(groups), return_inverse=True)
    members = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    num_groups = len(members)
    drawn = np.random.default_rng(0).integers(num_groups, size=(RESAMPLES, num_groups))
    found: list[Any] = []
    if schema.task.measured:
        samples = [np.concatenate([members[group] for group in sample]) for sample in drawn]
        for each in outputs:
            found.append([_rank_correlation(labels[rows], each[rows]) for rows in samples])
    else:
        counts = np.stack([np.bincount(sample, minlength=num_groups) for sample in drawn])
        for each in outputs:
            value = headline_values(schema, labels, each)
            known = np.isfinite(value)
            sums = np.bincount(numbers, np.where(known, value, 0), num_groups)
            sizes = np.bincount(numbers, known, num_groups)
            found.append(counts @ sums / np.maximum(counts @ sizes, 1))
    values = np.array(found)  # (outputs, RESAMPLES)
    values[1:] = values[:1] - values[1:]
    return [np.nanpercentile(row, INTERVAL) for row in values]


def _rank_correlation(labels: Floats, outputs: Floats) -> float:
    """Return the mean of Spearman's correlation over the columns."""
    from scipy.stats import spearmanr

    found = []
    for truth, predicted in zip(labels.T, outputs.T, strict=True):
        known = np.isfinite(truth)
        found.append(spearmanr(truth[known], predicted[known]).statistic)
    return float(np.mean(found))
