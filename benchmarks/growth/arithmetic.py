"""Exponent of a cost, and its extrapolation to larger sizes."""

import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Point:
    """Measured cost of a size."""

    size: float
    cost: float


def exponent(points: Sequence[Point]) -> float:
    """Return the slope of log(cost) over log(size) between the two largest sizes.

    A constant part of the cost, such as imports, makes the slope of small sizes too flat. A cost of 0 has no
    logarithm. Two equal costs are flat, and a cost that begins to grow from 0 has an infinite slope.
    """
    smaller, larger = sorted(points)[-2:]
    if smaller.cost == larger.cost:
        return 0.0
    if smaller.cost <= 0 or larger.cost <= 0:
        return math.copysign(math.inf, larger.cost - smaller.cost)
    return math.log(larger.cost / smaller.cost) / math.log(larger.size / smaller.size)


@dataclass(frozen=True)
class Span:
    """Bounds of an extrapolated cost."""

    low: float
    high: float


def extrapolated(points: Sequence[Point], size: float) -> Span:
    """Return the cost expected of a size beyond the measured ones.

    The bounds are the power law and the straight line through the two largest sizes. If the cost has a
    constant part, the line is right and the power law is too low. If it grows faster than its size, the power
    law is right and the line is too low. Of a cost that does not grow, they show the noise. No bound is below
    the largest measured cost.
    """
    smaller, larger = sorted(points)[-2:]
    slope = (larger.cost - smaller.cost) / (larger.size - smaller.size)
    line = larger.cost + slope * (size - larger.size)
    power = exponent(points)
    law = larger.cost * (size / larger.size) ** power if math.isfinite(power) else line
    return Span(max(larger.cost, min(line, law)), max(larger.cost, line, law))
