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
from seqlm.proteins.finetune.scores import scores
from seqlm.training.heartbeat import beat

STRENGTHS = (1e-3, 1e-2, 1e-1, 1.0)
"""Inverse strengths of the L2 penalty (scikit-learn's ``C``) that are tried on standardized features."""
CERTAIN = 20.0
"""Logit of a label that all training examples have."""
RESAMPLES = 300
INTERVAL = (2.5, 97.5)
"""Percentiles of the resampled scores, between which 95 % of them lie."""


class Examples(NamedTuple):
    features: Any
    """(N, F), dense or sparse."""
    labels: Floats
    """(N, C), NaN where there is none; the number of the class if classes exclude each other."""


@dataclass(frozen=True)
class Probe:
    """Fitted probe with the penalty that was best on validation."""

    schema: LabelSchema
    scaler: Any
    models: Sequence[Any]
    """One per label column; a number is a constant output."""
    strength: float
    validation: float
    """First headline score on validation."""

    def outputs(self, features: Any) -> Floats:
        """Return logits, or values of a regression, (N, L)."""
        scaled = self.scaler.transform(features)
        columns = [_outputs(model, scaled, self.schema) for model in self.models]
        return np.concatenate(columns, axis=1).astype(np.float32)


def fit_probe(
    schema: LabelSchema, train: Examples, validation: Examples, strengths: Sequence[float] = STRENGTHS
) -> Probe:
    """Fit a probe for each penalty, and return the one with the best first headline score on validation.

    Classes use logistic regression, one for each label that does not exclude others, and measurements ridge
    regression.
    """
    from sklearn.preprocessing import StandardScaler

    scaler = StandardScaler(with_mean=not hasattr(train.features, "tocsr")).fit(train.features)
    scaled, headline = scaler.transform(train.features), schema.task.headlines[0]
    found: list[Probe] = []
    for strength in strengths:
        beat("fitting a probe", slow=True)
        models = [_fitted(schema, scaled, column, strength) for column in train.labels.T]
        probe = Probe(schema, scaler, models, strength, math.nan)
        value = scores(schema, validation.labels, probe.outputs(validation.features))[headline]
        found.append(Probe(schema, scaler, models, strength, value))
    return max(found, key=lambda probe: -math.inf if math.isnan(probe.validation) else probe.validation)


def _fitted(schema: LabelSchema, scaled: Any, column: npt.NDArray[np.float32], strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression, Ridge

    known = np.flatnonzero(np.isfinite(column))
    if schema.task.measured:
        return Ridge(alpha=1 / strength).fit(scaled[known], column[known]) if len(known) else 0.0
    values = np.unique(column[known])
    if len(values) < 2:
        return values[0] if len(values) else 0.0
    return LogisticRegression(C=strength, max_iter=1000, tol=1e-3).fit(scaled[known], column[known])


def _outputs(model: Any, scaled: Any, schema: LabelSchema) -> npt.NDArray[np.float64]:
    """Return the outputs of one label column, (N, classes) if classes exclude each other, else (N, 1)."""
    number, task = scaled.shape[0], schema.task
    if task.measured:
        return np.full((number, 1), model) if isinstance(model, float) else model.predict(scaled)[:, None]
    constant = np.isscalar(model)
    if not task.one_of_many:
        if constant:
            return np.full((number, 1), CERTAIN * (2 * model - 1))
        return model.decision_function(scaled)[:, None]
    result = np.full((number, len(schema.classes)), -CERTAIN)
    if constant:
        result[:, int(model)] = CERTAIN
        return result
    logits = model.decision_function(scaled)
    logits = np.stack([-logits / 2, logits / 2], axis=1) if logits.ndim == 1 else logits
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
        labels: (N, C).
        outputs: (N, L) of one or two probes. With two, the second result is that of their difference.
        groups: (N,) cluster of each example.

    Returns:
        For each of the outputs, the bounds (low, high). The second is that of the first minus the second.
    """
    _, numbers = np.unique(np.asarray(groups), return_inverse=True)
    members = np.split(np.argsort(numbers, kind="stable"), np.cumsum(np.bincount(numbers))[:-1])
    drawn = np.random.default_rng(0).integers(len(members), size=(RESAMPLES, len(members)))
    if schema.task.measured:
        rows = [np.concatenate([members[group] for group in groups]) for groups in drawn]
        found = [[_rank_correlation(labels[of], each[of]) for of in rows] for each in outputs]
    else:
        counts = np.stack([np.bincount(groups, minlength=len(members)) for groups in drawn])
        found = []
        for each in outputs:
            value = _value_of_examples(schema, labels, each)
            known = np.isfinite(value)
            sums, sizes = (
                np.bincount(numbers, weights, len(members)) for weights in (np.where(known, value, 0), known)
            )
            found.append(counts @ sums / np.maximum(counts @ sizes, 1))
    values = np.array(found)  # (outputs, RESAMPLES)
    values[1:] = values[:1] - values[1:]
    return [np.nanpercentile(row, INTERVAL) for row in values]


def _value_of_examples(schema: LabelSchema, labels: Floats, outputs: Floats) -> npt.NDArray[np.float64]:
    """Return what the first headline score is the mean of, (N,), NaN without a label."""
    if schema.task.one_of_many:
        return np.where(np.isfinite(labels[:, 0]), outputs.argmax(axis=1) == labels[:, 0], np.nan)
    truth, said = labels > 0.5, outputs > 0
    known = np.isfinite(labels).all(axis=1)
    if schema.task.two_classes:
        return np.where(known, (truth == said)[:, 0], np.nan)
    both, either = (truth & said).sum(axis=1), (truth | said).sum(axis=1)
    return np.where(known, np.where(either > 0, both / np.maximum(either, 1), 1.0), np.nan)


def _rank_correlation(labels: Floats, outputs: Floats) -> float:
    """Return the mean of Spearman's correlation over the columns."""
    from scipy.stats import spearmanr

    known = np.isfinite(labels)
    columns = zip(labels.T, outputs.T, known.T, strict=True)
    return float(np.mean([spearmanr(truth[k], said[k]).statistic for truth, said, k in columns]))
