"""Summaries of all single mutants: heat maps, a table by position, and logos of the first proteins.

A heat map has the positions from left to right, the 20 residues from top to bottom. The scores of a position
are log p(mutant) - log p(wild type). They give the probabilities of the 20 residues, normalized over these.
The pseudo-perplexity of a residue is 1 / p(wild type): 1 if the model is sure of it, 20 if it cannot tell it
from the others.
"""

import csv
import io
import itertools
import math
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.image import AxesImage

from seqlm.runs.inference_commands import PARQUET, POSITIONS_END
from seqlm.training.whole_file import write_whole, writing_whole

ROWS = "GAVLIMPFWYSTCNQDEHKR"
"""Mutant residues by chemical kind: small, aliphatic, aromatic, polar, charged."""
COLOURS = colormaps["RdBu"].with_extremes(bad="#d9d9d9")
"""Blue is favoured, red disfavoured. Grey cells have no score, such as those of the wild type."""
COLOUR_PERCENTILE = 98
"""Percentile of the scores' sizes at which the colours end. A few extreme positions would otherwise leave the
rest without colour."""
POSITIONS_PER_LINE = 100
"""Largest number of positions in a band of a heat map; the bands of a protein have equal widths."""
TICK_POSITIONS = 10
"""Positions between two ticks."""
MAX_PICTURES = 20
"""Largest number of heat maps of a table."""
MAX_POSITIONS = 3000
"""Largest number of positions in a heat map, because few programs open longer pictures. The table has all."""
MAX_LOGOS = 5
"""Largest number of logos of a table."""
LOGO_LINE_POSITIONS = 60
"""Largest number of positions in a line of a logo."""
MAX_LOGO_POSITIONS = 600
"""Largest number of positions in a logo."""
MAX_NAME_CHARACTERS = 80
"""Largest number of characters of an id in the name of a file."""
COLUMNS = (
    "id",
    "position",
    "wild_type",
    "mean_score",
    "best_mutant",
    "best_score",
    "entropy",
    "pseudo_perplexity",
)
"""Columns of the table; the entropy is in bits."""
SMALLEST_BITS = 0.05
"""Smallest height of a letter in a logo. Lower ones cannot be read."""
CHAIN_END = "."
"""Character between the chain and the mutation in names."""
GREY = "#6b7280"
LINE_GREY = "#9ca3af"
BLUE = "#0072b2"


@dataclass
class Mutants:
    """Single mutants of one protein."""

    protein: str
    chain: str = ""
    """Chain of a protein with several; empty for a protein of one chain."""
    scores: dict[tuple[int, str], float] = field(default_factory=dict)
    """Scores by position and new residue."""
    wild: dict[int, str] = field(default_factory=dict)
    """Residues of the wild type by position."""
    first_position: int = 1
    """Number of the first residue."""

    @property
    def title(self) -> str:
        """Name of the protein, or of its chain."""
        return f"{self.protein}.{self.chain}" if self.chain else self.protein


class Written(NamedTuple):
    """File that was written."""

    path: Path
    content: str
    """Description of the content, for the user."""


def draw_heat_maps(table: Path, model: str, first_position: int = 1) -> list[Path]:
    """Draw ``<name>.<number>-<id>.png`` for the first proteins of a table of single mutants, if missing."""
    pictures = []
    first_proteins = itertools.islice(proteins_of(table, first_position), MAX_PICTURES)
    for number, mutants in enumerate(first_proteins, start=1):
        path = picture_of(table, number, mutants.title)
        if not path.exists():
            with writing_whole(path) as partial:
                heat_map(mutants, model).savefig(partial, dpi=150, bbox_inches="tight")
        pictures.append(path)
    return pictures


def picture_of(table: Path, number: int, protein: str, kind: str = "") -> Path:
    """Return the path of a picture of the table's n-th protein."""
    safe = re.sub(r"[^\w.-]+", "-", protein)[:MAX_NAME_CHARACTERS]
    return table.with_name(f"{table.stem}.{number:02d}-{safe}{kind}.png")


def proteins_of(table: Path, first_position: int = 1) -> Iterator[Mutants]:
    """Yield the proteins in order, and each chain of one with several.

    Positions that restart begin another protein, even with the same id.
    """
    mutants = Mutants("", first_position=first_position)
    last = first_position
    for name, mutation, score in _rows(table):
        chain, _, change = mutation.rpartition(CHAIN_END)
        place = int(change[1:-1])
        if (name, chain) != (mutants.protein, mutants.chain) or place < last:
            if mutants.scores:
                yield mutants
            mutants = Mutants(name, chain, first_position=first_position)
        mutants.scores[place, change[-1]] = score
        mutants.wild[place] = change[0]
        last = place
    if mutants.scores:
        yield mutants


