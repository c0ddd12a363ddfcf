"""Pictures of contacts: predictions alone, or predictions in one triangle and a structure in the other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from .head import SHORTEST, Chain, Matrix, Pairs

RED = "#c0392b"
BLUE = "#1f5fa8"
TRUTH_COLOURS = ListedColormap(["#ffffff", "#9ca3af", "#eeeeee"])
"""Colours of the structure: no contact, contact, and residues that are not resolved."""
NO_CONTACT, CONTACT, UNRESOLVED = range(3)
SIZE = (6.4, 5.6)
"""Width and height of a picture in inches."""
TITLE_INCHES = 0.6
"""Additional height for the precisions and the legend."""


def top_contacts(probabilities: Matrix) -> Pairs:
    """Return the L most probable pairs with |i - j| >= 6, the most probable first."""
    i, j = np.triu_indices(len(probabilities), SHORTEST)
    best = np.argsort(-probabilities[i, j], kind="stable")[: len(probabilities)]
    return Pairs(i[best], j[best])


def prediction_figure(title: str, probabilities: Matrix) -> Figure:
    """Return the picture of a matrix, with dots at the most probable contacts."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axis = figure.subplots()
    _draw_probabilities(figure, axis, probabilities)
    pairs = top_contacts(probabilities)
    label = f"top {len(pairs.i)}, |i - j| >= {SHORTEST}"
    axis.plot(pairs.i + 1, pairs.j + 1, "s", color=RED, markersize=1.5, label=label)
    axis.legend(loc="upper right", fontsize=8)
    axis.set_title(title, fontsize=10, parse_math=False)
    return figure


def comparison_figure(
    title: str, probabilities: Matrix, truth: Chain, lines: Sequence[str]
) -> Figure:
    """Return the picture of a matrix and a structure.

    The upper triangle has the probabilities. The lower one has the contacts of the structure, and marks at
    the most probable pairs.

    Args:
        title: title.
        probabilities: probability of each pair, (L, L).
        truth: chain with its contacts.
        lines: lines below the title.
    """
    figure = Figure(figsize=(SIZE[0], SIZE[1] + TITLE_INCHES), layout="constrained")
    axis = figure.subplots()
    length = len(probabilities)
    is_lower = np.tri(length, dtype=bool)
    _draw_probabilities(figure, axis, np.ma.masked_array(probabilities, is_lower))
    known = np.where(truth.contacts, CONTACT, NO_CONTACT)
    known[~truth.resolved] = UNRESOLVED
    known[:, ~truth.resolved] = UNRESOLVED
    axis.imshow(
        np.ma.masked_array(known, ~is_lower),
        cmap=TRUTH_COLOURS,
        vmin=NO_CONTACT - 0.5,
        vmax=UNRESOLVED + 0.5,
        extent=_extent(length),
        interpolation="none",
    )
    axis.axline((1, 1), slope=1, color="#374151", linewidth=0.6)
    pairs = top_contacts(probabilities)
    is_known = truth.resolved[pairs.i] & truth.resolved[pairs.j]
    is_contact = truth.contacts[pairs.i, pairs.j] & is_known
    top = f"top {len(pairs.i)}, |i - j| >= {SHORTEST}"
    kinds = (
        (is_contact, "s", BLUE, 3.0, "contact"),
        (is_known & ~is_contact, "x", RED, 3.0, "no contact"),
        (~is_known, "+", "#6b7280", 3.0, "not resolved"),
    )
    for chosen, marker, colour, size, word in kinds:
        axis.plot(
            pairs.i[chosen] + 1,
            pairs.j[chosen] + 1,
            marker,
            color=colour,
            markersize=size,
            markeredgewidth=0.8,
            label=f"{word}: {int(chosen.sum())}",
        )
    figure.legend(
        *axis.get_legend_handles_labels(),
        loc="outside lower center",
        ncols=len(kinds),
        fontsize=8,
        frameon=False,
        title=f"below the diagonal: contacts of the structure (grey), and predictions: {top}",
        title_fontsize=8,
    )
    axis.set_title("\n".join([title, *lines]), fontsize=9, parse_math=False)
    return figure


def _draw_probabilities(figure: Figure, axis: Axes, probabilities: Matrix) -> None:
    """Draw the probabilities of all pairs that are not masked, with a colour bar."""
    image = axis.imshow(
        probabilities, cmap="Blues", vmin=0, vmax=1, extent=_extent(len(probabilities))
    )
    axis.set(xlabel="position", ylabel="position")
    figure.colorbar(image, label="probability of a contact (C-beta < 8 A)")


def _extent(length: int) -> tuple[float, float, float, float]:
    """Return the edges of a picture of a matrix, so that positions count from 1."""
    span = (0.5, length + 0.5)
    return (*span, *span[::-1])
