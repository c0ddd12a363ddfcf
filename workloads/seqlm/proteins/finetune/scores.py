"""Scores of a fine-tuned model by scikit-learn, from labels and outputs of a whole split.

Outputs are logits: a class is predicted above 0, or by the largest one. Those of a regression are values.
A score that a split does not define, such as AUROC with one class alone, is NaN.

Shapes: N proteins (residues of a residue task), C columns of labels, L outputs.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .labels import Floats, LabelSchema

Doubles = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]
Truths = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class ClassScore:
    """One class against all others, or one measurement."""

    name: str
    examples: int
    """Labelled proteins (residues) of the class; for a regression, all that were measured."""
    values: dict[str, float]


def scores(schema: LabelSchema, labels: Floats, outputs: Floats) -> dict[str, float]:
    """Return the scores of a split by name.

    Args:
        schema: labels of the task.
        labels: (N, C) labels, NaN where a label is missing.
        outputs: (N, L) outputs of the model.

    Returns:
        * of classes: ``accuracy``, ``mcc``, ``f1``, ``auroc`` and ``auprc``. Of several classes these are
          means over the classes, except that mcc of a multiclass task is Gorodkin's R_K.
        * of multilabel: also ``exact_match`` and ``jaccard``.
        * of regression: ``spearman``, ``pearson``, ``rmse``, ``mae`` and ``r2``, means over the columns.
    """
    parts = class_scores(schema, labels, outputs)
    means = {}
    for name in parts[0].values:
        means[name] = _mean([part.values[name] for part in parts])
    if schema.task.two_classes or schema.task.measured:
        return means
    shown = {name: means[name] for name in ("accuracy", "mcc", "f1", "auroc", "auprc")}
    if not schema.task.one_of_many:
        return shown | _whole_rows(labels, outputs)
    from sklearn.metrics import matthews_corrcoef

    truth, predicted = _classes(labels, outputs)
    varies = len(np.unique(truth)) > 1
    return shown | {
        "accuracy": float((truth == predicted).mean()) if len(truth) else math.nan,
        "mcc": float(matthews_corrcoef(truth, predicted)) if varies else math.nan,
    }


def class_scores(schema: LabelSchema, labels: Floats, outputs: Floats) -> list[ClassScore]:
    """Return the scores of each class or label against the others, or of each measurement."""
    if schema.task.measured:
        return [
            _measurement(name, labels[:, column], outputs[:, column])
            for column, name in enumerate(schema.columns)
        ]
    return [
        ClassScore(one.name, int(one.truth.sum()), _two_class_values(one))
        for one in one_against_others(schema, labels, outputs)
    ]


@dataclass(frozen=True)
class OneClass:
    """Truth and prediction of one class against all others, of the labelled examples."""

    name: str
    truth: Truths
    """(labelled N,) whether the example has the class."""
    predicted: Truths
    """(labelled N,) whether the class is predicted."""
    ranking: Doubles
    """(labelled N,) number that is larger for more likely examples: the probability or the logit."""


def one_against_others(schema: LabelSchema, labels: Floats, outputs: Floats) -> Iterator[OneClass]:
    """Yield truth and prediction of each class."""
    if schema.task.one_of_many:
        from scipy.special import softmax

        known = np.isfinite(labels[:, 0])
        truth, predicted = _classes(labels, outputs)
        shares = softmax(outputs[known].astype(np.float64), axis=1)
        for place, name in enumerate(schema.classes):
            yield OneClass(name, truth == place, predicted == place, shares[:, place])
        return
    for column, name in enumerate(schema.columns):
        known = np.isfinite(labels[:, column])
        logits = outputs[known, column].astype(np.float64)
        yield OneClass(name, labels[known, column] > 0.5, logits > 0, logits)


def confusion(schema: LabelSchema, labels: Floats, outputs: Floats) -> npt.NDArray[np.int64] | None:
    """Return the counts (classes, classes), truth down and prediction across.

    None: classes do not exclude each other, or no example has a label.
    """
    from sklearn.metrics import confusion_matrix

    truth: npt.NDArray[Any]
    predicted: npt.NDArray[Any]
    numbers: list[int]
    if schema.task.two_classes:
        (positive,) = one_against_others(schema, labels, outputs)
        truth = positive.truth
        predicted = positive.predicted
        numbers = [False, True]
    elif schema.task.one_of_many:
        truth, predicted = _classes(labels, outputs)
        numbers = list(range(len(schema.classes)))
    else:
        return None
    return np.asarray(confusion_matrix(truth, predicted, labels=numbers)) if len(truth) else None


def _two_class_values(one: OneClass) -> dict[str, float]:
    from sklearn.metrics import (
        average_precision_score,
        matthews_corrcoef,
        precision_recall_fscore_support,
        roc_auc_score,
    )

    truth = one.truth
    predicted = one.predicted
    if not len(truth):
        return dict.fromkeys(
            ("accuracy", "mcc", "precision", "recall", "f1", "auroc", "auprc"), math.nan
        )
    precision, recall, f1, _ = precision_recall_fscore_support(
        truth, predicted, average="binary", zero_division=0
    )
    any_true = bool(truth.any())
    has_both = len(np.unique(truth)) == 2
    is_ranked = bool(np.isfinite(one.ranking).all())
    return {
        "accuracy": float((truth == predicted).mean()),
        "mcc": float(matthews_corrcoef(truth, predicted)) if has_both else math.nan,
        "precision": float(precision),
        "recall": float(recall) if any_true else math.nan,
        "f1": float(f1) if any_true else math.nan,
        "auroc": float(roc_auc_score(truth, one.ranking)) if has_both and is_ranked else math.nan,
        "auprc": float(average_precision_score(truth, one.ranking))
        if any_true and is_ranked
        else math.nan,
    }


def _measurement(name: str, labels: Floats, outputs: Floats) -> ClassScore:
    from scipy.stats import pearsonr, spearmanr
    from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

    known = np.isfinite(labels)
    truth = labels[known].astype(np.float64)
    predicted = outputs[known].astype(np.float64)
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
    """Return exact match and Jaccard index of the proteins with all labels known.

    DeepLoc 2 reports Jaccard's index (Thumuluri et al. 2022).
    """
    known = np.isfinite(labels).all(axis=1)
    truth = labels[known] > 0.5
    predicted = outputs[known] > 0
    if not len(truth):
        return {"exact_match": math.nan, "jaccard": math.nan}
    return {
        "exact_match": float((truth == predicted).all(axis=1).mean()),
        "jaccard": float(_jaccard(truth, predicted).mean()),
    }


def headline_values(schema: LabelSchema, labels: Floats, outputs: Floats) -> Doubles:
    """Return the values of the examples, (N,), that have the first headline score as their mean.

    The value of an example without a label is NaN. A regression has no such values.
    """
    assert not schema.task.measured, "correlations are no means over examples"
    if schema.task.one_of_many:
        is_right = outputs.argmax(axis=1) == labels[:, 0]
        return np.where(np.isfinite(labels[:, 0]), is_right, np.nan)
    truth = labels > 0.5
    predicted = outputs > 0
    known = np.isfinite(labels).all(axis=1)
    values = (truth == predicted)[:, 0] if schema.task.two_classes else _jaccard(truth, predicted)
    return np.where(known, values, np.nan)


def _jaccard(truth: Truths, predicted: Truths) -> Doubles:
    """Return Jaccard's index of each row: labels in both over labels in either, and 1 without any."""
    in_both = (truth & predicted).sum(axis=1)
    in_either = (truth | predicted).sum(axis=1)
    return np.where(in_either > 0, in_both / np.maximum(in_either, 1), 1.0)


def _classes(labels: Floats, outputs: Floats) -> tuple[Ints, Ints]:
    """Return the true and the predicted class of every labelled example."""
    known = np.isfinite(labels[:, 0])
    return labels[known, 0].astype(np.int64), outputs[known].argmax(axis=1)


def _mean(values: Sequence[float]) -> float:
    """Return the mean of the values that are defined."""
    finite = [value for value in values if math.isfinite(value)]
    return math.fsum(finite) / len(finite) if finite else math.nan
