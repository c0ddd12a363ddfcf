"""Numbers and other values of a run as a report shows them."""

from __future__ import annotations

import math


def as_number(value: object) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if is_number else None  # type: ignore[arg-type]


def or_nan(value: object) -> float:
    found = as_number(value)
    return math.nan if found is None else found


def formatted(value: float | None, pattern: str) -> str | None:
    return None if value is None else pattern.format(value)


def si(value: float | None) -> str | None:
    if value is None:
        return None
    for factor, prefix in ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= factor:
            return f"{value / factor:.3g}{prefix}"
    return f"{value:.3g}"


def binary_bytes(value: float | None) -> str | None:
    if value is None:
        return None
    for factor, prefix in ((1 << 40, "Ti"), (1 << 30, "Gi"), (1 << 20, "Mi"), (1 << 10, "Ki")):
        if value >= factor:
            return f"{value / factor:.3g} {prefix}B"
    return f"{value:.0f} B"


def as_text(value: object) -> str:
    """Any value as text for a table."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}" if abs(value) >= 10_000 else str(value)
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:,.0f}"
    if isinstance(value, (list, tuple)):
        return ", ".join(map(as_text, value))
    return str(value)
