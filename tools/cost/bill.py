"""Billed items, their prices and totals, and the assumed usage."""

from __future__ import annotations

import dataclasses
import difflib
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


@dataclass(frozen=True)
class Usage:
    """Of a month. Guesses for a small team: what is known better is given as name=value."""

    hours: float = HOURS_PER_MONTH
    """That the nodes exist; fewer if `make destroy` ends them over night."""
    data_gb: float = 100.0
    """In the data bucket. UniRef50 as FASTA is about 20 GB, a checkpoint of 3B about 36 GB."""
    image_gb: float = 13.0
    """Of training images in the repository; one is about this large, compressed."""
    nat_gb: float = 100.0
    """Through the NAT gateway, in either direction: packages, images of other registries, AWS's services that
    have no endpoint. S3 goes through its gateway endpoint, which is free."""
    endpoint_gb: float = 100.0
    """Through the interface endpoints, if there are any."""
    logs_gb: float = 10.0
    """Written to CloudWatch Logs, flow logs included."""
    series_per_node: float = 2000.0
    """Prometheus time series of a node."""
    scrape_seconds: float = 30.0
    """Between two samples of a series."""
    studio_hours: float = 80.0
    """That a space of Studio runs, one for each profile. Disks of spaces and what Studio keeps of its own are
    not in the bill."""
    grafana_editors: float = 1.0
    """Who sign in to Grafana, and the deployment's own account in months in which it was there; AWS bills one
    where nobody does."""


def parse_usage(assignments: Sequence[str]) -> Usage:
    """The defaults changed by ``name=value``.

    Raises:
        ValueError: naming every assignment that is wrong, and what is allowed.
    """
    names = [field.name for field in dataclasses.fields(Usage)]
    values: dict[str, float] = {}
    problems = []
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(names)}"
            problems.append(f"{assignment}: there is no {name}; {hint}")
        elif not 0 <= number < float("inf"):
            problems.append(f"{assignment}: a number from 0 on is allowed; give it as {name}=100")
        elif name == "hours" and number > HOURS_PER_MONTH:
            problems.append(f"{assignment}: a month has {HOURS_PER_MONTH} hours; give that at most")
        elif name == "scrape_seconds" and number == 0:
            problems.append(f"{assignment}: a time above 0 is allowed; give scrape_seconds=30")
        else:
            values[name] = number
    if problems:
        raise ValueError("\n".join(problems))
    return Usage(**values)
