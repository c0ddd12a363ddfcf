"""Counts of what a command has read, used and left out, and the line that reports them."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from .policies import POLICIES, Kind
from .rejects import Reject


@dataclass
class Counts:
    """Numbers of one kind of items, such as proteins, residues, labels or mutations."""

    what: str
    """Word for the items."""
    used: int = 0
    left_out: Counter[Kind] = field(default_factory=Counter)
    """Number of items that are left out, by kind."""
    is_listed: bool = True
    """Whether the table of rejects lists the items that are left out."""

    @property
    def read(self) -> int:
        """Number of all items."""
        return self.used + self.left_out.total()

    def clear(self) -> None:
        """Begin anew."""
        self.used = 0
        self.left_out.clear()

    def leave_out(self, rejects: Iterable[Reject]) -> None:
        """Count rejects."""
        self.left_out.update(reject.kind for reject in rejects)

    @property
    def kinds(self) -> str:
        """Numbers of the items that are left out, by kind: ``1 empty, 2 repeated ids``."""
        return ", ".join(
            POLICIES[kind].counted(self.left_out[kind]) for kind in Kind if self.left_out[kind]
        )

    def line(self, listed: Path | None = None) -> str:
        """Return the line that ends a command.

        Args:
            listed: table of rejects; None if there is none.
        """
        num_left_out = self.left_out.total()
        text = f"{self.what}: read {self.read:,}, used {self.used:,}, left out {num_left_out:,}"
        if not num_left_out:
            return text
        return f"{text} ({self.kinds})" + (
            f": {listed}" if listed is not None and self.is_listed else ""
        )
