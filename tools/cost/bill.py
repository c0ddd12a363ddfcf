"""Billed items, their prices and totals, and the assumed usage."""

import dataclasses
import difflib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from config.facts.price_list import HOURS_PER_MONTH, Price, PriceList, dearest

Scope = Literal["nodes", "kept"]


@dataclass(frozen=True)
class Item:
    service: str
    """Service name in the guidance's cost tables: Compute, Storage, Network, ..."""
    dimensions: str
    key: str
    """Key of its unit price in ``config/facts/prices``."""
    units: float
    """Units per month, in the price's unit."""
    scope: Scope
    """``nodes`` bills until `make destroy`, ``kept`` until `make teardown` of the other stacks."""
    other_keys: tuple[str, ...] = ()
    """Keys of what may be billed in its place. The bill has the dearest."""

    @property
    def keys(self) -> tuple[str, ...]:
        return (self.key, *self.other_keys)


@dataclass(frozen=True)
class Line:
    item: Item
    price: Price | None
    """Unit price; None if it is unknown, and then the line is not in the totals."""

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
        """Keys of items without a price."""
        return sorted({key for line in self.lines if line.price is None for key in line.item.keys})


def make_bill(region: str, items: Iterable[Item], prices: PriceList) -> Bill:
    return Bill(region, [Line(item, dearest(item.keys, prices)) for item in items])


def hourly_usd(monthly_usd: float) -> float:
    """Return the hourly cost, spread over the month as in AWS's price calculator."""
    return monthly_usd / HOURS_PER_MONTH


@dataclass(frozen=True)
class Usage:
    """Usage per month. The defaults are guesses for a small team; name=value replaces them."""

    hours: float = HOURS_PER_MONTH
    """Hours that the nodes exist; lower if `make destroy` deletes them overnight."""
    data_gb: float = 100.0
    """Data in the data bucket. UniRef50 as FASTA is about 20 GB, a checkpoint of 3B about 36 GB."""
    image_gb: float = 13.0
    """Training images in the repository; the default is about one compressed image."""
    nat_gb: float = 100.0
    """Traffic through the NAT gateway in both directions: packages, images from other registries, AWS
    services without an endpoint. Traffic to S3 uses its gateway endpoint, which is free."""
    endpoint_gb: float = 100.0
    """Traffic through interface endpoints, if there are any."""
    logs_gb: float = 10.0
    """Logs written to CloudWatch Logs, including flow logs."""
    series_per_node: float = 2000.0
    """Prometheus time series per node."""
    scrape_seconds: float = 30.0
    """Seconds between two samples of a series."""
    studio_hours: float = 80.0
    """Hours that a Studio space runs, with one space per profile. The bill does not include the disks of
    spaces and Studio's own storage."""
    grafana_editors: float = 1.0
    """Editors who sign in to Grafana, including the deployment's own account in months with a deployment. AWS
    bills one editor even if no one signs in."""


def parse_usage(assignments: Sequence[str]) -> Usage:
    """Return the default usage with the changes of ``name=value``.

    Raises:
        ValueError: listing every wrong assignment and the allowed values.
    """
    problems = list(_problems(assignments))
    if problems:
        raise ValueError("\n".join(problems))
    pairs = [assignment.partition("=") for assignment in assignments]
    return Usage(**{name: float(number) for name, _, number in pairs})


def _problems(assignments: Sequence[str]) -> Iterator[str]:
    """Yield a message per wrong assignment."""
    names = [field.name for field in dataclasses.fields(Usage)]
    for assignment in assignments:
        name, _, text = assignment.partition("=")
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if name not in names:
            near = difflib.get_close_matches(name, names, n=1)
            hint = f"did you mean {near[0]}?" if near else f"allowed are {', '.join(names)}"
            yield f"{assignment}: {name} does not exist; {hint}"
        elif not 0 <= number < float("inf"):
            yield f"{assignment}: a number of 0 or more is allowed; set it as {name}=100"
        elif name == "hours" and number > HOURS_PER_MONTH:
            yield f"{assignment}: a month has {HOURS_PER_MONTH} hours; set that or less"
        elif name == "scrape_seconds" and number == 0:
            yield f"{assignment}: a number above 0 is allowed; set scrape_seconds=30"
