"""Pictures of contacts: predictions alone, or predictions in one triangle and a structure in the other."""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure

from seqlm.proteins.reading.chains import ChainSpan

from .head import NO_LIMIT, SHORTEST, Chain, Matrix, Pairs

RED = "#c0392b"
BLUE = "#1f5fa8"
TRUTH_COLOURS = ListedColormap(["#ffffff", "#9ca3af", "#eeeeee"])
"""Colours of the structure: no contact, contact, and residues that are not resolved."""
NO_CONTACT, CONTACT, UNRESOLVED = range(3)
SIZE = (6.4, 5.6)
"""Width and height of a picture in inches."""
TICK_STEPS = (10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10_000, NO_LIMIT)
"""Positions between two ticks of a chain, the smallest that leaves ``MAX_TICKS`` or fewer."""
MAX_TICKS = 16
MAX_CHAIN_CHARACTERS = 12
"""Largest number of characters of a chain's name beside the axis."""
BORDER = "#555555"
TITLE_INCHES = 0.6
"""Additional height for the precisions and the legend."""


def top_contacts(probabilities: Matrix, chains: Sequence[ChainSpan] = ()) -> Pairs:
    """Return the L most probable pairs with |i - j| >= 6 or in different chains, the most probable first."""
    i, j = np.triu_indices(len(probabilities), 1)
    lengths = [len(span) for span in chains] or [len(probabilities)]
    chain = np.repeat(np.arange(len(lengths)), lengths)
    kept = (j - i >= SHORTEST) | (chain[i] != chain[j])
    i = i[kept]
    j = j[kept]
    best = np.argsort(-probabilities[i, j], kind="stable")[: len(probabilities)]
    return Pairs(i[best], j[best])


def prediction_figure(
    title: str, probabilities: Matrix, chains: Sequence[ChainSpan] = ()
) -> Figure:
    """Return the picture of a matrix, with dots at the most probable contacts, and borders of chains."""
    figure = Figure(figsize=SIZE, layout="constrained")
    axis = figure.subplots()
    _draw_probabilities(figure, axis, probabilities)
    pairs = top_contacts(probabilities, chains)
    label = f"top {len(pairs.i)}, |i - j| >= {SHORTEST}"
    if len(chains) > 1:
        label += " or other chain"
    axis.plot(pairs.i + 1, pairs.j + 1, "s", color=RED, markersize=1.5, label=label)
    if chains:
        _mark_chains(axis, chains)
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


def _mark_chains(axis: Axes, chains: Sequence[ChainSpan]) -> None:
    """Draw the borders between chains, and number the residues of each chain from 1."""
    total = sum(map(len, chains))
    step = next(step for step in TICK_STEPS if total / step <= MAX_TICKS)
    named_every = -(-len(chains) // MAX_TICKS)
    places: list[int] = []
    labels: list[str] = []
    end = 0
    for number, span in enumerate(chains):
        if end:
            axis.axvline(end + 0.5, color=BORDER, linewidth=0.8)
            axis.axhline(end + 0.5, color=BORDER, linewidth=0.8)
        if number % named_every == 0:
            places.append(end + 1)
            labels.append(f"{span.name[:MAX_CHAIN_CHARACTERS]} 1")
        # The last positions have no tick where the name of the next chain stands.
        for position in range(step, len(span) - step // 2 + 1, step):
            places.append(end + position)
            labels.append(str(position))
        end += len(span)
    axis.set_xticks(places, labels, rotation=90, fontsize=7)
    axis.set_yticks(places, labels, fontsize=7)
    axis.set(xlabel="chain and position", ylabel="chain and position")
