"""The report's figures as SVG text that stands inside an HTML page.

Colours are Okabe and Ito's, which colour-blind readers tell apart; lines also differ in weight or marker.
"""

import io
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure
from matplotlib.ticker import EngFormatter, FuncFormatter, LogLocator, MaxNLocator, NullLocator

from .page import as_number

Floats = npt.NDArray[np.float64]

BLUE, ORANGE, VERMILLION, GREEN, GREY = "#0072B2", "#E69F00", "#D55E00", "#009E73", "#6b7280"
INK, GRID, EDGE, PANEL = "#1f2937", "#e5e7eb", "#9ca3af", "#ffffff"
THEME = {BLUE: "accent", GREY: "soft", INK: "ink", GRID: "line", EDGE: "edge", PANEL: "panel"}
"""Colours that follow the page's light or dark theme, with the names of its CSS variables."""
_SPLITS = (("validation", VERMILLION, "o"), ("test", GREEN, "D"), ("general", INK, "s"))
MAX_POINTS = 1200
"""More points than a screen is wide only make the file larger."""
SMOOTHING_SHARE = 0.015
"""Half of the window of the running mean, as a share of the curve."""
MAX_LABEL_CHARS = 40
LENGTH_SHARE_SHOWN = 0.995
"""Proteins above this quantile of length share the last bar, or a few giants would flatten the others."""
LENGTH_BIN_TOKENS = 64
"""Width of the bins in data/manifest.py."""

STYLE: Any = {
    # Text stays text: it can be selected and read aloud, and the page chooses the font.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.titlepad": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": EDGE,
    "axes.facecolor": "none",
    "axes.labelcolor": INK,
    "axes.labelpad": 8,
    "axes.titlecolor": INK,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": GRID,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "figure.facecolor": "none",
    "savefig.facecolor": "none",
    "figure.constrained_layout.use": True,
    "legend.frameon": False,
}
AT_TOP: Any = {"xycoords": ("data", "axes fraction"), "ha": "right", "va": "top"}
"""Text at the left of a vertical line, below the upper edge."""
WIDE_INCHES = (9.6, 4.2)
NARROW_INCHES = (5.4, 2.8)


@dataclass(frozen=True)
class History:
    """The training lines as columns, with the events that are drawn on each curve."""

    steps: Floats
    tokens: Floats
    columns: Mapping[str, Floats]
    """NaN where a line has no value."""
    events: Sequence[tuple[float, str]]
    """Step and text."""
    unit: str = "residues"
    """Unit of the counts; tokens for text."""

    def tokens_at(self, step: float) -> float:
        return float(np.interp(step, self.steps, self.tokens)) if len(self.steps) else math.nan

    def has(self, name: str) -> bool:
        return name in self.columns and bool(np.isfinite(self.columns[name]).any())


