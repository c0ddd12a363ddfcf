"""Heat maps of all single mutants: positions from left to right, the 20 residues from top to bottom."""

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib import colormaps
from matplotlib.figure import Figure

from workloads.training.whole_file import writing_whole

from .output_file import PARQUET

ROWS = "GAVLIMPFWYSTCNQDEHKR"
"""Mutant residues by chemical kind: small, aliphatic, aromatic, polar, charged."""
COLOURS = colormaps["RdBu"].with_extremes(bad="#d9d9d9")
"""Blue is favoured, red disfavoured. Grey cells have no score, as those of the wild type."""
POSITIONS_PER_LINE = 100
"""Largest number; the bands of a protein have equal widths."""
MAX_PICTURES = 20
MAX_POSITIONS = 3000
"""Drawn of a protein; what is longer gives pictures that few programs open. The table has them all."""


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
