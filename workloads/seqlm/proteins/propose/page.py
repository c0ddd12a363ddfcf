"""Page of proposed variants: a map of positions and residues, predicted values, and the campaign by round.

All text from outside is escaped, and the page loads nothing.
"""

from pathlib import Path

import numpy as np

from seqlm.proteins.alphabet import STANDARD_RESIDUES
from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.inference.single_mutants import ROWS
from seqlm.training.report.drawing import (
    BLUE,
    EDGE,
    GREY,
    ORANGE,
    VERMILLION,
    drawing,
    logarithmic,
    svg_text,
)
from seqlm.training.report.page import (
    Card,
    card_block,
    definition_table,
    figure_block,
    page,
    section,
    table,
)

from .campaign import CONTROL, Proposal, Round
from .measured import Measured
from .space import NUM_RESIDUES
from .surrogate import Floats

MOST_POSITIONS = 120
"""Largest number of positions on the map, those with the most proposed mutations."""
BINS = 40
WILD_TYPE = "\N{MULTIPLICATION SIGN}"
"""Sign of the residue of the wild type on the map."""
SHOWN_SEQUENCE = 60
"""Characters of a long name in the table."""
STYLE = """
@media (max-width: 600px) {
  figure, .panel { overflow-x: auto; }
  figure svg { min-width: 620px; }
  td:last-child { min-width: 12em; }
}
"""
"""On narrow screens, figures and the table keep their size and scroll."""


def proposals_page(
    protein: str, model: str, found: Round, measured: Measured, options: ProposeConfig
) -> str:
    """Return the page.

    Args:
        protein: id of the wild type.
        model: name of the model.
        found: proposed variants.
        measured: measured variants.
        options: section of the run file.
    """
    proposed = [one for one in found.proposals if one.reason != CONTROL]
    sign = -1.0 if options.direction == "lower" else 1.0
    values = sign * measured.values.values
    best = None
    if len(values):
        best = f"{_best(values, sign):.4g}"
    cards = [
        Card("round", str(measured.num_rounds + 1)),
        Card("proposed", f"{len(proposed):,}"),
        Card("controls", f"{len(found.proposals) - len(proposed):,}"),
        Card("variants allowed", f"{found.num_variants:,}"),
        Card("measured", f"{len(values):,}"),
        Card("best measured", best),
    ]
    what = "predicted value" if len(values) else "score of the model"
    body = [
        card_block(cards),
        section(
            "Map",
            figure_block(
                f"{what} of each mutation; the table of proposed variants has the numbers",
                _map(found, proposed, what),
                wide=True,
            ),
        ),
        section(
            "Predicted values",
            figure_block(
                f"{what} of {len(found.candidates):,} candidates and {len(proposed):,} proposed variants",
                _distribution(found, proposed, values, what),
            ),
        ),
        section(
            "Campaign",
            figure_block(
                f"values of {len(values):,} measured variants by round; the best one is {best}",
                _campaign(measured, proposed, values, sign),
            ),
        ),
        section("Proposed variants", _rows(found)),
        section("Settings", definition_table(_settings(model, options))),
    ]
    return page(
        "Variants to measure next", protein, f"round {measured.num_rounds + 1}", body, style=STYLE
    )


def _best(values: Floats, sign: float) -> float:
    return float(sign * (sign * values).max())


