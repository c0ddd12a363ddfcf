"""Sections of a task in a run's report: headline scores, figures of the predictions, table of the classes."""

import itertools
import json
import math
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from seqlm.proteins.pretraining.report import ProteinContents
from seqlm.training.records import Split
from seqlm.training.report.drawing import (
    BLUE,
    GREY,
    INK,
    NARROW_INCHES,
    PANEL,
    STYLE,
    WIDE_INCHES,
    drawing,
    svg_text,
)
from seqlm.training.report.page import Card, figure_block, note, section, table
from seqlm.training.report.run_report import last_validation

from .baselines import FILE as BASELINES_FILE
from .labels import Floats, LabelSchema
from .prediction_file import Predictions, predictions_file
from .scores import (
    ClassScore,
    Doubles,
    OneClass,
    class_scores,
    confusion,
    one_against_others,
    scores,
)
from .task_kinds import TASK_KINDS
from .variants.baselines import FILE as VARIANT_BASELINES_FILE
from .variants.baselines import variant_scores
from .variants.records import VariantFacts
from .variants.report import (
    HEADLINES,
    baseline_section,
    mutation_figure,
    mutation_tables,
)
from .variants.report import TITLES as VARIANT_TITLES

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
    **VARIANT_TITLES,
}
NOT_DEFINED = "\N{EN DASH}"
"""Text of a score that is not defined."""
LENGTH_BOUNDS = (0, 128, 256, 512, 1024, math.inf)
"""Residues; a length class includes its upper bound."""
AREAS = ("auroc", "auprc")
MAX_SCATTERS = 4
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1f2937")
"""Okabe and Ito's colours without yellow, which is faint on white."""
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
"""Styles of lines. Each goes through all colours before the next one begins."""
MAX_CURVES = len(COLOURS) * len(DASHES)
MAX_CURVE_POINTS = 400
MAX_SCATTER_POINTS = 3000
MAX_MATRIX_CLASSES = 40
MAX_LEGEND_COLUMNS = 4
MAX_NAME_CHARS = 24
MATRIX_TEXT_CLASSES = 14
"""Larger matrices have no room for numbers."""
MATRIX_SHARE_CLASSES = 6
"""Larger matrices have no room for shares below the numbers."""
DARK_SHARE = 0.55
"""Share above which a cell is so dark that its text is light."""


@dataclass(frozen=True)
class PredictedSplit:
    """Predictions of a run for one split at the end of the run."""

    split: Split
    schema: LabelSchema
    found: Predictions
    is_of_variants: bool = False
    """Whether it has measurements of variants of one protein."""


