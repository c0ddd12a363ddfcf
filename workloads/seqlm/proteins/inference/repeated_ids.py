"""Numbers that tell records with one id apart.

If ids repeat, the results of all commands have the column ``occurrence``: 1 for the first record with an id
in the input, 2 for the second. Results of unique ids lack it. A plan keeps 8 bytes for each record.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

OCCURRENCE = "occurrence"
"""Column with the number of a record among those with its id."""


class Occurrences:
    """Numbers of the records of an input among those with their id, by part."""

    def __init__(self) -> None:
        self._hashes: list[npt.NDArray[np.int64]] = []
        """Hashes of the ids, of this process alone: two of 10 million ids have one hash in 3 of a million
        inputs, and would then be numbered as if they were one."""
        self._numbers: list[npt.NDArray[np.int32]] | None = None

    def add_part(self, ids: Sequence[str]) -> None:
        """Add the records of the next part."""
        self._hashes.append(np.fromiter(map(hash, ids), dtype=np.int64, count=len(ids)))

    def count(self) -> int:
        """Return the number of records whose id an earlier record has, once all parts are added."""
        hashes = np.concatenate([np.empty(0, np.int64), *self._hashes])
        order = np.argsort(hashes, kind="stable")  # records with one id keep their order
        is_first = np.ones(len(hashes), dtype=bool)
        is_first[1:] = hashes[order][1:] != hashes[order][:-1]
        repeated = int((~is_first).sum())
        if repeated:
            starts = np.flatnonzero(is_first)
            groups = np.cumsum(is_first) - 1
            numbers = np.empty(len(hashes), np.int32)
            numbers[order] = np.arange(len(hashes)) - starts[groups] + 1
            bounds = np.cumsum([len(part) for part in self._hashes])[:-1]
            self._numbers = np.split(numbers, bounds)
        self._hashes = []
        return repeated

    def of_part(self, number: int) -> npt.NDArray[np.int32] | None:
        """Return the numbers of the records of a part; None if no id of the input repeats."""
        return None if self._numbers is None else self._numbers[number]


@dataclass(frozen=True)
class Rows:
    """Rows of the proteins of a part, in their order. The first column is the id."""

    table: pa.Table
    per_protein: Sequence[int] | None = None
    """Number of rows of each protein; None for one each."""

    def with_occurrences(self, numbers: npt.NDArray[np.int32]) -> pa.Table:
        """Return the table with the column ``occurrence`` behind the id.

        Args:
            numbers: number of each protein among those with its id.
        """
        column = numbers if self.per_protein is None else np.repeat(numbers, self.per_protein)
        return self.table.add_column(1, OCCURRENCE, pa.array(column, pa.int32()))