def _rows(table: Path) -> Iterator[tuple[str, str, float]]:
    """Yield ids, mutations and scores. No more of the table is read than the caller takes."""
    if table.suffix == PARQUET:
        with pq.ParquetFile(table) as file:
            yield from _rows_of(file.iter_batches())
        return
    # Without types an id of digits would be a number.
    types = {"id": pa.string(), "mutation": pa.string(), "score": pa.float32()}
    options = pa.csv.ConvertOptions(column_types=types)
    with pa.csv.open_csv(table, convert_options=options) as file:
        yield from _rows_of(file)


def _rows_of(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[str, str, float]]:
    for batch in batches:
        columns = (batch.column(name).to_pylist() for name in ("id", "mutation", "score"))
        yield from zip(*columns, strict=True)


def heat_map(mutants: Mutants, model: str) -> Figure:
    """Return the heat map of one protein, in bands of equal widths."""
    begin = mutants.first_position
    length = min(max(mutants.wild) - begin + 1, MAX_POSITIONS)
    scores = np.full((len(ROWS), length), np.nan)
    for (position, mutant), score in mutants.scores.items():
        if position - begin < length:
            scores[ROWS.index(mutant), position - begin] = score
    limit = float(np.nanpercentile(np.abs(scores), COLOUR_PERCENTILE))
    num_bands = math.ceil(length / POSITIONS_PER_LINE)
    width = math.ceil(length / num_bands)
    size = (max(7.0, 2.5 + 0.13 * width), 1.2 + 3.1 * num_bands)
    figure = Figure(figsize=size, layout="constrained")
    bands = figure.subplots(num_bands, 1, squeeze=False)[:, 0]
    for first, band in zip(range(0, length, width), bands, strict=True):
        image = _draw_band(band, mutants, scores[:, first : first + width], first, limit)
        band.set_xlim(-0.5, width - 0.5)
    bands[-1].set_xlabel("position", fontsize=8)
    title = f"{mutants.title}, {_short(model)}"
    figure.suptitle(title, fontsize=10, parse_math=False)
    figure.legend(
        *bands[0].get_legend_handles_labels(), loc="outside lower right", fontsize=8, frameon=False
    )
    bar = figure.colorbar(image, ax=list(bands), shrink=min(1.0, 2.5 / num_bands))
    bar.set_label("log p(mutant) - log p(wild type), nats", fontsize=8)
    bar.ax.set_title("favoured", fontsize=8)
    bar.ax.set_xlabel("disfavoured", fontsize=8)
    return figure


def _draw_band(
    axis: Axes, mutants: Mutants, scores: npt.NDArray[np.float64], first: int, limit: float
) -> AxesImage:
    """Draw the positions after the ``first`` ones of a protein, with dots at the wild type.

    Args:
        axis: axes of the band.
        mutants: single mutants of the protein.
        scores: scores of the band, with a row for each residue of ``ROWS``.
        first: number of positions before the band.
        limit: score with the strongest colour.
    """
    num_positions = scores.shape[1]
    image = axis.imshow(
        scores, cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", interpolation="none"
    )
    axis.set_frame_on(False)
    axis.set_ylabel("mutant residue", fontsize=8)
    axis.set_yticks(range(len(ROWS)), list(ROWS), fontsize=6)
    begin = mutants.first_position + first
    positions = range(begin, begin + num_positions)
    ticks = [position for position in positions if position % TICK_POSITIONS == 0]
    axis.set_xticks(
        [position - begin for position in ticks],
        [str(position) for position in ticks],
        fontsize=7,
    )
    dots_x = []
    dots_y = []
    for position, residue in mutants.wild.items():
        if residue in ROWS and position in positions:
            dots_x.append(position - begin)
            dots_y.append(ROWS.index(residue))
    axis.plot(dots_x, dots_y, "ko", markersize=2.6, label="wild type")
    return image


def _short(model: str) -> str:
    """Return the last parts of a model's name, for a title."""
    return "/".join(Path(model).parts[-2:])


def probabilities(mutants: Mutants) -> dict[int, npt.NDArray[np.float64]]:
    """Return the probabilities of the residues ``ROWS`` at each position, (20,)."""
    found = {}
    for place, wild in mutants.wild.items():
        # The wild type's score is 0 by its definition. A residue without a score has probability 0.
        known = {residue: mutants.scores.get((place, residue), -np.inf) for residue in ROWS} | {
            wild: 0.0
        }
        scores = np.array([known[residue] for residue in ROWS])
        shares = np.exp(scores - scores.max())
        found[place] = shares / shares.sum()
    return found


