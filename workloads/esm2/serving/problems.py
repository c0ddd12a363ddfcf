"""What is wrong with a request, as clients are told it: problem details of HTTP (RFC 9457)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus

MEDIA_TYPE = "application/problem+json"
MAX_TOLD = 20
"""Faults that an answer lists; it says how many there are."""
MAX_SHOWN = 60
"""Characters of a client's text that an answer repeats."""


@dataclass(frozen=True)
class Fault:
    where: str
    """Such as ``proteins[3].sequence``."""
    got: str
    allowed: str


@dataclass(eq=False)
class Problem(Exception):
    """A request that is refused."""

    status: HTTPStatus
    detail: str
    faults: Sequence[Fault] = ()
    headers: Mapping[str, str] = field(default_factory=dict)

    def body(self) -> bytes:
        told = [vars(fault) for fault in self.faults[:MAX_TOLD]]
        listed = {"num_faults": len(self.faults), "faults": told} if told else {}
        return json.dumps(
            {"title": self.status.phrase, "status": int(self.status), "detail": self.detail, **listed}
        ).encode()


def shown(value: object) -> str:
    """A client's value for a message: short, escaped, on one line."""
    if isinstance(value, str):
        cut = value[:MAX_SHOWN]
        return ascii(cut) + ("..." if len(value) > MAX_SHOWN else "")
    if value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list):
        return "a list"
    return "a number"
