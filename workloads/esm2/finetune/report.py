"""What a task adds to a run's report: headline scores, figures of the predictions, a table of the classes."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from workloads.esm2.proteins import Split
from workloads.esm2.report_page import Card, figure_block, section, table

from .labels import Floats, LabelSchema, load_schema
from .prediction_file import Predictions, predictions_file
from .score_figures import RankedClass, confusion_figure, curves_figure, scatter_figure
from .scores import HEADLINES, class_scores, confusion, one_against_others, scores

TITLES = {
    "accuracy": "Accuracy",
    "mcc": "MCC",
    "f1": "F1",
    "auroc": "AUROC",
    "auprc": "AUPRC",
    "jaccard": "Jaccard index",
    "exact_match": "Exact match",
    "spearman": "Spearman",
    "pearson": "Pearson",
    "rmse": "RMSE",
    "mae": "MAE",
    "r2": "R\N{SUPERSCRIPT TWO}",
    "precision": "Precision",
    "recall": "Recall",
}
SHARES = ("accuracy", "exact_match", "precision", "recall")
MAX_SCATTERS = 4


@dataclass(frozen=True)
class PredictedSplit:
    """What a run predicted for one split at its end."""

    split: Split
    schema: LabelSchema
    labels: Floats
    outputs: Floats


def read_predictions(run_dir: Path, data: Path) -> PredictedSplit | None:
    """Those of the test split, or else of the validation split; None of a run that is still going."""
    for split in ("test", "validation"):
        try:
            schema, _ = load_schema(data)
            found = Predictions.load(predictions_file(run_dir, split))
        except (OSError, ValueError, KeyError):
            continue  # a report shows what there is
        return PredictedSplit(split, schema, found.labels, found.outputs)
    return None


def score_cards(
    kind: str, predictions: PredictedSplit | None, evaluations: Sequence[Mapping[str, Any]]
) -> list[Card]:
    """Headline scores: of the final predictions, or of the last evaluation of a run that is still going."""
    validation: Mapping[str, Any] = next(
        (line for line in reversed(evaluations) if line.get("split") == "validation"), {}
    )
    validation = {name.removeprefix("eval_"): value for name, value in validation.items()}
    values: Mapping[str, Any] = validation
    notes = dict.fromkeys(TITLES, "validation")
    if predictions is not None:
        values = scores(predictions.schema, predictions.labels, predictions.outputs)
        notes = {name: _note(name, predictions, validation) for name in TITLES}
    return [
        Card(TITLES[name], _text(name, values.get(name)), notes[name]) for name in HEADLINES.get(kind, ())
    ]


def score_section(predictions: PredictedSplit | None) -> str:
    """Figures and the table of classes of the final predictions."""
    if predictions is None:
        return ""
    schema, labels, outputs = predictions.schema, predictions.labels, predictions.outputs
    parts = class_scores(schema, labels, outputs)
    unit = "residues" if schema.kind == "residue" else "proteins"
    names = [name for name in parts[0].values if any(math.isfinite(part.values[name]) for part in parts)]
    rows = [
        [
            part.name,
            f"{part.examples:,}",
            *(_text(name, part.values[name]) or "\N{EN DASH}" for name in names),
        ]
        for part in parts
    ]
    titles = ["measurement" if schema.kind == "regression" else "class", unit, *(TITLES[n] for n in names)]
    return section(
        f"Predictions for the {predictions.split} split", _figures(predictions, unit) + table(titles, rows)
    )


def _figures(predictions: PredictedSplit, unit: str) -> str:
    schema, labels, outputs = predictions.schema, predictions.labels, predictions.outputs
    if schema.kind == "regression":
        figures = [
            figure_block(f"Predicted over measured {name}", scatter_figure(name, *_known(labels, outputs, n)))
            for n, name in enumerate(schema.columns[:MAX_SCATTERS])
        ]
        return f'<div class="grid">{"".join(figures)}</div>'
    values = {part.name: part.values for part in class_scores(schema, labels, outputs)}
    ranked = [
        RankedClass(name, truth, ranking, values[name]["auroc"], values[name]["auprc"])
        for name, truth, _, ranking in one_against_others(schema, labels, outputs)
    ]
    curves = figure_block("ROC and precision-recall curves", curves_figure(ranked), wide=True)
    counts = confusion(schema, labels, outputs)
    if counts is None:
        return curves
    matrix = figure_block("Confusion matrix", confusion_figure(counts, schema.classes, unit))
    return f'{curves}<div class="narrow">{matrix}</div>'


def _known(labels: Floats, outputs: Floats, column: int) -> tuple[Any, Any]:
    known = np.isfinite(labels[:, column]) & np.isfinite(outputs[:, column])
    return labels[known, column].astype(np.float64), outputs[known, column].astype(np.float64)


def _note(name: str, predictions: PredictedSplit, validation: Mapping[str, Any]) -> str:
    parts: list[str] = [predictions.split]
    if name == "accuracy" and (majority := _majority(predictions)) is not None:
        parts.append(f"largest class {majority:.1%}")
    elif predictions.split == "test" and (text := _text(name, validation.get(name))) is not None:
        parts.append(f"validation {text}")
    return ", ".join(parts)


def _majority(predictions: PredictedSplit) -> float | None:
    """Accuracy of always guessing the commonest class."""
    known = predictions.labels[np.isfinite(predictions.labels[:, 0]), 0]
    if predictions.schema.kind not in ("binary", "multiclass", "residue") or not len(known):
        return None
    return float(np.bincount(known.astype(np.int64)).max() / len(known))


def _text(name: str, value: object) -> str | None:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return f"{value:.1%}" if name in SHARES else f"{value:.3f}"
