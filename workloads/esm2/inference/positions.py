"""Summary of all single mutants by position: a table for all proteins, and a logo of the first ones.

The scores of a position are log p(mutant) - log p(wild type). They give the probabilities of the 20 residues,
normalized over these. The pseudo-perplexity of a residue is 1 / p(wild type): 1 if the model is sure of it,
20 if it cannot tell it from the others.
"""

import csv
import io
import math
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from matplotlib.figure import Figure

from workloads.training.whole_file import write_whole, writing_whole

from .heat_map import ROWS, Mutants, picture_of, proteins_of

MAX_LOGOS, POSITIONS_PER_LINE, MAX_POSITIONS = 5, 60, 600
COLUMNS = (
    *("id", "position", "wild_type", "mean_score", "best_mutant", "best_score"),
    *("entropy", "pseudo_perplexity"),
)
"""Columns of the table; the entropy is in bits."""
SMALLEST_BITS = 0.05
"""Letters below are too low to be read."""


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
    text, files, path = io.StringIO(), list[tuple[Path, str]](), positions_file(table)
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
                    _figure(mutants, shares, model).savefig(partial, dpi=150)
            files.append((picture, "logo and pseudo-perplexity"))
    write_whole(path, text.getvalue())
    return [(path, "summary by position"), *files]


def positions_file(table: Path) -> Path:
    return table.with_name(f"{table.stem}.positions.csv")


def _figure(mutants: Mutants, shares: dict[int, npt.NDArray[np.float64]], model: str) -> Figure:
    import logomaker  # brings pandas
    import pandas as pd

    length = min(max(shares), MAX_POSITIONS)
    count = math.ceil(length / POSITIONS_PER_LINE)
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
