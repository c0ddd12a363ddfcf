"""Proteins longer than the model was trained for, as overlapping windows."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Window:
    """What the model reads of a protein, and what it answers for."""

    start: int
    """First residue that is read."""
    stop: int
    first: int
    """First residue that it answers for."""
    last: int
    """The one behind the last of them."""

    @property
    def num_answered(self) -> int:
        return self.last - self.first


def windows(num_residues: int, max_residues: int) -> list[Window]:
    """Windows of ``max_residues``, evenly spread and overlapping by half or more; one for a short protein.

    Two neighbours meet in the middle of their overlap, so that a residue is answered for with as much of
    the protein on either side of it as there is.
    """
    if num_residues <= max_residues:
        return [Window(0, num_residues, 0, num_residues)]
    step = max(1, max_residues // 2)
    count = -(-(num_residues - max_residues) // step) + 1
    starts = np.linspace(0, num_residues - max_residues, count).round().astype(int).tolist()
    middles = [(here + max_residues + following) // 2 for here, following in itertools.pairwise(starts)]
    edges = [0, *middles, num_residues]
    return [
        Window(start, start + max_residues, first, last)
        for start, first, last in zip(starts, edges[:-1], edges[1:], strict=True)
    ]
