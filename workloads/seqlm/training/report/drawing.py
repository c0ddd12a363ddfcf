"""Style of the report's figures, and SVG text for an HTML page.

Colours are those of Okabe and Ito, which colour-blind readers can distinguish.
"""

import io
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import matplotlib
from matplotlib.figure import Figure

BLUE = "#0072B2"
ORANGE = "#E69F00"
VERMILLION = "#D55E00"
GREEN = "#009E73"
GREY = "#6b7280"
INK = "#1f2937"
GRID = "#e5e7eb"
EDGE = "#9ca3af"
PANEL = "#ffffff"
THEME = {BLUE: "accent", GREY: "soft", INK: "ink", GRID: "line", EDGE: "edge", PANEL: "panel"}
"""Colours that follow the page's light or dark theme, with the names of its CSS variables."""
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
    # Names of classes and columns are text, whatever dollar signs they have.
    "text.parse_math": False,
    "legend.frameon": False,
}
WIDE_INCHES = (9.6, 4.2)
NARROW_INCHES = (5.4, 2.8)


@contextmanager
def drawing(inches: tuple[float, float], title: str) -> Iterator[tuple[Figure, Any]]:
    """Yield a figure with one set of axes. Draw and write it within the block, to keep the report's style."""
    with matplotlib.rc_context(STYLE):
        figure = Figure(figsize=inches)
        axes = figure.subplots()
        axes.set_title(title)
        yield figure, axes


def logarithmic(axes: Any) -> None:
    """Make the vertical axis logarithmic, with plain numbers, because matplotlib's own are formulas."""
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter("{x:,g}")


def svg_text(figure: Figure, name: str) -> str:
    """Return a figure as an ``<svg>`` element, with ``name`` in its ids, which must be unique in the page."""
    stream = io.StringIO()
    with matplotlib.rc_context({"svg.hashsalt": name}):
        figure.savefig(stream, format="svg", metadata={"Date": None})
    text = stream.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, count=1, flags=re.DOTALL)
    # HTML needs no namespaces, and the page sets the width.
    opening, rest = text.split(">", 1)
    opening = re.sub(r'\s(width|height|xmlns(:\w+)?)="[^"]*"', "", opening)
    text = f"{opening}>{rest}".replace("xlink:href", "href")
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', text).strip()
    for colour, variable in THEME.items():
        text = text.replace(f": {colour.lower()}", f": var(--{variable})")
    return text