class TaskContents(ProteinContents):
    """Report sections of a fine-tuning run: its scores, and figures of its predictions."""

    predicted = None
    parameters_note = "head included"
    score_titles = TITLES

    def __init__(self) -> None:
        self._kind = ""
        self._predictions: PredictedSplit | None = None
        self._baselines: Mapping[str, Any] = {}
        self._beside_variants: Mapping[str, Any] = {}
        self._direction = ""

    def read(self, run_dir: Path, config: Mapping[str, Any]) -> None:
        """Read the predictions for the test split, or for the validation split; a running run has none."""
        self._kind = str(config["task"].get("kind"))
        data = config.get("data")
        with suppress(OSError, ValueError):
            self._baselines = json.loads((run_dir / BASELINES_FILE).read_text())
        self._direction = str(config["task"].get("direction"))
        with suppress(OSError, ValueError):
            self._beside_variants = json.loads((run_dir / VARIANT_BASELINES_FILE).read_text())
        splits: tuple[Split, ...] = ("validation", "test")
        for split in splits:
            with suppress(OSError, ValueError, KeyError):  # a report shows what there is
                schema, facts = LabelSchema.load(Path(str(data and data.get("path"))))
                found = Predictions.load(predictions_file(run_dir, split))
                is_of_variants = schema.task.measured and VariantFacts.of(facts) is not None
                self._predictions = PredictedSplit(split, schema, found, is_of_variants)

    def cards(
        self, evaluations: Sequence[Mapping[str, Any]], results: Mapping[str, Any]
    ) -> list[Card]:
        """Return the scores of the final predictions, or of the last evaluation of a running run."""
        validation = {
            name.removeprefix("eval_"): value
            for name, value in last_validation(evaluations).items()
        }
        values: Mapping[str, Any] = validation
        notes = dict.fromkeys(TITLES, "validation")
        if (last := self._predictions) is not None:
            values = scores(last.schema, last.found.labels, last.found.outputs)
            notes = {name: _note(name, last, validation) for name in TITLES}
        headlines = kind.headlines if (kind := TASK_KINDS.get(self._kind)) else ()
        if last is not None and last.is_of_variants:
            values = variant_scores(self._direction, last.found.labels, last.found.outputs)
            notes = {name: self._baseline_note(name, notes[name]) for name in HEADLINES}
            headlines = HEADLINES
        return [Card(TITLES[name], _text(values.get(name)), notes[name]) for name in headlines]

    def _baseline_note(self, score: str, other: str) -> str:
        """Return the score of the better baseline, or another note without baselines."""
        found = self._beside_variants
        if not found:
            return other
        better = found["better_baseline"]
        return f"test, {better} {_text(found['scores'][better][score]) or NOT_DEFINED}"

    def section(self, results: Mapping[str, Any]) -> str:
        """Return the figures and the table of classes of the final predictions."""
        predictions = self._predictions
        if predictions is None:
            return ""
        schema = predictions.schema
        parts = class_scores(schema, predictions.found.labels, predictions.found.outputs)
        unit = "residues" if schema.task.per_residue else "proteins"
        if predictions.is_of_variants:
            unit = "variants"
        names = [name for name in parts[0].values if _is_defined(name, parts)]
        rows = []
        for part in parts:
            shown = [_text(part.values[name]) or NOT_DEFINED for name in names]
            rows.append([part.name, f"{part.examples:,}", *shown])
        first_title = "measurement" if schema.task.measured else "class"
        titles = [first_title, unit, *(TITLES[name] for name in names)]
        return section(
            f"Predictions for the {predictions.split} split",
            self._compared(predictions)
            + self._figures(predictions, parts, unit)
            + table(titles, rows)
            + _residue_note(predictions),
        )

    def _compared(self, predictions: PredictedSplit) -> str:
        """Return the table of the tuned model beside the baselines; empty without them."""
        if self._beside_variants:
            return baseline_section(self._beside_variants)
        found = self._baselines
        if found.get("split") != predictions.split:
            return ""
        schema = predictions.schema
        headlines = schema.task.headlines
        tuned = scores(schema, predictions.found.labels, predictions.found.outputs)
        rows = []
        for name, values in {"tuned model": tuned, **found["scores"]}.items():
            rows.append([name, *(_text(values.get(score)) or NOT_DEFINED for score in headlines)])
        about = note(
            f"Baselines: {found['train']:,} proteins to fit, {found['proteins']:,} to score. "
            "A frozen probe is a linear model on embeddings of the model before tuning."
        )
        return table(["model", *(TITLES[score] for score in headlines)], rows) + about

    def _figures(self, predictions: PredictedSplit, parts: Sequence[ClassScore], unit: str) -> str:
        """Return the figures of the predictions."""
        if not predictions.is_of_variants:
            return _figures(predictions, parts, unit)
        scatters = _scatters(predictions)
        if not self._beside_variants:
            return f'<div class="grid">{scatters}</div>'
        errors = mutation_figure(self._beside_variants)
        return f'<div class="grid">{scatters}{errors}</div>' + mutation_tables(
            self._beside_variants
        )

    def subtitle(self, config: Mapping[str, Any]) -> str:
        return ", ".join(filter(None, (self._kind, super().subtitle(config))))


def _residue_note(predictions: PredictedSplit) -> str:
    """Return the numbers of residues that are scored and left out; empty without labels of residues."""
    counts = predictions.found.residue_counts(predictions.schema)
    if not counts:
        return ""
    shown = [f"{number:,} {name.removesuffix('_residues')}" for name, number in counts.items()]
    return note(f"Residues: {', '.join(shown)}.")


def _is_defined(score: str, parts: Sequence[ClassScore]) -> bool:
    """Return whether any class has this score."""
    return any(math.isfinite(part.values[score]) for part in parts)


def _figures(predictions: PredictedSplit, parts: Sequence[ClassScore], unit: str) -> str:
    schema = predictions.schema
    labels = predictions.found.labels
    outputs = predictions.found.outputs
    if schema.task.measured:
        return f'<div class="grid">{_scatters(predictions)}{_length_table(predictions, unit)}</div>'
    classes = list(one_against_others(schema, labels, outputs))
    curves = figure_block(
        "ROC and precision-recall curves", curves_figure(parts, classes), wide=True
    )
    counts = confusion(schema, labels, outputs)
    matrix = figure_block(
        "Confusion matrix",
        None if counts is None else confusion_figure(counts, schema.classes, unit),
    )
    return f'{curves}<div class="grid">{matrix}{_length_table(predictions, unit)}</div>'


