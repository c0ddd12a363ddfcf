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
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.figure import Figure

from seqlm.runs.inference_commands import PARQUET
from seqlm.training.whole_file import write_whole, writing_whole

ROWS = "GAVLIMPFWYSTCNQDEHKR"
"""Mutant residues by chemical kind: small, aliphatic, aromatic, polar, charged."""
COLOURS = colormaps["RdBu"].with_extremes(bad="#d9d9d9")
"""Blue is favoured, red disfavoured. Grey cells have no score, as those of the wild type."""
POSITIONS_PER_LINE = 100
"""Largest number; the bands of a protein have equal widths."""
MAX_PICTURES = 20
MAX_POSITIONS = 3000
"""Drawn of a protein; what is longer gives pictures that few programs open. The table has them all."""
MAX_LOGOS, LOGO_LINE_POSITIONS, MAX_LOGO_POSITIONS = 5, 60, 600
COLUMNS = (
    *("id", "position", "wild_type", "mean_score", "best_mutant", "best_score"),
    *("entropy", "pseudo_perplexity"),
)
"""Columns of the table; the entropy is in bits."""
SMALLEST_BITS = 0.05
"""Letters below are too low to be read."""


@dataclass
class Mutants:
    """Single mutants of one protein."""

    protein: str
    scores: dict[tuple[int, str], float] = field(default_factory=dict)
    """Scores by position, from 1, and new residue."""
    wild: dict[int, str] = field(default_factory=dict)


def draw_heat_maps(table: Path, model: str) -> list[Path]:
    """Draw ``<name>.<number>-<id>.png`` of the first proteins in a table of single mutants, if missing."""
    pictures = []
    for number, mutants in enumerate(itertools.islice(proteins_of(table), MAX_PICTURES), start=1):
        path = picture_of(table, number, mutants.protein)
        if not path.exists():
            with writing_whole(path) as partial:
                _figure(mutants, model).savefig(partial, dpi=150, bbox_inches="tight")
        pictures.append(path)
    return pictures


def picture_of(table: Path, number: int, protein: str, kind: str = "") -> Path:
    """Return the path of a picture of the table's n-th protein."""
    safe = re.sub(r"[^\w.-]+", "-", protein)[:80]
    return table.with_name(f"{table.stem}.{number:02d}-{safe}{kind}.png")


def proteins_of(table: Path) -> Iterator[Mutants]:
    """Yield the proteins in order; positions that restart begin another protein, even with the same id."""
    mutants, last = Mutants(""), 0
    for name, mutation, score in _rows(table):
        place = int(mutation[1:-1])
        if name != mutants.protein or place < last:
            if mutants.scores:
                yield mutants
            mutants = Mutants(name)
        mutants.scores[place, mutation[-1]] = score
        mutants.wild[place] = mutation[0]
        last = place
    if mutants.scores:
        yield mutants


def _rows(table: Path) -> Iterator[tuple[str, str, float]]:
    """No more is read than is drawn."""
    # Without types an id of digits would be a number.
    types = {"id": pa.string(), "mutation": pa.string(), "score": pa.float32()}
    is_parquet, options = table.suffix == PARQUET, pa.csv.ConvertOptions(column_types=types)
    with pq.ParquetFile(table) if is_parquet else pa.csv.open_csv(table, convert_options=options) as file:
        for batch in file.iter_batches() if is_parquet else file:
            yield from zip(*(column.to_pylist() for column in batch.columns), strict=True)


