"""Part of a run's report on variants of one protein: the baselines, and errors by number of mutations."""

import math
from collections.abc import Mapping
from html import escape
from typing import Any

import numpy as np

from seqlm.training.report.drawing import (
    BLUE,
    GREY,
    NARROW_INCHES,
    ORANGE,
    PANEL,
    drawing,
    svg_text,
)
from seqlm.training.report.page import as_number, figure_block, formatted, note, table

from .baselines import MODEL, RIDGES

HEADLINES = ("spearman", "ndcg", "top_recall", "rmse")
"""Scores of variants, the most important one first."""
TITLES = {
    "spearman": "Spearman",
    "ndcg": "NDCG",
    "top_recall": "Recall of the top 10 %",
    "rmse": "RMSE",
}
NOT_DEFINED = "\N{EN DASH}"
"""Text of a score that is not defined."""
BAR_WIDTH = 0.26
STYLES = ((BLUE, ""), (ORANGE, "///"), (GREY, "..."))
"""Colour and pattern of the bars of each model, so that they differ without colour, too."""


def baseline_section(found: Mapping[str, Any]) -> str:
    """Return the statement on the tuned model, and the table of its scores beside the baselines'.

    Args:
        found: content of the file of baselines.
    """
    rows = [
        [name, *(_shown(scores.get(score)) for score in HEADLINES)]
        for name, scores in found["scores"].items()
    ]
    best = "Lower" if found["direction"] == "lower" else "Higher"
    notes = [
        f"Fitted to {found['train']:,} variants, scored on {found['test']:,}. {best} values count as better "
        "(task.direction). Augmented: one-hot residues and the zero-shot score of the model before tuning "
        "(Hsu et al. 2022). NDCG and recall as in ProteinGym. A constant prediction has the Spearman "
        "correlation 0.",
        *(f"{text[0].upper()}{text[1:]}." for text in found["notes"]),
    ]
    return (
        f"<p><strong>{escape(_sentence(found['statement']))}</strong></p>"
        + table(["model", *(TITLES[score] for score in HEADLINES)], rows)
        + "".join(map(note, notes))
    )


def mutation_figure(found: Mapping[str, Any]) -> str:
    """Return the figure of the errors by number of mutations."""
    groups = found["by_mutations"]
    models = _models(found)
    with drawing((NARROW_INCHES[0], 4.0), "Error by number of mutations") as (figure, axes):
        places = np.arange(len(groups))
        for number, (model, (colour, pattern)) in enumerate(zip(models, STYLES, strict=False)):
            heights = [as_number(one["scores"][model]["rmse"]) or math.nan for one in groups]
            axes.bar(
                places + (number - (len(models) - 1) / 2) * BAR_WIDTH,
                heights,
                BAR_WIDTH,
                color=colour,
                hatch=pattern,
                edgecolor=PANEL,
                linewidth=0.5,
                label=model,
            )
        axes.set_xticks(places, [f"{one['mutations']}\n({one['variants']:,})" for one in groups])
        axes.set(xlabel="mutations (number of variants)", ylabel="RMSE")
        axes.grid(visible=False, axis="x")
        figure.legend(loc="outside lower center", ncols=len(models))
        drawn = svg_text(figure, "mutations")
    return figure_block("Root mean squared error by number of mutations", drawn)


def mutation_tables(found: Mapping[str, Any]) -> str:
    """Return the tables of the scores by number of mutations."""
    models = _models(found)
    tables = []
    for score in ("spearman", "rmse"):
        rows = []
        for one in found["by_mutations"]:
            cells = [_shown(one["scores"][model][score]) for model in models]
            rows.append([one["mutations"], f"{one['variants']:,}", *cells])
        drawn = table(["mutations", "variants", *models], rows)
        tables.append(note(f"{TITLES[score]} by number of mutations") + drawn)
    return "".join(tables)


def _models(found: Mapping[str, Any]) -> list[str]:
    """Return the tuned model and the ridge regressions that were fitted."""
    return [name for name in (MODEL, *RIDGES) if name in found["scores"]]


def _shown(value: object) -> str:
    return formatted(as_number(value), "{:.3f}") or NOT_DEFINED


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
