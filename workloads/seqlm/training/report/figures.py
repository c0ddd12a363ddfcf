"""Figures of a report: loss, other curves, and lengths of records. Lines differ in weight or marker."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from seqlm.training.data.manifest import LENGTH_BIN_TOKENS

from .drawing import (
    BLUE,
    GREEN,
    GREY,
    INK,
    NARROW_INCHES,
    ORANGE,
    VERMILLION,
    WIDE_INCHES,
    drawing,
    logarithmic,
    svg_text,
)
from .page import as_number

Floats = npt.NDArray[np.float64]

MAX_POINTS = 1200
"""Largest number of points of a curve: about the width of a screen in pixels."""
SMOOTHING_SHARE = 0.015
"""Half of the window of the running mean, as a share of the curve."""
MAX_LABEL_CHARS = 40
"""Length to which the label of an event is cut."""
LENGTH_SHARE_SHOWN = 0.995
"""Quantile of length above which records share the last bar. The longest few would flatten the others."""
USUAL_QUANTILE = 0.98
"""Quantile of a curve that counts as its usual top. The first steps may be far above it."""
MAX_LOSS_RATIO = 2.5
"""Range of the losses over the usual range, from which the axis leaves out the highest losses."""
MIN_POINTS_CUT = 20
"""Number of losses from which the axis may leave out the highest ones."""
FEW_POINTS = 3
"""Number of points below which a curve also has markers."""

_RUN_COLORS = (BLUE, VERMILLION, GREEN, ORANGE, INK, GREY)
"""Colors of runs that are compared, as many as ``seqlm compare`` takes runs."""

AT_TOP: Any = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top"}
"""Text at the left of a vertical line, below the upper edge."""


class _Mark(NamedTuple):
    color: str
    marker: str


_SPLIT_MARKS = {
    "validation": _Mark(VERMILLION, "o"),
    "test": _Mark(GREEN, "D"),
    "general": _Mark(INK, "s"),
}
"""Marks of the evaluations by split."""


@dataclass(frozen=True)
class History:
    """Training lines of a run as columns, with its events."""

    steps: Floats
    tokens: Floats
    """Number of record tokens trained on at each step."""
    columns: Mapping[str, Floats]
    """Values by their names in the log, NaN if a line has no value."""
    events: Sequence[tuple[float, str]]
    """Step and text of each event."""
    unit: str
    """Word for the tokens."""

    def tokens_at(self, step: float) -> float:
        """Return the number of tokens at a step; NaN without training lines."""
        return float(np.interp(step, self.steps, self.tokens)) if len(self.steps) else math.nan

    def has(self, name: str) -> bool:
        """Return whether a column has any finite value."""
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())


def loss_figure(
    history: History,
    evaluations: Sequence[Mapping[str, Any]],
    unigram_perplexity: float | None,
    *,
    predicted: str | None,
) -> str | None:
    """Draw training loss and evaluations over tokens, with steps above.

    Args:
        history: training lines of the run.
        evaluations: evaluation lines of the run.
        unigram_perplexity: perplexity of the frequencies of tokens, for reference; None draws none.
        predicted: word for a target if the loss is a cross-entropy, which gets an axis of perplexity; None
            for another loss.

    Returns:
        SVG text; None if there is no loss.
    """
    scored = {split: _scores(history, evaluations, split) for split in _SPLIT_MARKS}
    if not history.has("loss") and not any(scored.values()):
        return None
    with drawing(WIDE_INCHES, "Loss") as (figure, axes):
        losses: list[float] = []
        if history.has("loss"):
            tokens, values = _thinned(history.tokens, history.columns["loss"])
            smooth = running_mean(values)
            losses += smooth.tolist()
            marker = "o" if len(tokens) < FEW_POINTS else ""
            axes.plot(
                tokens, values, color=BLUE, alpha=0.28, linewidth=1, marker=marker, markersize=4
            )
            axes.plot(
                tokens, smooth, color=BLUE, linewidth=2, label="training (smoothed)", marker=marker
            )
        for split, mark in _SPLIT_MARKS.items():
            if scored[split]:
                split_tokens, split_losses = zip(*scored[split], strict=True)
                losses += split_losses
                axes.plot(
                    split_tokens,
                    split_losses,
                    color=mark.color,
                    marker=mark.marker,
                    label=split,
                    markersize=5.5,
                    markeredgecolor="white",
                    linewidth=1.4,
                    zorder=3,
                )
        if unigram_perplexity is not None and unigram_perplexity > 0:
            reference = math.log(unigram_perplexity)
            losses.append(reference)
            axes.axhline(
                reference,
                color=INK,
                linestyle=(0, (5, 3)),
                linewidth=1.2,
                label=f"{history.unit.removesuffix('s')} frequencies alone "
                f"(perplexity {unigram_perplexity:.1f})",
            )
        axes.set_ylabel(f"loss (nats per {predicted})" if predicted else "loss")
        axes.set_ylim(*_loss_limits(losses))
        _finish_x(axes, history)
        _steps_on_top(axes, history)
        if predicted:
            _perplexity_at_right(axes)
        _mark_events(axes, history)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, columnspacing=5)
        return svg_text(figure, "loss")


def compared_loss_figure(histories: Mapping[str, History]) -> str | None:
    """Draw the training losses of several runs over tokens.

    Args:
        histories: training lines by the name of the run.

    Returns:
        SVG text; None if no run has a loss.
    """
    drawn = {name: history for name, history in histories.items() if history.has("loss")}
    if not drawn:
        return None
    units = " or ".join(sorted({history.unit for history in drawn.values()}))
    with drawing(WIDE_INCHES, "Training loss (smoothed)") as (figure, axes):
        losses: list[float] = []
        last_tokens = 1.0
        for color, (name, history) in zip(_RUN_COLORS, drawn.items(), strict=False):
            tokens, values = _thinned(history.tokens, history.columns["loss"])
            smooth = running_mean(values)
            losses += smooth.tolist()
            last_tokens = max(last_tokens, float(tokens[-1]))
            marker = "o" if len(tokens) < FEW_POINTS else ""
            label = name[:MAX_LABEL_CHARS]
            axes.plot(tokens, smooth, color=color, linewidth=1.6, label=label, marker=marker)
        axes.set_ylabel("loss")
        axes.set_ylim(*_loss_limits(losses))
        axes.set_xlabel(f"real {units} trained on")
        axes.xaxis.set_major_formatter(EngFormatter())
        axes.set_xlim(0, last_tokens * 1.01)
        handles, labels = axes.get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=3, columnspacing=5)
        return svg_text(figure, "losses")


def _scores(
    history: History, evaluations: Sequence[Mapping[str, Any]], split: str
) -> list[tuple[float, float]]:
    """Return tokens and loss of each evaluation of a split."""
    return [
        (history.tokens_at(line["step"]), line["eval_loss"])
        for line in evaluations
        if line.get("split") == split and as_number(line.get("eval_loss")) is not None
    ]


def _loss_limits(losses: Sequence[float]) -> tuple[float, float]:
    """Return the limits of the axis. The first steps may be far above the rest, and are then left out."""
    low = min(losses)
    top = max(losses)
    usual_range = float(np.quantile(losses, USUAL_QUANTILE)) - low
    if len(losses) >= MIN_POINTS_CUT and top - low >= MAX_LOSS_RATIO * usual_range:
        top = low + 1.4 * usual_range
    margin = 0.06 * (top - low) or 0.1
    return low - margin, top + margin


def _perplexity_at_right(axes: Any) -> None:
    def to_perplexity(loss: Any) -> Floats:
        return np.exp(np.minimum(loss, 50.0))

    def to_loss(perplexity: Any) -> Floats:
        return np.log(np.maximum(perplexity, 1e-9))

    right = axes.secondary_yaxis("right", functions=(to_perplexity, to_loss))
    right.set_ylabel("perplexity")
    # Even steps of a perplexity overlap if it covers more than a power of ten.
    low, high = axes.get_ylim()
    right.yaxis.set_major_locator(LogLocator() if high - low > math.log(10) else MaxNLocator(6))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    right.spines["right"].set_visible(True)


def curve_figure(
    history: History, name: str, title: str, unit: str, *, smooth: bool = False
) -> str | None:
    """Draw one column over tokens.

    Args:
        history: training lines of the run.
        name: name of the column.
        title: title of the figure.
        unit: label of the vertical axis.
        smooth: whether to draw a running mean, too. The axis may then be logarithmic.

    Returns:
        SVG text; None if no line has the column.
    """
    if not history.has(name):
        return None
    with drawing(NARROW_INCHES, title) as (figure, axes):
        axes.set_ylabel(unit)
        tokens, values = _thinned(history.tokens, history.columns[name])
        marker = "o" if len(tokens) < FEW_POINTS else ""
        if smooth:
            axes.plot(tokens, values, color=BLUE, alpha=0.28, linewidth=1, marker=marker)
        line = running_mean(values) if smooth else values
        axes.plot(tokens, line, color=BLUE, linewidth=2, marker=marker)
        positive = values[values > 0]
        if smooth and len(positive) and positive.max() > 50 * positive.min():
            logarithmic(axes)
        elif name == "learning_rate":
            axes.set_ylim(bottom=0)
            axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=False)
        else:
            # A spike in the first steps must not flatten the rest.
            top = float(values.max())
            usual = float(np.quantile(values, USUAL_QUANTILE))
            axes.set_ylim(0, 1.08 * min(top, 10 * usual) or 1)
            if top >= 1000:
                axes.yaxis.set_major_formatter(EngFormatter())
        _finish_x(axes, history)
        return svg_text(figure, name.replace("_", "-"))


def length_figure(
    histogram: Mapping[int, int], *, crop_tokens: int | None, unit: str, records: str
) -> str | None:
    """Draw the number of records by length. The longest few share the last bar.

    Args:
        histogram: number of records by the first length of each bin.
        crop_tokens: length to which records are cropped; None if they are not.
        unit: word for the tokens.
        records: word for the records.

    Returns:
        SVG text; None without records.
    """
    if not histogram or sum(histogram.values()) <= 0:
        return None
    starts = np.array(sorted(histogram), dtype=float)
    counts = np.array([histogram[int(start)] for start in starts], dtype=float)
    cut = starts[np.searchsorted(np.cumsum(counts), LENGTH_SHARE_SHOWN * counts.sum())]
    shown = starts <= cut
    beyond = counts[~shown].sum()
    with drawing(NARROW_INCHES, f"Lengths of {records}") as (figure, axes):
        looks = {
            "width": LENGTH_BIN_TOKENS,
            "align": "edge",
            "edgecolor": "white",
            "linewidth": 0.4,
        }
        axes.bar(starts[shown], counts[shown], color=BLUE, **looks)
        if beyond:
            end = cut + LENGTH_BIN_TOKENS
            axes.bar([end], [beyond], color=ORANGE, **looks)
            axes.annotate(
                f"{beyond:,.0f} from {end:.0f}",
                (end + LENGTH_BIN_TOKENS, beyond),
                xytext=(0, 6),
                textcoords="offset points",
                ha="right",
                fontsize=9,
            )
        if crop_tokens is not None and crop_tokens <= cut + 2 * LENGTH_BIN_TOKENS:
            axes.axvline(crop_tokens, color=VERMILLION, linestyle=(0, (5, 3)), linewidth=1.4)
            axes.annotate(
                f"cropped at {crop_tokens} ",
                (crop_tokens, 0.97),
                fontsize=9,
                color=VERMILLION,
                **AT_TOP,
            )
        axes.set_xlabel(f"length ({unit})")
        axes.set_ylabel(records)
        axes.yaxis.set_major_formatter(EngFormatter())
        axes.grid(visible=False, axis="x")
        return svg_text(figure, "lengths")


def _finish_x(axes: Any, history: History) -> None:
    axes.set_xlabel(f"real {history.unit} trained on")
    axes.xaxis.set_major_formatter(EngFormatter())
    if len(history.tokens):
        axes.set_xlim(0, max(float(history.tokens[-1]), 1.0) * 1.01)


def _steps_on_top(axes: Any, history: History) -> None:
    # A second axis needs tokens and steps that grow together.
    grows = (
        len(history.steps) > 1
        and (np.diff(history.steps) > 0).all()
        and (np.diff(history.tokens) > 0).all()
    )
    if not grows:
        return
    rate = history.tokens[-1] / history.steps[-1]
    top = axes.secondary_xaxis(
        "top",
        functions=(
            lambda tokens: _interpolated(tokens, history.tokens, history.steps, 1 / rate),
            lambda steps: _interpolated(steps, history.steps, history.tokens, rate),
        ),
    )
    top.set_xlabel("step", labelpad=6)
    top.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    top.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    top.spines["top"].set_visible(True)


def _interpolated(values: Any, known: Floats, targets: Floats, slope: float) -> Floats:
    """Interpolate, and continue with a slope outside, so that a limit of the axis maps back to itself."""
    values = np.asarray(values, dtype=float)
    inside = np.interp(values, [0.0, *known], [0.0, *targets])
    below = np.minimum(values, 0)
    above = np.maximum(values - known[-1], 0)
    return np.asarray(inside + slope * (below + above), dtype=float)


def _mark_events(axes: Any, history: History) -> None:
    """Draw checkpoints as triangles at the bottom, and other events as vertical lines with labels."""
    texts_by_tokens: dict[float, list[str]] = {}
    for step, text in history.events:
        tokens = history.tokens_at(step)
        if math.isfinite(tokens):
            texts_by_tokens.setdefault(tokens, []).append(text)
    saved = [tokens for tokens, texts in texts_by_tokens.items() if "checkpoint" in texts]
    if saved:
        axes.plot(
            saved,
            [0.025] * len(saved),
            marker="^",
            color=GREY,
            markersize=7,
            label="checkpoint",
            transform=axes.get_xaxis_transform(),
            clip_on=False,
            linestyle="",
        )
    for tokens, texts in texts_by_tokens.items():
        others = [text for text in texts if text != "checkpoint"]
        if others:
            axes.axvline(tokens, color=GREY, linewidth=1, linestyle=":", zorder=1)
            label = ", ".join(others)[:MAX_LABEL_CHARS] + " "
            looks = {"rotation": 90, "fontsize": 8, "color": GREY}
            axes.annotate(label, (tokens, 0.985), **looks, **AT_TOP)


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """Return at most ``MAX_POINTS`` finite points, each the mean of its neighbours."""
    finite = np.isfinite(x) & np.isfinite(y)
    x = x[finite]
    y = y[finite]
    if len(x) <= MAX_POINTS:
        return x, y
    starts = np.linspace(0, len(x), MAX_POINTS, endpoint=False).astype(int)
    sizes = np.diff([*starts, len(x)])
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def running_mean(y: Floats) -> Floats:
    """Return the mean over a window around each point.

    The window narrows at the ends, so that it does not shift a steep beginning.
    """
    index = np.arange(len(y))
    half_windows = np.minimum(int(len(y) * SMOOTHING_SHARE), np.minimum(index, len(y) - 1 - index))
    sums = np.concatenate([[0.0], np.cumsum(y)])
    return (sums[index + half_windows + 1] - sums[index - half_windows]) / (2 * half_windows + 1)
