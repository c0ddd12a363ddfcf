"""Bad records of a preparation: their numbers, and the list of them, which workers write piece by piece.

Memory does not depend on the number of bad records. A worker appends the bad records of a block to a file of
its own and returns only where they are. The pieces are joined in the order of the input.
"""

import csv
import os
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from seqlm.proteins.reading.policies import POLICIES, Kind
from seqlm.proteins.reading.rejects import COLUMNS, Reject

REJECTS_FILE = "rejects.csv"
"""List of the bad records in a prepared folder."""
MAX_FEW = 10
"""Number of bad records that is always allowed."""
SHOWN_EXAMPLES = 3
"""Number of bad records of each kind that a message names."""


@dataclass(frozen=True)
class Piece:
    """Consecutive rows of the list, in the file of one process."""

    path: str
    offset: int
    num_bytes: int


@dataclass
class Rejects:
    """Bad records of a part of the input: numbers, examples, and where their rows are."""

    counts: Counter[Kind] = field(default_factory=Counter)
    examples: dict[Kind, list[Reject]] = field(default_factory=dict)
    """First bad records of each kind, at most ``SHOWN_EXAMPLES``."""
    pieces: list[Piece] = field(default_factory=list)

    @property
    def total(self) -> int:
        """Number of bad records."""
        return sum(self.counts.values())

    def count(self, bad: Reject) -> None:
        """Count a bad record."""
        self.counts[bad.kind] += 1
        self.show(bad)

    def show(self, bad: Reject) -> None:
        """Keep a bad record as an example if there are too few of its kind."""
        examples = self.examples.setdefault(bad.kind, [])
        if len(examples) < SHOWN_EXAMPLES:
            examples.append(bad)

    def add(self, other: "Rejects") -> None:
        """Add the bad records of a later part of the input."""
        self.counts += other.counts
        for found in other.examples.values():
            for bad in found:
                self.show(bad)
        self.pieces += other.pieces

    def by_kind(self) -> dict[str, int]:
        """Return the number of bad records by the name of their kind, the most frequent first."""
        return {kind.value: count for kind, count in self.counts.most_common()}

    def listed(self) -> list[str]:
        """Return a line with the number of each kind, each followed by its first examples."""
        lines: list[str] = []
        for kind, count in self.counts.most_common():
            lines.append(f"  {POLICIES[kind].counted(count)}, first:")
            lines += [f"    {bad.text}" for bad in self.examples[kind]]
        return lines

    def save(self, path: Path) -> None:
        """Write the list, in the order of the input."""
        with path.open("wb") as target:
            target.write((",".join(COLUMNS) + "\n").encode())
            for piece in self.pieces:
                _copy(piece, target)


def _copy(piece: Piece, target: IO[bytes]) -> None:
    """Append a piece of the list to a file."""
    most = 1 << 20
    left = piece.num_bytes
    with open(piece.path, "rb") as source:
        source.seek(piece.offset)
        while left:
            data = source.read(min(left, most))
            assert data, f"{piece.path} ends early"
            target.write(data)
            left -= len(data)


class RejectWriter:
    """Writer of the bad records of one task, in their order.

    Args:
        folder: folder of spilled data.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / f"rejects-{os.getpid()}.csv"
        self._rejects = Rejects()
        self._file: IO[str] | None = None
        self._write: Callable[[Iterable[str]], object] | None = None
        self._offset = 0

    def add(self, bad: Reject) -> None:
        """Count a bad record and write its row."""
        self._rejects.count(bad)
        if self._write is None:
            self._file = self._path.open("a", encoding="utf-8", newline="")
            self._offset = self._path.stat().st_size
            self._write = csv.writer(self._file, lineterminator="\n").writerow
        self._write(bad.cells)

    def close(self) -> Rejects:
        """Return the bad records that were added."""
        if self._file is not None:
            self._file.close()
            size = self._path.stat().st_size - self._offset
            self._rejects.pieces.append(Piece(str(self._path), self._offset, size))
        return self._rejects


def allowed_number(records: int, max_share: float) -> int:
    """Return the number of bad records with which a preparation continues.

    Args:
        records: number of all records, bad ones included.
        max_share: largest share of them that may be bad, above ``MAX_FEW``.
    """
    return max(MAX_FEW, int(records * max_share))


@dataclass
class Found:
    """Records that were found in files, by the path of the file."""

    records: Counter[str] = field(default_factory=Counter)
    """Number of records, bad ones included."""
    rejects: dict[str, Rejects] = field(default_factory=dict)

    @property
    def all_rejects(self) -> Rejects:
        """Bad records of all files."""
        total = Rejects()
        for rejects in self.rejects.values():
            total.add(rejects)
        return total

    def add_file(self, file: str, records: int, rejects: Rejects) -> None:
        """Add records of a file.

        Args:
            file: path of the file.
            records: number of records, bad ones included.
            rejects: bad ones.
        """
        self.records[file] += records
        if rejects.total:
            self.rejects.setdefault(file, Rejects()).add(rejects)

    def add(self, other: "Found") -> None:
        """Add the records of a later part of the input."""
        for file, records in other.records.items():
            self.add_file(file, records, other.rejects.get(file, Rejects()))


def refuse_many(rejects: Rejects, records: int, max_share: float) -> None:
    """Raise ValueError if too many records are bad.

    Args:
        rejects: bad records.
        records: number of all records, bad ones included.
        max_share: largest share of bad records, above ``MAX_FEW``.
    """
    allowed = allowed_number(records, max_share)
    if rejects.total <= allowed:
        return
    lines = "\n".join(rejects.listed())
    raise ValueError(
        f"{rejects.total:,} of {records:,} records cannot be used; allowed are {allowed:,} "
        f"({MAX_FEW}, or data.max_rejected_share={max_share:g} of all). Correct them, or allow a larger "
        f"share:\n{lines}"
    )


def refuse_unused(found: Found) -> None:
    """Raise ValueError for the first file of which no record can be used."""
    for file, records in found.records.items():
        rejects = found.rejects.get(file, Rejects())
        if rejects.total == records:
            lines = "\n".join(rejects.listed())
            raise ValueError(
                f"{file}: none of its {records:,} records can be used; correct them, or leave the file out:\n"
                f"{lines}"
            )
