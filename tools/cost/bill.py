"""What is billed: items, their prices, and what they come to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from config.facts.price_list import HOURS_PER_MONTH, Price, PriceList

Scope = Literal["nodes", "kept"]


@dataclass(frozen=True)
class Line:
    item: Item
    price: Price | None
    """None where no list has one: the line is not in the totals."""

    @property
    def monthly_usd(self) -> float:
        return self.item.units * self.price.usd if self.price else 0.0


@dataclass(frozen=True)
class Bill:
    region: str
    lines: Sequence[Line]

    @property
    def monthly_usd(self) -> float:
        return sum(line.monthly_usd for line in self.lines)

    def monthly_usd_of(self, scope: Scope) -> float:
        return sum(line.monthly_usd for line in self.lines if line.item.scope == scope)

    @property
    def lacking(self) -> list[str]:
        """Keys without a price."""
        return sorted({line.item.key for line in self.lines if line.price is None})


def make_bill(items: Iterable[Item], prices: PriceList) -> Bill:
    return Bill(prices.region, [Line(item, prices.find(item.key)) for item in items])


def hourly_usd(monthly_usd: float) -> float:
    """Of a cost that is spread over the month, as the price calculator spreads it."""
    return monthly_usd / HOURS_PER_MONTH


@dataclass(frozen=True)
class Item:
    service: str
    """As the guidance's cost tables call it: Compute, Storage, Network, ..."""
    dimensions: str
    key: str
    """Key of its unit price in ``config/facts/prices``."""
    units: float
    """In a month, of the price's unit."""
    scope: Scope
    """``nodes`` ends with `make destroy`; ``kept`` is what the other stacks bill until `make teardown`."""
