"""Shapes of measured values. Few values of a campaign are high, and each shape weighs them differently.

Values as they are (``plain``) let the highest ones decide. Their square roots (``root``) and logarithms
(``log``) also use the differences between low ones.
"""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from .surrogate import Floats, Values

FLOOR = 0.01
"""Number that is added before root and logarithm, as a share of the range of the values."""
PLAIN = "plain"


class Shape(NamedTuple):
    """Increasing function of the values above the lowest one."""

    value: Callable[[Floats], Floats]
    slope: Callable[[Floats], Floats]
    """Its derivative, which scales the noise."""


SHAPES: Mapping[str, Shape] = {
    PLAIN: Shape(lambda above: above, np.ones_like),
    "root": Shape(np.sqrt, lambda above: 0.5 / np.sqrt(above)),
    "log": Shape(np.log, lambda above: 1.0 / above),
}
"""Values of ``propose.shapes``."""


def shaped(measured: Values, name: str) -> Values:
    """Return values in a shape, with their noise."""
    if name == PLAIN:
        return measured
    shape = SHAPES[name]
    values = measured.values
    lowest = values.min()
    span = (values.max() - lowest) or 1.0
    above = values - lowest + FLOOR * span
    return replace(
        measured,
        values=shape.value(above),
        stated_variances=measured.stated_variances * shape.slope(above) ** 2,
        # Replicates were pooled over all values, and their noise differs between these in the other shape.
        replicate_variance=None,
    )
