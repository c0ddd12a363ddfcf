"""Meaning of a mutation's name, before it is compared with a protein."""

from dataclasses import dataclass
from enum import Enum, auto
from typing import NamedTuple


class ChangeKind(Enum):
    """Fate of the residues that a change names."""

    REPLACED = auto()
    """They, and those between them, give way to the inserted ones, if any."""
    INSERTED = auto()
    """They stay, and the inserted ones come between them."""
    DUPLICATED = auto()
    """They, and those between them, are repeated after the last one."""
    SAME = auto()
    """They stay as they are."""


class Named(NamedTuple):
    """Residue of the wild type that a name states."""

    letter: str
    """One-letter code, a capital."""
    number: int
    """Position as it is written."""


@dataclass(frozen=True)
class Change:
    """Change of consecutive residues."""

    kind: ChangeKind
    text: str
    """Text of the change, for messages."""
    named: tuple[Named, ...]
    """One residue, or the first and the last of several."""
    inserted: str
    """New residues, as capital letters."""
