"""Heat maps of all single mutants: positions from left to right, the 20 residues from top to bottom."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pyarrow.csv
import pyarrow.parquet as pq
from matplotlib.figure import Figure

from .output_file import PARQUET

ROWS = "GAVLIMPFWYSTCNQDEHKR"
"""By chemical kind: small, aliphatic, aromatic, polar, charged."""
POSITIONS_PER_LINE = 100
MAX_PICTURES = 20
MAX_POSITIONS = 3000
"""Drawn of a protein; what is longer gives pictures that few programs open. The table has them all."""


def draw_heat_maps(table: Path) -> list[Path]:
    """Pictures ``<name>.<number>-<id>.png`` of the first proteins in a table of all single mutants."""
    rows = pq.read_table(table) if table.suffix == PARQUET else pyarrow.csv.read_csv(table)
    found: dict[str, dict[tuple[int, str], float]] = {}
    wild: dict[str, dict[int, str]] = {}
    for name, mutation, score in zip(
        *(rows[column].to_pylist() for column in rows.schema.names), strict=True
    ):
        if name not in found and len(found) == MAX_PICTURES:
            break
        place = int(mutation[1:-1])
        found.setdefault(name, {})[place, mutation[-1]] = score
        wild.setdefault(name, {})[place] = mutation[0]
    pictures = []
    for number, name in enumerate(found, start=1):
        safe = re.sub(r"[^\w.-]+", "-", name)[:80]
        path = table.with_name(f"{table.stem}.{number:02d}-{safe}.png")
        _draw(path, name, found[name], wild[name])
        pictures.append(path)
    return pictures


def _draw(path: Path, name: str, scores: dict[tuple[int, str], float], wild: dict[int, str]) -> None:
    length = min(max(wild), MAX_POSITIONS)
    grid = np.full((len(ROWS), length), np.nan)
    for (place, mutant), score in scores.items():
        if place <= length:
            grid[ROWS.index(mutant), place - 1] = score
    # A few extreme positions would leave the rest without colour.
    limit = float(np.nanpercentile(np.abs(grid), 98))
    count = -(-length // POSITIONS_PER_LINE)
    width = min(length, POSITIONS_PER_LINE)
    figure = Figure(figsize=(2.5 + 0.13 * width, 1 + 3.1 * count), layout="constrained")
    axes = figure.subplots(count, 1, squeeze=False)[:, 0]
    for line, axis in enumerate(axes):
        first = line * POSITIONS_PER_LINE
        part = np.full((len(ROWS), width), np.nan)
        here = grid[:, first : first + POSITIONS_PER_LINE]
        part[:, : here.shape[1]] = here
        image = axis.imshow(part, cmap="RdBu", vmin=-limit, vmax=limit, aspect="auto", interpolation="none")
        axis.set_facecolor("#d9d9d9")
        axis.set_yticks(range(len(ROWS)), list(ROWS), fontsize=6)
        ticks = [place for place in range(first + 1, first + here.shape[1] + 1) if place % 10 == 0]
        axis.set_xticks([place - first - 1 for place in ticks], [str(place) for place in ticks], fontsize=7)
        for place in range(first, first + here.shape[1]):
            if residue := wild.get(place + 1):
                axis.text(place - first, ROWS.index(residue), "·", ha="center", va="center", fontsize=7)
    axes[0].set_title(f"{name}: masked marginals, log p(mutant) - log p(wild type) (· wild type)", fontsize=9)
    axes[-1].set_xlabel("position", fontsize=8)
    figure.colorbar(image, ax=list(axes), shrink=min(1.0, 2.5 / count), label="nats")
    figure.savefig(path, dpi=150)
