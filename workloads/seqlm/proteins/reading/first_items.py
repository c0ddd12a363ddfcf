"""Early end of a command if the first items of its input are all refused for one reason.

A list of a million mutations with wrong numbers would otherwise be read to its end, only to be refused.
Reasons that leave an input useful, such as lengths and repeated ids, end no command.
"""

from .policies import Kind

FIRST_ITEMS = 10_000
"""Number of the first items that decide."""
NO_PROTEIN_KINDS = frozenset({Kind.NUCLEOTIDES, Kind.CHARACTER})
"""Kinds of records that are no proteins."""


class FirstItems:
    """Count of the first items of an input, as long as all are refused."""

    def __init__(self) -> None:
        self._left = FIRST_ITEMS
        """Number of further items that decide; 0 once that is over."""

    def are_refused(self, is_refused: bool) -> bool:
        """Add an item, and return whether it is the last of the first items and all of them are refused."""
        if self._left == 0:
            return False
        if not is_refused:
            self._left = 0
            return False
        self._left -= 1
        return self._left == 0