@contextmanager
def drawing(inches: tuple[float, float], title: str) -> Iterator[tuple[Figure, Any]]:
    """Figure with one set of axes, to be drawn and written in the report's style within the block."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=inches)
        axes = figure.subplots()
        # A name is no formula.
        axes.set_title(title, parse_math=False)
        yield figure, axes


def loss_figure(
    history: History,
    evaluations: Sequence[Mapping[str, Any]],
    unigram_perplexity: float | None,
    *,
    predicted: str | None = "masked residue",
) -> str | None:
    """Draw training loss and evaluations over residues, with steps above.

    If it is a cross-entropy, of what is ``predicted``, perplexity stands at the right.
    """
    scored = {
        split: [
            (history.tokens_at(line["step"]), line["eval_loss"])
            for line in evaluations
            if line.get("split") == split and as_number(line.get("eval_loss")) is not None
        ]
        for split, _, _ in _SPLITS
    }
    if not history.has("loss") and not any(scored.values()):
        return None
    with drawing(WIDE_INCHES, "Loss") as (figure, axes):
        losses: list[float] = []
        if history.has("loss"):
            x, y = _thinned(history.tokens, history.columns["loss"])
            smooth = _smoothed(y)
            losses += [*smooth]
            few = len(x) < 3
            axes.plot(x, y, color=BLUE, alpha=0.28, linewidth=1, marker="o" if few else "", markersize=4)
            axes.plot(
                x, smooth, color=BLUE, linewidth=2, label="training (smoothed)", marker="o" if few else ""
            )
        looks = {"markersize": 5.5, "markeredgecolor": "white", "linewidth": 1.4, "zorder": 3}
        for split, color, marker in _SPLITS:
            if scored[split]:
                x_points, y_points = zip(*scored[split], strict=True)
                losses += y_points
                axes.plot(x_points, y_points, color=color, marker=marker, label=split, **looks)
        if unigram_perplexity is not None and unigram_perplexity > 0:
            reference = math.log(unigram_perplexity)
            losses.append(reference)
            axes.axhline(
                reference,
                color=INK,
                linestyle=(0, (5, 3)),
                linewidth=1.2,
                label=f"residue frequencies alone (perplexity {unigram_perplexity:.1f})",
            )
        axes.set_ylabel(f"loss (nats per {predicted})" if predicted else "loss")
        # The first steps may start far above all that follows: leave room for them only if they are near.
        low, high = min(losses), max(losses)
        usual = float(np.quantile(losses, 0.98))
        top = high if high - low < 2.5 * (usual - low) or len(losses) < 20 else low + 1.4 * (usual - low)
        margin = 0.06 * (top - low) or 0.1
        axes.set_ylim(low - margin, top + margin)
        _finish_x(axes, history)
        _steps_on_top(axes, history)
        if predicted:
            _perplexity_at_right(axes)
        _mark_events(axes, history)
        figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=3, columnspacing=5)
        return svg_text(figure, "loss")


def _perplexity_at_right(axes: Any) -> None:
    def to_perplexity(loss: Any) -> Floats:
        return np.exp(np.minimum(loss, 50.0))

    def to_loss(perplexity: Any) -> Floats:
        return np.log(np.maximum(perplexity, 1e-9))

    right = axes.secondary_yaxis("right", functions=(to_perplexity, to_loss))
    right.set_ylabel("perplexity")
    # Even steps of a perplexity that goes over more than a power of ten stand on top of each other.
    low, high = axes.get_ylim()
    right.yaxis.set_major_locator(LogLocator() if high - low > math.log(10) else MaxNLocator(6))
    right.yaxis.set_minor_locator(NullLocator())
    right.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.4g}"))
    right.spines["right"].set_visible(True)


def curve_figure(history: History, name: str, title: str, unit: str, *, smooth: bool = False) -> str | None:
    """Draw one column over residues; None if no line has it. A ``smooth`` one may be logarithmic."""
    if not history.has(name):
        return None
    with drawing(NARROW_INCHES, title) as (figure, axes):
        axes.set_ylabel(unit)
        x, y = _thinned(history.tokens, history.columns[name])
        few = "o" if len(x) < 3 else ""
        if smooth:
            axes.plot(x, y, color=BLUE, alpha=0.28, linewidth=1, marker=few)
        axes.plot(x, _smoothed(y) if smooth else y, color=BLUE, linewidth=2, marker=few)
        positive = y[y > 0]
        if smooth and len(positive) and positive.max() > 50 * positive.min():
            axes.set_yscale("log")
        elif name == "learning_rate":
            axes.set_ylim(bottom=0)
            axes.ticklabel_format(axis="y", style="sci", scilimits=(0, 0), useMathText=True)
        else:
            # A spike of the first steps must not flatten all that follows.
            top, usual = float(y.max()), float(np.quantile(y, 0.98))
            axes.set_ylim(0, 1.08 * min(top, 10 * usual) or 1)
            if top >= 1000:
                axes.yaxis.set_major_formatter(EngFormatter())
        _finish_x(axes, history)
        return svg_text(figure, name.replace("_", "-"))


def length_figure(
    histogram: Mapping[int, int],
    crop_tokens: int | None,
    unit: str = "residues",
    records: str = "proteins",
) -> str | None:
    """Proteins by length; the longest few share the last bar."""
    if not histogram or sum(histogram.values()) <= 0:
        return None
    starts = np.array(sorted(histogram), dtype=float)
    counts = np.array([histogram[int(start)] for start in starts], dtype=float)
    cut = starts[np.searchsorted(np.cumsum(counts), LENGTH_SHARE_SHOWN * counts.sum())]
    shown = starts <= cut
    beyond = counts[~shown].sum()
    with drawing(NARROW_INCHES, "Protein lengths") as (figure, axes):
        looks = {"width": LENGTH_BIN_TOKENS, "align": "edge", "edgecolor": "white", "linewidth": 0.4}
        axes.bar(starts[shown], counts[shown], color=BLUE, **looks)
        if beyond:
            end = cut + LENGTH_BIN_TOKENS
            axes.bar([end], [beyond], color=ORANGE, **looks)
            text, place = f"{beyond:,.0f} from {end:.0f}", (end + LENGTH_BIN_TOKENS, beyond)
            axes.annotate(text, place, xytext=(0, 6), textcoords="offset points", ha="right", fontsize=9)
        if crop_tokens is not None and crop_tokens <= cut + 2 * LENGTH_BIN_TOKENS:
            axes.axvline(crop_tokens, color=VERMILLION, linestyle=(0, (5, 3)), linewidth=1.4)
            place = (crop_tokens, 0.97)
            axes.annotate(f"cropped at {crop_tokens} ", place, fontsize=9, color=VERMILLION, **AT_TOP)
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
    # An axis of its own needs residues and steps that grow together.
    grows = (
        len(history.steps) > 1 and (np.diff(history.steps) > 0).all() and (np.diff(history.tokens) > 0).all()
    )
    if not grows:
        return
    rate = history.tokens[-1] / history.steps[-1]
    top = axes.secondary_xaxis(
        "top",
        functions=(
            lambda residues: _interpolated(residues, history.tokens, history.steps, 1 / rate),
            lambda steps: _interpolated(steps, history.steps, history.tokens, rate),
        ),
    )
    top.set_xlabel("step", labelpad=6)
    top.xaxis.set_major_locator(MaxNLocator(8, integer=True))
    top.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    top.spines["top"].set_visible(True)


def _interpolated(values: Any, known: Floats, targets: Floats, slope: float) -> Floats:
    """Interpolate, and continue in a straight line outside: a limit of the axis must map back to itself."""
    values = np.asarray(values, dtype=float)
    inside = np.interp(values, [0.0, *known], [0.0, *targets])
    below, above = np.minimum(values, 0), np.maximum(values - known[-1], 0)
    return np.asarray(inside + slope * (below + above), dtype=float)


def _mark_events(axes: Any, history: History) -> None:
    """Draw checkpoints as triangles at the foot, named in the legend, and other events as labelled lines."""
    texts: dict[float, list[str]] = {}
    for step, text in history.events:
        if math.isfinite(x := history.tokens_at(step)):
            texts.setdefault(x, []).append(text)
    if saved := [x for x, here in texts.items() if "checkpoint" in here]:
        foot = {"transform": axes.get_xaxis_transform(), "clip_on": False, "linestyle": ""}
        axes.plot(
            saved, [0.025] * len(saved), marker="^", color=GREY, markersize=7, label="checkpoint", **foot
        )
    for x, here in texts.items():
        others = [text for text in here if text != "checkpoint"]
        if others:
            axes.axvline(x, color=GREY, linewidth=1, linestyle=":", zorder=1)
            label = ", ".join(others)[:MAX_LABEL_CHARS] + " "
            # Text as the run wrote it: a dollar sign is no formula.
            looks = {"rotation": 90, "fontsize": 8, "color": GREY, "parse_math": False}
            axes.annotate(label, (x, 0.985), **looks, **AT_TOP)


def _thinned(x: Floats, y: Floats) -> tuple[Floats, Floats]:
    """At most ``MAX_POINTS`` points, each the mean of its neighbours."""
    finite = np.isfinite(x) & np.isfinite(y)
    x, y = x[finite], y[finite]
    if len(x) <= MAX_POINTS:
        return x, y
    starts = np.linspace(0, len(x), MAX_POINTS, endpoint=False).astype(int)
    sizes = np.diff([*starts, len(x)])
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def _smoothed(y: Floats) -> Floats:
    """Mean over a window around each point; it narrows at the ends, so the steep start is not shifted."""
    half = int(len(y) * SMOOTHING_SHARE)
    n = np.arange(len(y))
    half_here = np.minimum(half, np.minimum(n, len(y) - 1 - n))
    total = np.concatenate([[0.0], np.cumsum(y)])
    return (total[n + half_here + 1] - total[n - half_here]) / (2 * half_here + 1)


def svg_text(figure: Figure, name: str) -> str:
    """Give the figure's ``<svg>`` element, with ``name`` in its ids: they are per page, not per figure."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    # HTML knows the namespaces by itself; the width comes from the page.
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height|xmlns(:\w+)?)="[^"]*"', "", opening)
    text = f"{opening}>{rest}".replace("xlink:href", "href")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text).strip()
    for colour, variable in THEME.items():
        text = text.replace(f": {colour.lower()}", f": var(--{variable})")
    return text
