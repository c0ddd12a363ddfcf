"""Scores of a fine-tuned model by scikit-learn, from labels and outputs of a whole split.

Outputs are logits (a class is predicted above 0, or by the largest), of regression the values themselves.
A score that a split does not define, such as AUROC with one class alone, is NaN. N proteins, or residues of a
residue task; C columns of labels; L outputs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .labels import Floats, LabelSchema

Doubles = npt.NDArray[np.float64]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ClassScore:
    """One class against all others, or one measurement."""

    name: str
    examples: int
    """Labelled proteins (residues) of the class; of a regression all that were measured."""
    values: dict[str, float]


def scores(schema: LabelSchema, labels: Floats, outputs: Floats) -> dict[str, float]:
    """Headline scores.

    Args:
        schema: of the task.
        labels: (N, C), NaN where there is none.
        outputs: (N, L).

    Returns:
        By name: ``accuracy``, ``mcc``, ``f1``, ``auroc`` and ``auprc`` of classes (means over the classes
        where there are several, each weighing the same; mcc of a multiclass task is Gorodkin's R_K), of
        multilabel also ``exact_match`` and ``jaccard``; ``spearman``, ``pearson``, ``rmse``, ``mae`` and
        ``r2`` of regression (means over the columns).
    """
    parts = class_scores(schema, labels, outputs)
    means = {name: _mean([part.values[name] for part in parts]) for name in parts[0].values}
    if schema.task.two_classes or schema.task.measured:
        return means
    shown = {name: means[name] for name in ("accuracy", "mcc", "f1", "auroc", "auprc")}
    if not schema.task.one_of_many:
        return shown | _whole_rows(labels, outputs)
    from sklearn.metrics import matthews_corrcoef

    truth, predicted = _classes(labels, outputs)
    defined, varies = len(truth) > 0, len(np.unique(truth)) > 1
    return shown | {
        "accuracy": float((truth == predicted).mean()) if defined else math.nan,
        "mcc": float(matthews_corrcoef(truth, predicted)) if varies else math.nan,
    }


def class_scores(schema: LabelSchema, labels: Floats, outputs: Floats) -> list[ClassScore]:
    """Scores of each class (multilabel: of each label) against the others, or of each measurement."""
    if schema.task.measured:
        return [
            _measurement(name, labels[:, column], outputs[:, column])
            for column, name in enumerate(schema.columns)
        ]
    return [
        ClassScore(name, int(truth.sum()), _two_class_values(truth, predicted, ranking))
        for name, truth, predicted, ranking in one_against_others(schema, labels, outputs)
    ]


def one_against_others(
    schema: LabelSchema, labels: Floats, outputs: Floats
) -> Iterator[tuple[str, Truths, Truths, Doubles]]:
    """Per class: name, truth, prediction and what ranks the examples; each of shape (labelled N,)."""
    if schema.task.one_of_many:
        from scipy.special import softmax

        known = np.isfinite(labels[:, 0])
        truth, predicted = _classes(labels, outputs)
        shares = softmax(outputs[known].astype(np.float64), axis=1)
        for place, name in enumerate(schema.classes):
            yield name, truth == place, predicted == place, shares[:, place]
        return
    for column, name in enumerate(schema.columns):
        known = np.isfinite(labels[:, column])
        logits = outputs[known, column].astype(np.float64)
        yield name, labels[known, column] > 0.5, logits > 0, logits


def confusion(schema: LabelSchema, labels: Floats, outputs: Floats) -> npt.NDArray[np.int64] | None:
    """Counts (classes, classes), truth down, prediction across; None where classes do not exclude others."""
    from sklearn.metrics import confusion_matrix

    if schema.task.two_classes:
        ((_, holds, said, _),) = one_against_others(schema, labels, outputs)
        return np.asarray(confusion_matrix(holds, said, labels=[False, True])) if len(holds) else None
    if schema.task.one_of_many:
        numbers = list(range(len(schema.classes)))
        truth, predicted = _classes(labels, outputs)
        return np.asarray(confusion_matrix(truth, predicted, labels=numbers)) if len(truth) else None
    return None


def _two_class_values(truth: Truths, predicted: Truths, ranking: Doubles) -> dict[str, float]:
    from sklearn.metrics import (
        average_precision_score,
        matthews_corrcoef,
        precision_recall_fscore_support,
        roc_auc_score,
    )

    if not len(truth):
        return dict.fromkeys(("accuracy", "mcc", "precision", "recall", "f1", "auroc", "auprc"), math.nan)
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, average="binary", zero_division=0
    )
    both, finite = len(np.unique(truth)) == 2, bool(np.isfinite(ranking).all())
    return {
        "accuracy": float((truth == predicted).mean()),
        "mcc": float(matthews_corrcoef(truth, predicted)) if both else math.nan,
        "precision": float(precision),
        "recall": float(recall) if truth.any() else math.nan,
        "f1": float(f1) if truth.any() else math.nan,
        "auroc": float(roc_auc_score(truth, ranking)) if both and finite else math.nan,
        "auprc": float(average_precision_score(truth, ranking)) if truth.any() and finite else math.nan,
    }


def _measurement(name: str, labels: Floats, outputs: Floats) -> ClassScore:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    known = np.isfinite(labels)
    truth, predicted = labels[known].astype(np.float64), outputs[known].astype(np.float64)
    if not len(truth) or not np.isfinite(predicted).all():
        values = dict.fromkeys(("spearman", "pearson", "rmse", "mae", "r2"), math.nan)
        return ClassScore(name, len(truth), values)
    varies = len(truth) > 1 and np.ptp(truth) > 0
    ranks = varies and np.ptp(predicted) > 0
    values = {
        "spearman": float(spearmanr(truth, predicted).statistic) if ranks else math.nan,
        "pearson": float(pearsonr(truth, predicted).statistic) if ranks else math.nan,
        "rmse": float(root_mean_squared_error(truth, predicted)),
        "mae": float(mean_absolute_error(truth, predicted)),
        "r2": float(r2_score(truth, predicted)) if varies else math.nan,
    }
    return ClassScore(name, len(truth), values)


def _whole_rows(labels: Floats, outputs: Floats) -> dict[str, float]:
    """Return exact match and Jaccard index of the proteins whose labels are all known.

    Jaccard's index (both / either, 1 if there is neither) is what DeepLoc 2 reports
    (Thumuluri et al. 2022).
    """
    known = np.isfinite(labels).all(axis=1)
    truth, predicted = labels[known] > 0.5, outputs[known] > 0
    if not len(truth):
        return {"exact_match": math.nan, "jaccard": math.nan}
    both, either = (truth & predicted).sum(axis=1), (truth | predicted).sum(axis=1)
    overlap = np.where(either > 0, both / np.maximum(either, 1), 1.0)
    return {
        "exact_match": float((truth == predicted).all(axis=1).mean()),
        "jaccard": float(overlap.mean()),
    }


def _classes(labels: Floats, outputs: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """True and predicted class of every labelled example."""
    known = np.isfinite(labels[:, 0])
    return labels[known, 0].astype(np.int64), outputs[known].argmax(axis=1)


def _mean(values: Sequence[float]) -> float:
    """Over those that are defined."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
