"""Unit prices in US dollars, with one dated file per region in ``config/facts/prices``.

Each price has its unit, its date and a source, which ``sources.csv`` describes. ``make prices`` updates a
region's file from the AWS Price List. Prices from other sources are used if nothing better was public.
``stand_in`` names the similar product that gave a price.
"""

import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import TypeAdapter

FOLDER = Path(__file__).with_name("prices")
COLUMNS = ("key", "usd", "unit", "as_of", "source", "stand_in")
HOURS_PER_MONTH = 730
"""Hours per month in AWS's price calculator and in the guidance's tables."""
REFERENCE_REGIONS = ("us-east-1", "us-west-2")
"""Regions with prices that replace those that a region's file lacks, in this order."""


@dataclass(frozen=True)
class Price:
    usd: float
    """Price per unit."""
    unit: str
    """``hour``, ``GB-month``, ``GB``, ..."""
    as_of: str
    """Date of the price list or page, as exactly as it is known; empty if unknown."""
    source: str
    """Key in ``sources.csv``."""
    stand_in: str
    """Similar product that gave the price; empty if the price is the item's own."""
    region: str
    """Region in which this price applies."""


PriceList = Mapping[str, Price]
"""Prices by key, such as ``hyperpod.ml.g5.8xlarge``."""


def load_prices(region: str, folder: Path = FOLDER) -> PriceList:
    """Return the known prices for a region, with or without a file of its own.

    Prices that its file lacks are those of a reference region (``Price.region``).
    """
    prices: dict[str, Price] = {}
    for place in (region, *REFERENCE_REGIONS):
        if (folder / f"{place}.csv").exists():
            prices = _read(folder, place) | prices
    return prices


def node_keys(types: Sequence[str]) -> tuple[str, ...]:
    """Return the keys of the prices of nodes, by their instance types."""
    return tuple(f"hyperpod.{name}" for name in types)


def dearest(keys: Sequence[str], prices: PriceList) -> Price | None:
    """Return the highest of the known prices; None if none is known."""
    known = [prices[key] for key in keys if key in prices]
    return max(known, key=lambda price: price.usd, default=None)


def _read(folder: Path, region: str) -> dict[str, Price]:
    with (folder / f"{region}.csv").open(newline="") as file:
        rows = {row["key"]: {**row, "region": region} for row in csv.DictReader(file)}
    return TypeAdapter(dict[str, Price]).validate_python(rows)


def sources(folder: Path = FOLDER) -> dict[str, str]:
    """Return the description of each source."""
    with (folder / "sources.csv").open(newline="") as file:
        return {row["source"]: row["description"] for row in csv.DictReader(file)}
