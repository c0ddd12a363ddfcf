"""Table of the poolings, which turn the rows of a protein's residues into one vector.

A pooling is computed from statistics. The device computes them for each window of a protein, and the host
joins the windows. The run file's values, its schema and ``--help``, the engine, ``seqlm.Model.embed`` and
``seqlm layers`` follow from this table.

Shapes: T tokens of a pack, S windows in it, W windows of one protein, C features. Imports no torch, because
``--help`` reads the table.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt
    from torch import Tensor

    Floats = npt.NDArray[np.floating]


@dataclass(frozen=True)
class PackedRows:
    """Rows of a pack, and the places of its windows."""

    rows: Tensor
    """Hidden states, (T, C)."""
    bounds: Tensor
    """Places in the pack of the first residue that a window answers for, and after its last one, (S, 2)."""
    cls_places: Tensor
    """Places in the pack of the windows' CLS, (S,)."""

    def reduced(self, values: Tensor, reduction: str) -> Tensor:
        """Reduce values (T, C) within the bounds, (S, C).

        The flattened bounds make segments of the windows and of the gaps between them in turn, and ``[::2]``
        keeps the windows. A segment's rows are reduced in their order, so that the result is the same in any
        pack. Sums of atomic additions would differ.
        """
        import torch

        offsets = self.bounds.flatten()
        return torch.segment_reduce(values, reduction, offsets=offsets, axis=0, unsafe=True)[::2]

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of values (T, C) within the bounds, (S, C)."""
        return self.reduced(values, "sum") / self.bounds.diff(dim=1).clamp(min=1)


@dataclass(frozen=True)
class Statistic:
    """Vector of a window, and how the vectors of a protein's windows are joined."""

    of_windows: Callable[[PackedRows], Tensor]
    """Returns a row for each window of a pack, (S, C)."""
    joined: Callable[[Floats, Floats], Floats]
    """Returns the protein's vector (C,), from the windows' vectors (W, C) and numbers of residues (W,)."""


def _weighted(values: Floats, weights: Floats) -> Floats:
    import numpy as np

    return np.average(values, axis=0, weights=weights)


MEAN = Statistic(of_windows=lambda packed: packed.mean(packed.rows), joined=_weighted)
MEAN_SQUARE = Statistic(
    of_windows=lambda packed: packed.mean(
        packed.rows.double() ** 2
    ),  # differences of squares lose digits
    joined=_weighted,
)
MAXIMUM = Statistic(
    of_windows=lambda packed: packed.reduced(packed.rows, "max"),
    joined=lambda values, weights: values.max(axis=0),
)
CLS_ROW = Statistic(
    of_windows=lambda packed: packed.rows[
        packed.cls_places.clamp(max=len(packed.rows) - 1)
    ],  # spare windows begin at the end
    joined=lambda values, weights: values[0],  # windows come in the order of the protein
)


def _deviation(mean: Floats, mean_square: Floats) -> Floats:
    """Return the population's standard deviation."""
    import numpy as np

    return np.sqrt(np.maximum(mean_square - mean**2, 0))


@dataclass(frozen=True, kw_only=True)
class Pooling:
    """Way from the rows of a protein to its embedding."""

    statistics: tuple[Statistic, ...] = ()
    """Statistics that the result is computed from. Without any, every residue keeps its row."""
    result: Callable[..., Floats] | None = None
    """Returns the vector (C,) from the joined statistics, in their order; None if there is only one."""

    def __post_init__(self) -> None:
        if len(self.statistics) > 1 and self.result is None:
            raise ValueError(
                f"a pooling of {len(self.statistics)} statistics needs a function of the result"
            )

    @property
    def per_residue(self) -> bool:
        """Whether a protein has one vector per residue, so that nothing is pooled."""
        return not self.statistics


POOLINGS: Mapping[str, Pooling] = {
    "mean": Pooling(statistics=(MEAN,)),
    "max": Pooling(statistics=(MAXIMUM,)),
    "std": Pooling(statistics=(MEAN, MEAN_SQUARE), result=_deviation),
    "cls": Pooling(statistics=(CLS_ROW,)),
    "none": Pooling(),
}
"""Values of ``inference.pooling``."""
POOLED = tuple(name for name, pooling in POOLINGS.items() if not pooling.per_residue)
"""Poolings with one vector per protein."""


def pooling_of(name: str) -> Pooling:
    """Return a pooling by its name.

    Raises:
        ValueError: if there is no such pooling.
    """
    if name not in POOLINGS:
        raise ValueError(f"pooling: got {name!r}; allowed are {', '.join(POOLINGS)}")
    return POOLINGS[name]
