"""Table of the growth benchmark for docs/growth.md, from its lines."""

from collections.abc import Sequence

from benchmarks.case import Line
from benchmarks.growth.arithmetic import Point, Span, exponent, extrapolated
from benchmarks.growth.rows import ROWS

STAGE = "growth"
"""Value of ``stage`` in the lines."""
SEPARATOR = " / "
SIGNIFICANT = 3
WHOLE = 1e6
"""Value from which on a count is rounded, too."""
NEAR = 1.1
"""Ratio of two bounds up to which only the higher one is shown."""


def cost_text(cost: float, unit: str) -> str:
    """Return a cost with its unit, in three significant digits, or whole if it is a count."""
    return f"{_number(cost)} {unit}"


def _number(value: float) -> str:
    if value == int(value) and abs(value) < WHOLE:
        return f"{int(value):,}"
    rounded = float(f"{value:.{SIGNIFICANT}g}")
    return f"{rounded:,.0f}" if abs(rounded) >= 100 else f"{rounded:g}"


def span_text(span: Span) -> str:
    """Return an extrapolated cost, as one number if its bounds are near each other."""
    low = _number(span.low)
    high = _number(span.high)
    return high if span.high <= NEAR * span.low else f"{low} to {high}"


def row_points(lines: Sequence[Line]) -> dict[str, list[Point]]:
    """Return the measured points of one row by the unit of the cost, the smallest size first."""
    found: dict[str, list[Point]] = {}
    for line in lines:
        for unit, cost in line["figures"].items():
            found.setdefault(unit, []).append(Point(float(line["size"]), float(cost)))
    return {unit: sorted(points) for unit, points in found.items()}


def table_rows(lines: Sequence[Line]) -> list[dict[str, str]]:
    """Return a row per kind of work and unit: what was run, the exponent, and what follows for larger sizes.

    Rows of the benchmark without three lines are left out.
    """
    found: list[dict[str, str]] = []
    for row in ROWS:
        mine = [line for line in lines if line["stage"] == STAGE and line["contestant"] == row.name]
        if {int(line["size"]) for line in mine} != set(row.sizes):
            continue
        for unit, points in row_points(mine).items():
            run = [f"{_number(point.cost)} ({_number(point.size)})" for point in points]
            beyond = [
                f"{target.name} {span_text(extrapolated(points, target.size))}"
                for target in row.scale.targets
                if target.size > points[-1].size
            ]
            found.append(
                {
                    "work": row.title,
                    "size": row.scale.name,
                    "cost": unit,
                    "cost (size) that was run": SEPARATOR.join(run),
                    "exponent": f"{exponent(points):.2f}",
                    "by arithmetic": SEPARATOR.join(beyond) or "the largest size was run",
                    "unknown": row.unknown,
                }
            )
    return found