def _scatters(predictions: PredictedSplit) -> str:
    """Return the predicted over the measured values of the first columns."""
    found = predictions.found
    figures = []
    for column, name in enumerate(predictions.schema.columns[:MAX_SCATTERS]):
        measured, predicted = _known(found.labels, found.outputs, column)
        drawn = scatter_figure(name, measured, predicted)
        figures.append(figure_block(f"Predicted over measured {name}", drawn))
    return "".join(figures)


def _length_table(predictions: PredictedSplit, unit: str) -> str:
    """Return the table of headline scores by length of the protein.

    It is empty for files of earlier versions, which lack the lengths.
    """
    schema = predictions.schema
    found = predictions.found
    headlines = schema.task.headlines
    lengths = np.repeat(found.lengths, np.diff(found.offsets))
    rows = []
    for low, high in itertools.pairwise(LENGTH_BOUNDS):
        chosen = (lengths > low) & (lengths <= high)
        if not chosen.any():
            continue
        values = scores(schema, found.labels[chosen], found.outputs[chosen])
        title = f"{low + 1:.0f} to {high:.0f}" if math.isfinite(high) else f"over {low:.0f}"
        shown = [_text(values[name]) or NOT_DEFINED for name in headlines]
        rows.append([title, f"{chosen.sum():,}", *shown])
    return table(["protein length", unit, *(TITLES[name] for name in headlines)], rows)


def _known(labels: Floats, outputs: Floats, column: int) -> tuple[Doubles, Doubles]:
    """Return the measured and the predicted values of a column, where both are known."""
    known = np.isfinite(labels[:, column]) & np.isfinite(outputs[:, column])
    return labels[known, column].astype(np.float64), outputs[known, column].astype(np.float64)


def _note(name: str, predictions: PredictedSplit, validation: Mapping[str, Any]) -> str:
    parts: list[str] = [predictions.split]
    if name == "accuracy" and (majority := _majority(predictions)) is not None:
        parts.append(f"largest class {majority:.3f}")
    elif predictions.split == "test" and (text := _text(validation.get(name))) is not None:
        parts.append(f"validation {text}")
    return ", ".join(parts)


def _majority(predictions: PredictedSplit) -> float | None:
    """Return the accuracy of always predicting the commonest class."""
    labels = predictions.found.labels[:, 0]
    known = labels[np.isfinite(labels)]
    if predictions.schema.task.several_columns or not len(known):
        return None
    return float(np.bincount(known.astype(np.int64)).max() / len(known))


def _text(value: object) -> str | None:
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return f"{value:.3f}"


def confusion_figure(counts: npt.NDArray[np.int64], names: Sequence[str], unit: str) -> str | None:
    """Draw a confusion matrix, coloured by the share of each true class."""
    size = len(names)
    if size > MAX_MATRIX_CLASSES or not counts.sum():
        return None
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    inches = (NARROW_INCHES[0], min(6.5, 1.6 + 0.45 * size))
    with drawing(inches, "Confusion matrix") as (figure, axes):
        axes.grid(visible=False)
        # Opacity instead of tints, so that the cells follow the theme. Shapes, because the page's policy
        # refuses pictures.
        opacity = ListedColormap([(BLUE, share) for share in np.linspace(0.04, 1, 256)])
        axes.pcolormesh(shares, cmap=opacity, vmin=0, vmax=1, edgecolors=PANEL, linewidth=1.5)
        axes.invert_yaxis()
        centres = np.arange(size) + 0.5
        # Long names of many classes would run into each other.
        leaning = size > 2 and max(map(len, names)) > 4
        axes.set_xticks(
            centres,
            labels=names,
            rotation=40 if leaning else 0,
            ha="right" if leaning else "center",
        )
        axes.set_yticks(centres, labels=names)
        axes.tick_params(length=0)
        axes.set_xlabel(f"predicted (colour: share of true {unit})")
        axes.set_ylabel("true")
        for spine in axes.spines.values():
            spine.set_visible(False)
        cells = np.ndindex(counts.shape) if size <= MATRIX_TEXT_CLASSES else ()
        has_room = size <= MATRIX_SHARE_CLASSES
        for row, column in cells:
            share = shares[row, column]
            text = f"{counts[row, column]:,}"
            if has_room:
                text += f"\n{share:.0%}"
            axes.text(
                column + 0.5,
                row + 0.5,
                text,
                ha="center",
                va="center",
                fontsize=10 if has_room else 8,
                color=PANEL if share > DARK_SHARE else INK,
            )
        return svg_text(figure, "confusion")


