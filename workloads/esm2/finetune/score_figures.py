"""Figures of a fine-tuned model's predictions: confusion matrix, ROC and precision-recall curves, scatter."""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from workloads.esm2.report_figures import (
    BLUE,
    GREY,
    INK,
    STYLE,
    WIDE_INCHES,
    Floats,
    drawing,
    svg_text,
)

# Okabe and Ito's colours without yellow, which is faint on white; then the same again in dashes.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#1f2937")
DASHES = ("-", (0, (5, 2)), (0, (1, 1.5)))
MAX_CURVES = len(COLOURS) * len(DASHES)
MAX_CURVE_POINTS = 400
MAX_SCATTER_POINTS = 3000
MAX_MATRIX_CLASSES = 40
MAX_LEGEND_COLUMNS = 4
MAX_NAME_CHARS = 24
MATRIX_TEXT_CLASSES = 14
"""Larger matrices have no room for numbers."""


@dataclass(frozen=True)
class RankedClass:
    """One class against the others, as ``scores.one_against_others`` gives it."""

    name: str
    truth: npt.NDArray[np.bool_]
    ranking: Floats
    auroc: float
    auprc: float


def confusion_figure(counts: npt.NDArray[np.int64], names: Sequence[str], unit: str) -> str | None:
    """Draw a confusion matrix, coloured by the share of each true class."""
    size = len(names)
    if size > MAX_MATRIX_CLASSES or not counts.sum():
        return None
    shares = counts / np.maximum(counts.sum(axis=1, keepdims=True), 1)
    inches = max(3.4, min(7.5, 1.6 + 0.55 * size))
    with drawing((inches + 1.0, inches), "Confusion matrix") as (figure, axes):
        axes.grid(visible=False)
        # Cells as shapes: a picture inside the page is what its policy refuses.
        axes.pcolormesh(shares, cmap="Blues", vmin=0, vmax=1, edgecolors="white", linewidth=1.5)
        axes.invert_yaxis()
        axes.set_aspect("equal")
        centres = np.arange(size) + 0.5
        # Long names of many classes would run into each other.
        leaning = size > 2 and max(map(len, names)) > 4
        axes.set_xticks(
            centres, labels=names, rotation=40 if leaning else 0, ha="right" if leaning else "center"
        )
        axes.set_yticks(centres, labels=names)
        axes.tick_params(length=0)
        axes.set_xlabel(f"predicted (colour: share of true {unit})")
        axes.set_ylabel("true")
        for spine in axes.spines.values():
            spine.set_visible(False)
        for row, column in np.ndindex(counts.shape) if size <= MATRIX_TEXT_CLASSES else ():
            share = shares[row, column]
            text = f"{counts[row, column]:,}" + (f"\n{share:.0%}" if size <= 6 else "")
            axes.text(
                column + 0.5,
                row + 0.5,
                text,
                ha="center",
                va="center",
                fontsize=10 if size <= 6 else 8,
                color="white" if share > 0.55 else INK,
            )
        return svg_text(figure, "confusion")


def curves_figure(classes: Sequence[RankedClass]) -> str | None:
    """Draw ROC and precision-recall curves side by side, one line a class."""
    from sklearn.metrics import precision_recall_curve, roc_curve

    shown = [part for part in classes if np.isfinite([part.auroc, part.auprc]).all()][:MAX_CURVES]
    if not shown:
        return None
    with matplotlib.rc_context(STYLE):
        num_columns = min(MAX_LEGEND_COLUMNS, len(shown))
        rows = -(-len(shown) // num_columns)
        figure = Figure(figsize=(WIDE_INCHES[0], WIDE_INCHES[1] + 0.2 * rows))
        roc, recall = figure.subplots(1, 2)
        for number, part in enumerate(shown):
            style = {
                "color": COLOURS[number % len(COLOURS)],
                "linestyle": DASHES[number // len(COLOURS)],
                "linewidth": 1.8,
            }
            false_rate, true_rate, _ = roc_curve(part.truth, part.ranking)
            roc.plot(*_thinned(false_rate, true_rate), label=_label(part, len(shown)), **style)
            precision, found, _ = precision_recall_curve(part.truth, part.ranking)
            recall.plot(*_thinned(found, precision), **style)
        if len(shown) == 1:
            recall.axhline(float(shown[0].truth.mean()), color=GREY, linestyle=":", linewidth=1.2)
        roc.plot([0, 1], [0, 1], color=GREY, linestyle=":", linewidth=1.2)
        roc.set(title="ROC", xlabel="false positive rate", ylabel="true positive rate")
        recall.set(title="Precision and recall", xlabel="recall", ylabel="precision")
        for axes in (roc, recall):
            axes.set(xlim=(-0.01, 1.01), ylim=(-0.01, 1.03))
        figure.legend(*roc.get_legend_handles_labels(), loc="outside lower center", ncols=num_columns)
        return svg_text(figure, "curves")


def _label(part: RankedClass, num_shown: int) -> str:
    """A name, with its areas where there is room; a dollar sign is no formula."""
    name = (
        part.name
        if len(part.name) <= MAX_NAME_CHARS
        else part.name[: MAX_NAME_CHARS - 1] + "\N{HORIZONTAL ELLIPSIS}"
    )
    areas = f" (AUROC {part.auroc:.3f}, AUPRC {part.auprc:.3f})" if num_shown <= 2 else ""
    return name.replace("$", r"\$") + areas


def scatter_figure(name: str, labels: Floats, predictions: Floats) -> str | None:
    """Draw predicted over measured values."""
    if len(labels) < 2:
        return None
    step = -(-len(labels) // MAX_SCATTER_POINTS)
    x, y = labels[::step], predictions[::step]
    low, high = float(min(x.min(), y.min())), float(max(x.max(), y.max()))
    margin = 0.04 * (high - low) or 1.0
    with drawing((4.6, 4.2), name[:50]) as (figure, axes):
        axes.plot([low, high], [low, high], color=GREY, linestyle=":", linewidth=1.2)
        axes.scatter(x, y, s=9, color=BLUE, alpha=0.35, linewidths=0)
        axes.set(xlabel="measured", ylabel="predicted", aspect="equal")
        axes.set(xlim=(low - margin, high + margin), ylim=(low - margin, high + margin))
        return svg_text(figure, f"scatter-{zlib.crc32(name.encode())}")


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most so many points of a curve, its ends among them; all are points of the curve itself."""
    if len(x) <= MAX_CURVE_POINTS:
        return x, y
    # Even along the curve, not along the array: a PR curve has most of its points at its flat end.
    path = np.concatenate([[0.0], np.cumsum(np.hypot(np.diff(x), np.diff(y)))])
    places = np.searchsorted(path, np.linspace(0, path[-1], MAX_CURVE_POINTS))
    places = np.unique(np.clip(np.append(places, len(x) - 1), 0, len(x) - 1))
    return x[places], y[places]