def write_positions(
    table: Path, model: str, first_position: int = 1, *, has_chains: bool = False
) -> list[Written]:
    """Write ``<name>.positions.csv`` and the logos of the first proteins, and return these files.

    Args:
        table: table of single mutants.
        model: name of the model.
        first_position: number of the first residue.
        has_chains: whether mutations name their chains, which then have a column.
    """
    path = table.with_suffix(POSITIONS_END)
    written = [Written(path, "summary by position")]
    has_logomaker = find_spec("logomaker") is not None
    if not has_logomaker:
        print(
            "warning: no logos are drawn, because logomaker is not installed: pip install logomaker"
        )
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow([*COLUMNS, "chain"] if has_chains else COLUMNS)
    for number, mutants in enumerate(proteins_of(table, first_position), start=1):
        shares = probabilities(mutants)
        for place, at_place in shares.items():
            row = _position_row(mutants, place, at_place)
            writer.writerow([*row, mutants.chain] if has_chains else row)
        if number <= MAX_LOGOS and has_logomaker:
            picture = picture_of(table, number, mutants.title, ".logo")
            if not picture.exists():
                with writing_whole(picture) as partial:
                    _logo(mutants, shares, model).savefig(partial, dpi=150)
            written.append(Written(picture, "logo and pseudo-perplexity"))
    write_whole(path, text.getvalue())
    return written


def _position_row(mutants: Mutants, place: int, shares: npt.NDArray[np.float64]) -> list[object]:
    """Return the row of a position in ``COLUMNS``, from the probabilities ``shares`` (20,)."""
    wild = mutants.wild[place]
    scores = {r: mutants.scores[place, r] for r in ROWS if (place, r) in mutants.scores}
    best = max(scores, key=lambda residue: scores[residue])
    entropy = -sum(float(share * math.log2(share)) for share in shares if share > 0)
    perplexity = 1 / shares[ROWS.index(wild)]
    mean = np.mean(list(scores.values()))
    return [mutants.protein, place, wild, mean, best, scores[best], entropy, perplexity]


def _logo(mutants: Mutants, shares: dict[int, npt.NDArray[np.float64]], model: str) -> Figure:
    """Return the logo of a protein: lines of letters, each above the pseudo-perplexity of its positions."""
    begin = mutants.first_position
    length = min(max(shares) - begin + 1, MAX_LOGO_POSITIONS)
    num_lines = math.ceil(length / LOGO_LINE_POSITIONS)
    width = math.ceil(length / num_lines)
    figure = Figure(figsize=(11, 2.6 * num_lines), layout="constrained")
    axes = figure.subplots(2 * num_lines, 1, squeeze=False, height_ratios=[1.5, 1] * num_lines)[
        :, 0
    ]
    for line, (letters, track) in enumerate(zip(axes[::2], axes[1::2], strict=True)):
        places = range(begin + line * width, begin + (line + 1) * width)
        heights = np.zeros((width, len(ROWS)))
        for row, place in enumerate(places):
            if place in shares and place - begin < length:
                heights[row] = _letter_heights(shares[place])
        _draw_letters(letters, places, heights)
        known = [place for place in places if place in shares]
        perplexities = [1 / shares[place][ROWS.index(mutants.wild[place])] for place in known]
        track.semilogy(known, perplexities, color=BLUE, drawstyle="steps-mid", linewidth=1)
        track.set(xlim=letters.get_xlim(), ylim=(0.9, None), ylabel="pseudo-\nperplexity")
        track.set_yticks([1, 5, 20], ["1", "5", "20"])
        track.minorticks_off()
        track.axhline(len(ROWS), color=LINE_GREY, linewidth=0.8, linestyle=":")
    axes[-1].set_xlabel("position")
    title = f"{mutants.title}, {_short(model)}; dotted line: all residues alike"
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure


def _letter_heights(shares: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the letters' heights in bits, (20,): the share of each in the information of the position."""
    logs = np.log2(shares, out=np.zeros_like(shares), where=shares > 0)
    information = math.log2(len(ROWS)) + (shares * logs).sum()
    heights: npt.NDArray[np.float64] = shares * information
    heights[heights < SMALLEST_BITS] = 0
    return heights


def _draw_letters(axis: Axes, places: range, heights: npt.NDArray[np.float64]) -> None:
    """Draw one line of a logo, with the heights (positions, 20) of the letters."""
    import logomaker  # brings pandas
    import pandas as pd

    if heights.any():
        letters = pd.DataFrame(heights, index=places, columns=list(ROWS))
        logomaker.Logo(letters, ax=axis, color_scheme="chemistry")
    else:
        text = f"no residue has {SMALLEST_BITS} bits or more"
        axis.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", color=GREY)
    axis.set(xlim=(places[0] - 0.5, places[-1] + 0.5))
    axis.set(ylim=(0, math.log2(len(ROWS))), ylabel="bits")
    axis.set_xticks([])
