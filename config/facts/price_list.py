"""Unit prices in US dollars, one dated file per region in ``config/facts/prices``.

Each price has its unit, its date and a source that ``sources.csv`` describes. ``make prices`` writes a
region's file anew from the AWS Price List. What a file has from elsewhere is there because nothing better was
public; ``stand_in`` names the neighbour whose price it is.
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

FOLDER = Path(__file__).with_name("prices")
COLUMNS = ("key", "usd", "unit", "as_of", "source", "stand_in")
HOURS_PER_MONTH = 730
"""As AWS's price calculator and the guidance's tables have it."""
REFERENCE_REGIONS = ("us-east-1", "us-west-2")
"""Whose prices stand in, in this order, for those that a region's file does not have."""


@dataclass(frozen=True)
class Price:
    usd: float
    """For one unit."""
    unit: str
    """``hour``, ``GB-month``, ``GB``, ..."""
    as_of: str
    """Date of the price list or page, as exactly as it is known; empty if it is not."""
    source: str
    """Key of ``sources.csv``."""
    stand_in: str
    """Whose price it is, if not the thing's own; else empty."""
    region: str
    """Where this is the price."""


@dataclass(frozen=True)
class PriceList:
    region: str
    prices: Mapping[str, Price]
    """By key, as ``hyperpod.ml.g5.8xlarge``: the region's own first, then those of ``REFERENCE_REGIONS``."""

    def find(self, key: str) -> Price | None:
        """The price, of another region (``Price.region``) if this one's is not known; None if none is."""
        return self.prices.get(key)


def load_prices(region: str, folder: Path = FOLDER) -> PriceList:
    """What is known of a region, whether or not it has a file of its own."""
    prices: dict[str, Price] = {}
    for place in (region, *REFERENCE_REGIONS):
        if (folder / f"{place}.csv").exists():
            prices = _read(folder, place) | prices
    return PriceList(region, prices)


def _read(folder: Path, region: str) -> dict[str, Price]:
    with (folder / f"{region}.csv").open(newline="") as file:
        rows = {row["key"]: {**row, "region": region} for row in csv.DictReader(file)}
    return TypeAdapter(dict[str, Price]).validate_python(rows)


def sources(folder: Path = FOLDER) -> dict[str, str]:
    """What each source is."""
    with (folder / "sources.csv").open(newline="") as file:
        return {row["source"]: row["description"] for row in csv.DictReader(file)}