def _figure(mutants: Mutants, model: str) -> Figure:
    length = min(max(mutants.wild), MAX_POSITIONS)
    grid = np.full((len(ROWS), length), np.nan)
    for (place, mutant), score in mutants.scores.items():
        if place <= length:
            grid[ROWS.index(mutant), place - 1] = score
    # A few extreme positions would leave the rest without colour.
    limit = float(np.nanpercentile(np.abs(grid), 98))
    count = math.ceil(length / POSITIONS_PER_LINE)
    width = math.ceil(length / count)
    figure = Figure(figsize=(max(7.0, 2.5 + 0.13 * width), 1.2 + 3.1 * count), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for first, axis in zip(range(0, length, width), axes, strict=True):
        here = grid[:, first : first + width]
        image = axis.imshow(here, cmap=COLOURS, vmin=-limit, vmax=limit, aspect="auto", interpolation="none")
        axis.set(xlim=(-0.5, width - 0.5), frame_on=False)
        axis.set_ylabel("mutant residue", fontsize=8)
        axis.set_yticks(range(len(ROWS)), list(ROWS), fontsize=6)
        ticks = [place for place in range(first + 1, first + here.shape[1] + 1) if place % 10 == 0]
        axis.set_xticks([place - first - 1 for place in ticks], [str(place) for place in ticks], fontsize=7)
        wild = [(place - first - 1, ROWS.index(r)) for place, r in mutants.wild.items() if r in ROWS]
        inside = [point for point in wild if 0 <= point[0] < here.shape[1]]
        axis.plot(*zip(*inside, strict=True), "ko", markersize=2.6, label="wild type")
    axes[-1].set_xlabel("position", fontsize=8)
    figure.suptitle(f"{mutants.protein}, {'/'.join(Path(model).parts[-2:])}", fontsize=10, parse_math=False)
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside lower right", fontsize=8, frameon=False)
    bar = figure.colorbar(image, ax=list(axes), shrink=min(1.0, 2.5 / count))
    bar.set_label("log p(mutant) - log p(wild type), nats", fontsize=8)
    bar.ax.set_title("favoured", fontsize=8)
    bar.ax.set_xlabel("disfavoured", fontsize=8)
    return figure


def probabilities(mutants: Mutants) -> dict[int, npt.NDArray[np.float64]]:
    """Return the probabilities of the residues ``ROWS`` at each position, (20,)."""
    found = {}
    for place, wild in mutants.wild.items():
        scores = np.array([0.0 if r == wild else mutants.scores.get((place, r), -np.inf) for r in ROWS])
        shares = np.exp(scores - scores.max())
        found[place] = shares / shares.sum()
    return found


def write_positions(table: Path, model: str) -> list[tuple[Path, str]]:
    """Write ``<name>.positions.csv`` and the logos; return the files with what they are."""
    text, files = io.StringIO(), list[tuple[Path, str]]()
    path = table.with_name(f"{table.stem}.positions.csv")
    has_logomaker = find_spec("logomaker") is not None
    if not has_logomaker:
        print("warning: no logos are drawn, because logomaker is not installed: pip install logomaker")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for number, mutants in enumerate(proteins_of(table), start=1):
        shares = probabilities(mutants)
        for place, p in shares.items():
            wild = mutants.wild[place]
            scores = {r: mutants.scores[place, r] for r in ROWS if (place, r) in mutants.scores}
            best = max(scores, key=lambda r: scores[r])
            entropy = -sum(float(q * math.log2(q)) for q in p if q > 0)
            row: list[Any] = [mutants.protein, place, wild, np.mean([*scores.values()]), best, scores[best]]
            writer.writerow([*row, entropy, 1 / p[ROWS.index(wild)]])
        if number <= MAX_LOGOS and has_logomaker:
            picture = picture_of(table, number, mutants.protein, ".logo")
            if not picture.exists():
                with writing_whole(picture) as partial:
                    _logo_figure(mutants, shares, model).savefig(partial, dpi=150)
            files.append((picture, "logo and pseudo-perplexity"))
    write_whole(path, text.getvalue())
    return [(path, "summary by position"), *files]


def _logo_figure(mutants: Mutants, shares: dict[int, npt.NDArray[np.float64]], model: str) -> Figure:
    import logomaker  # brings pandas
    import pandas as pd

    length = min(max(shares), MAX_LOGO_POSITIONS)
    count = math.ceil(length / LOGO_LINE_POSITIONS)
    width = math.ceil(length / count)
    figure = Figure(figsize=(11, 2.6 * count), layout="constrained")
    axes = figure.subplots(2 * count, 1, squeeze=False, height_ratios=[1.5, 1] * count)[:, 0]
    for line in range(count):
        places = range(line * width + 1, line * width + width + 1)
        table = np.zeros((width, len(ROWS)))
        for place in places:
            if place in shares and place <= length:
                p = shares[place]
                logs = np.log2(p, out=np.zeros_like(p), where=p > 0)
                table[place - places[0]] = p * (math.log2(len(ROWS)) + (p * logs).sum())
        table[table < SMALLEST_BITS] = 0
        logo, track = axes[2 * line], axes[2 * line + 1]
        letters = pd.DataFrame(table, index=places, columns=list(ROWS))
        if table.any():
            logomaker.Logo(letters, ax=logo, color_scheme="chemistry")
        else:
            text = f"no residue has {SMALLEST_BITS} bits or more"
            logo.annotate(text, (0.5, 0.5), xycoords="axes fraction", ha="center", color="#6b7280")
        logo.set(xlim=(places[0] - 0.5, places[-1] + 0.5))
        logo.set(ylim=(0, math.log2(len(ROWS))), ylabel="bits")
        known = [place for place in places if place in shares]
        values = [1 / shares[place][ROWS.index(mutants.wild[place])] for place in known]
        track.semilogy(known, values, color="#0072b2", drawstyle="steps-mid", linewidth=1)
        track.set(xlim=logo.get_xlim(), ylim=(0.9, None), ylabel="pseudo-\nperplexity")
        track.set_yticks([1, 5, 20], ["1", "5", "20"])
        track.minorticks_off()
        track.axhline(len(ROWS), color="#9ca3af", linewidth=0.8, linestyle=":")
        logo.set_xticks([])
    axes[-1].set_xlabel("position")
    title = f"{mutants.protein}, {'/'.join(Path(model).parts[-2:])}; dotted line: all residues alike"
    figure.suptitle(title, fontsize=10, parse_math=False)
    return figure
