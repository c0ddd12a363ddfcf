"""What is billed: the lines of a bill before they have prices."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Scope = Literal["nodes", "kept"]


@dataclass(frozen=True)
class Item:
    service: str
    """As the guidance's cost tables call it: Compute, Storage, Network, ..."""
    dimensions: str
    key: str
    """Of its unit price in ``config/prices``."""
    units: float
    """In a month, of the price's unit."""
    scope: Scope
    """``nodes`` ends with `make destroy`; ``kept`` is what the other stacks bill until `make teardown`."""
