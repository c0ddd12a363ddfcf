"""Records that cannot be used: each with its kind, its place and the reason."""

import csv
import shutil
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from seqlm.training.whole_file import writing_whole

from .policies import Decision, Kind, Reader, decision

OF_PROTEINS = "proteins"
OF_MUTATIONS = "mutations"
"""Words for the items that commands count."""
REJECTS_FILE = "rejects.csv"
"""Table of rejects in a folder of prepared data."""
COLUMNS = ("where", "kind", "reason")
"""Columns of a table of rejects."""


@dataclass(frozen=True)
class Reject:
    """Record, label or mutation that is not used."""

    kind: Kind
    where: str
    """``file:line``, or the row of a file without lines."""
    reason: str
    name: str = ""
    """Id of the record, if it is known."""
    what: str = OF_PROTEINS
    """Word for the items that it is counted among."""

    @property
    def text(self) -> str:
        """Place and reason in one line."""
        return f"{self.where}: {self.reason}"

    @property
    def cells(self) -> tuple[str, str, str]:
        """Row of the table of rejects."""
        return self.where, self.kind.value, self.reason


class RecordError(ValueError):
    """A record that cannot be used."""

    def __init__(self, kind: Kind, where: str, reason: str) -> None:
        super().__init__(kind, where, reason)
        self.reject = Reject(kind, where, reason)

    def __str__(self) -> str:
        return self.reject.text


def rejected(reader: Reader, reject: Reject) -> Reject:
    """Return a reject if the reader lists records of this kind.

    Raises:
        RecordError: (a ValueError) if the reader stops at them.
        KeyError: if the reader cannot meet them, or uses them.
    """
    if decision(reject.kind, reader) is Decision.REJECT:
        return reject
    raise stopped(reader, reject)


def stopped(reader: Reader, reject: Reject) -> RecordError:
    """Return the error with which a reader stops.

    Raises:
        KeyError: if the reader does not stop at records of this kind.
    """
    found = decision(reject.kind, reader)
    if found is not Decision.STOP:
        raise KeyError(f"the policy of {reader.name} for {reject.kind.name} is {found.value}")
    return RecordError(reject.kind, reject.where, reject.reason)


def write_rejects(path: Path, rejects: Iterable[Reject], *, has_header: bool = True) -> None:
    """Write a table of rejects; it appears whole or not at all.

    Args:
        path: file.
        rejects: rows of the table.
        has_header: whether the first line has the names of the columns.
    """
    with writing_whole(path) as new, new.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream, lineterminator="\n")
        if has_header:
            writer.writerow(COLUMNS)
        writer.writerows(reject.cells for reject in rejects)


def join_rejects(path: Path, pieces: Iterable[Path]) -> None:
    """Write a table of rejects from tables without a header; it appears whole or not at all."""
    with writing_whole(path) as new, new.open("wb") as stream:
        stream.write((",".join(COLUMNS) + "\n").encode())
        for piece in pieces:
            with piece.open("rb") as source:
                shutil.copyfileobj(source, stream)
