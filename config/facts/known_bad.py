"""Versions of AWS's software that are known to be bad on HyperPod, with dates and sources.

Preflight refuses them, and never recommends one. Add a row when a fault is published, and leave rows in
place, because an account may still have the version.
"""

import re
from dataclasses import dataclass
from datetime import date

from config.facts.addons import VPC_CNI

Version = tuple[int, ...]


@dataclass(frozen=True)
class KnownBad:
    """Range of versions with a fault."""

    name: str
    """Add-on of EKS, or software of HyperPod's image."""
    first: Version
    last: Version
    """Last version with the fault."""
    published: date
    """Date of the report."""
    fault: str
    source: str

    @property
    def versions(self) -> str:
        """Range in messages."""
        return f"{_text(self.first)} to {_text(self.last)}"


KNOWN_BAD = (
    KnownBad(
        VPC_CNI,
        (1, 22, 1),
        (1, 22, 3),
        date(2026, 7, 2),
        "gives the primary address of a HyperPod node to pods, and the node is lost",
        "aws/amazon-vpc-cni-k8s issue 3753",
    ),
)


def parse_version(text: str) -> Version:
    """Return the numbers of a version such as v1.22.2-eksbuild.1, without its build.

    Raises:
        ValueError: if the text has no version.
    """
    found = re.match(r"v?(\d+(?:\.\d+)+)", text)
    if found is None:
        raise ValueError(f"version: got {text}; a form such as v1.22.2-eksbuild.1 is expected")
    return tuple(int(part) for part in found[1].split("."))


def known_fault(name: str, version: str) -> KnownBad | None:
    """Return the fault of a version, or None if none is known."""
    numbers = parse_version(version)
    return next(
        (row for row in KNOWN_BAD if row.name == name and row.first <= numbers <= row.last), None
    )


def _text(version: Version) -> str:
    return ".".join(map(str, version))