def _map(found: Round, proposed: list[Proposal], what: str) -> str | None:
    """Draw the predicted values of single mutants, with the number of proposals that have each mutation."""
    space = found.space
    by_number = np.zeros(space.no_mutation)
    for one in proposed:
        by_number[list(one.mutations)] += 1
    counts = by_number.reshape(len(space.places), NUM_RESIDUES)
    by_use = np.argsort(-counts.sum(axis=1), kind="stable")[:MOST_POSITIONS]
    shown = np.sort(by_use)
    order = [STANDARD_RESIDUES.index(letter) for letter in ROWS]
    values = found.singles[shown][:, order].T
    uses = counts[shown][:, order].T
    inches = (9.6, 5.0)
    with drawing(inches, f"{what} of single mutations, and proposals with each") as (figure, axes):
        # From light to dark, which also a grey picture shows.
        mesh = axes.pcolormesh(values, cmap="Blues")
        bar = figure.colorbar(mesh, label=what)
        # Vectors, because the page loads no image.
        assert bar.solids is not None
        bar.solids.set_rasterized(False)
        rows, columns = np.nonzero(uses)
        sizes = 12 + 60 * uses[rows, columns] / max(uses.max(), 1)
        axes.scatter(
            columns + 0.5, rows + 0.5, s=sizes, c=ORANGE, edgecolors="black", linewidths=0.8
        )
        for row, column in np.argwhere(np.isnan(values)):
            axes.text(column + 0.5, row + 0.5, WILD_TYPE, ha="center", va="center", fontsize=8)
        step = max(1, len(shown) // 30)
        ticks = np.arange(0, len(shown), step)
        names = [
            f"{space.wild[space.places[place]]}{space.places[place] + space.first_position}"
            for place in shown[ticks]
        ]
        axes.set_xticks(ticks + 0.5, names, rotation=90 if len(names) > 12 else 0)
        axes.set_yticks(np.arange(NUM_RESIDUES) + 0.5, list(ROWS))
        axes.set_xlabel(f"position; a dot is larger with more proposals; {WILD_TYPE}: wild type")
        axes.grid(visible=False)
        return svg_text(figure, "map")


def _distribution(found: Round, proposed: list[Proposal], values: Floats, what: str) -> str:
    """Draw the distribution of the predicted values of candidates, and of the proposed and measured ones."""
    chosen = np.array([one.predicted for one in proposed])
    every = np.concatenate([found.candidates, chosen, values])
    edges = np.linspace(every.min(), max(every.max(), every.min() + 1e-9), BINS + 1)
    with drawing((9.6, 3.6), "candidates and choice") as (figure, axes):
        axes.hist(found.candidates, edges, color=EDGE, label="candidates")
        if len(values):
            axes.hist(
                values,
                edges,
                histtype="step",
                color=VERMILLION,
                linestyle="--",
                linewidth=1.6,
                label="measured",
            )
        axes.hist(chosen, edges, histtype="step", color=BLUE, linewidth=1.6, label="proposed")
        logarithmic(axes)
        axes.set_xlabel(what)
        axes.set_ylabel("variants")
        axes.legend()
        return svg_text(figure, "distribution")


def _campaign(
    measured: Measured, proposed: list[Proposal], values: Floats, sign: float
) -> str | None:
    """Draw the measured values by round, the best so far, and the predictions of this round."""
    if not len(values):
        return None
    rounds = np.array(measured.rounds)
    next_round = measured.num_rounds + 1
    numbers = np.arange(1, next_round)
    best = [_best(values[rounds <= number], sign) for number in numbers if (rounds <= number).any()]
    with drawing((9.6, 3.6), "values by round") as (figure, axes):
        axes.scatter(_spread(rounds), values, s=12, c=GREY, linewidths=0, label="measured")
        axes.plot(
            numbers[-len(best) :],
            best,
            color=BLUE,
            marker="D",
            linewidth=2,
            markersize=5,
            label="best so far",
        )
        means = np.array([one.predicted for one in proposed])
        errors = np.array([one.uncertainty or 0.0 for one in proposed])
        axes.errorbar(
            _spread(np.full(len(means), next_round)),
            means,
            errors,
            fmt="^",
            markersize=3,
            color=VERMILLION,
            alpha=0.5,
            elinewidth=0.7,
            label="predicted, with standard deviation",
        )
        axes.set_xticks(np.arange(1, next_round + 1))
        axes.set_xlabel("round")
        axes.set_ylabel("value")
        axes.legend()
        return svg_text(figure, "campaign")


def _spread(rounds: np.ndarray) -> Floats:
    """Return places beside each round, so that its points do not cover each other."""
    places = rounds.astype(np.float64)
    for number in np.unique(rounds):
        chosen = rounds == number
        places[chosen] += np.linspace(-0.3, 0.3, int(chosen.sum()))
    return places


def _rows(found: Round) -> str:
    """Return the table of proposed variants."""
    rows = []
    for place, one in enumerate(found.proposals, start=1):
        name = one.variant
        if len(name) > SHOWN_SEQUENCE:
            name = f"{name[:SHOWN_SEQUENCE]}..."
        uncertainty = "" if one.uncertainty is None else f"{one.uncertainty:#.4g}"
        rows.append(
            (
                str(place),
                name,
                f"{one.predicted:#.4g}",
                uncertainty,
                f"{one.zero_shot:#.4g}",
                one.reason,
            )
        )
    return table(("", "variant", "predicted", "uncertainty", "zero-shot", "reason"), rows)


def _settings(model: str, options: ProposeConfig) -> list[tuple[str, object]]:
    """Return the settings that shape the choice."""
    return [
        ("model", "/".join(Path(model).parts[-3:])),
        ("direction", options.direction or "none, without measured values"),
        ("positions", ", ".join(options.positions) or "all"),
        ("residues", options.residues),
        ("largest number of mutations", options.max_mutations),
        ("features", ", ".join(options.features)),
        ("warm start", "yes" if options.warm_start else "no"),
        ("choice", f"{options.acquisition}, {options.batch}"),
        ("shapes of the values", ", ".join(options.shapes)),
        ("exploration", options.exploration),
        ("diversity of the first round", options.diversity),
        ("seed", options.seed),
    ]