def curves_figure(parts: Sequence[ClassScore], classes: Sequence[OneClass]) -> str | None:
    """Draw ROC and precision-recall curves side by side, one line per class.

    Args:
        parts: scores of the classes.
        classes: truth and ranking of the examples, for each of these classes.
    """
    from sklearn.metrics import precision_recall_curve, roc_curve

    drawable = [
        (part, one)
        for part, one in zip(parts, classes, strict=True)
        if np.isfinite([part.values[name] for name in AREAS]).all()
    ]
    shown = drawable[:MAX_CURVES]
    if not shown:
        return None
    with matplotlib.rc_context(STYLE):
        num_columns = min(MAX_LEGEND_COLUMNS, len(shown))
        rows = -(-len(shown) // num_columns)
        figure = Figure(figsize=(WIDE_INCHES[0], WIDE_INCHES[1] + 0.2 * rows))
        roc, recall = figure.subplots(1, 2)
        for number, (part, one) in enumerate(shown):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": DASHES[number // len(COLOURS)],
                "linewidth": 1.8,
            }
            false_rate, true_rate, _ = roc_curve(one.truth, one.ranking)
            roc.plot(*_thinned(false_rate, true_rate), label=_label(part, len(shown)), **style)
            precision, found, _ = precision_recall_curve(one.truth, one.ranking)
            recall.plot(*_thinned(found, precision), **style)
        if len(shown) == 1:
            chance = float(shown[0][1].truth.mean())
            recall.axhline(chance, color=GREY, linestyle=":", linewidth=1.2)
        roc.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.2)
        roc.set(title="ROC", xlabel="false positive rate", ylabel="true positive rate")
        recall.set(title="Precision and recall", xlabel="recall", ylabel="precision")
        for axes in (roc, recall):
            axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03))
        figure.legend(
            *roc.get_legend_handles_labels(), loc="outside lower center", ncols=num_columns
        )
        return svg_text(figure, "curves")


def _label(part: ClassScore, num_shown: int) -> str:
    """Return the name of a class, with its areas if there is room."""
    name = part.name
    if len(name) > MAX_NAME_CHARS:
        name = name[: MAX_NAME_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    areas = ", ".join(f"{TITLES[area]} {part.values[area]:.3f}" for area in AREAS)
    return f"{name} ({areas})" if num_shown <= 2 else name


def scatter_figure(name: str, labels: Doubles, predictions: Doubles) -> str | None:
    """Draw predicted over measured values."""
    if len(labels) < 2:
        return None
    step = -(-len(labels) // MAX_SCATTER_POINTS)
    x = labels[::step]
    y = predictions[::step]
    low = float(min(x.min(), y.min()))
    high = float(max(x.max(), y.max()))
    margin = 0.04 * (high - low) or 1.0
    with drawing((NARROW_INCHES[0], 4.0), name[:50]) as (figure, axes):
        axes.plot([low, high], [low, high], color=GREY, linestyle=":", linewidth=1.2)
        axes.scatter(x, y, s=9, color=BLUE, alpha=0.35, linewidths=0)
        axes.set(xlabel="measured", ylabel="predicted")
        axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        return svg_text(figure, f"scatter-{zlib.crc32(name.encode())}")


def _thinned(x: Doubles, y: Doubles) -> tuple[Doubles, Doubles]:
    """Return at most ``MAX_CURVE_POINTS`` points of a curve, its ends among them."""
    if len(x) <= MAX_CURVE_POINTS:
        return x, y
    # Evenly along the curve, not along the array: a PR curve has most of its points at its flat end.
    steps = np.hypot(np.diff(x), np.diff(y))
    path = np.concatenate([[0.0], np.cumsum(steps)])
    places = np.searchsorted(path, np.linspace(0, path[-1], MAX_CURVE_POINTS))
    last = len(x) - 1
    places = np.unique(np.clip(np.append(places, last), 0, last))
    return x[places], y[places]
