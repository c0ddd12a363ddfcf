"""Contacts of structures, with which predicted contacts are compared.

Two residues are in contact if their C-beta atoms (C-alpha of glycine) are less than 8 A apart. P@L is the
share of contacts among the L most probable pairs of a range, and P@L/5 that among the L/5 most probable ones
(Rao et al. 2021, doi:10.1101/2020.12.15.422761). L counts the residues that are resolved. Pairs with another
residue count for nothing.
"""

import csv
import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from seqlm.proteins.inference.records import Protein, fetched
from seqlm.proteins.reading.rejects import Reject
from seqlm.proteins.structures.chains import StructureChain
from seqlm.proteins.structures.formats import format_of_file
from seqlm.proteins.structures.matching import (
    digest_of_files,
    read_named,
    same_chains,
    structure_in,
    with_a_match,
)
from seqlm.runs.run_file import RunFile
from seqlm.training.whole_file import write_whole

from .head import RANGES, SHARES, Chain, Matrix, precision

COLUMNS = ("id", "length", "resolved", "range", "pairs", "contacts", *SHARES)
"""Columns of the table of precisions. ``resolved``, ``pairs`` and ``contacts`` are numbers."""
SHOWN_PROTEINS = 10
"""Largest number of proteins whose precisions are printed. The table has all."""


@dataclass(frozen=True)
class RangePrecision:
    """Precision among the pairs of one range."""

    range: str
    """Key of ``RANGES``."""
    num_pairs: int
    num_contacts: int
    shares: Mapping[str, float | None]
    """Precisions by the keys of ``SHARES``; None if the range has no pair."""


class Truths:
    """Known structures of the proteins of the input.

    Args:
        config: run file.

    Raises:
        ValueError: if ``inference.structure`` cannot be read.
    """

    def __init__(self, config: RunFile) -> None:
        location = config.inference.structure
        self._named = None if location is None else read_named(location)
        self._files: list[Path] = []
        if self._named is not None:
            self._files.append(self._named.path)
        else:
            for location in config.inference.input:
                found = fetched(location, Path(config.data.downloads))
                self._files += [path for path in found if format_of_file(path) is not None]

    @property
    def digest(self) -> str | None:
        """Hash of all files with structures; None if there are none."""
        return digest_of_files(self._files) if self._files else None

    def chain_of(self, protein: Protein) -> StructureChain | None:
        """Return the chain with the sequence of a protein; None if its structure is not known."""
        if not self._files:
            return None
        structure = self._named or structure_in(Path(protein.file))
        if structure is None:
            return None
        return next(iter(same_chains(structure, protein.id, protein.tokens)), None)

    def of(self, protein: Protein) -> Chain | None:
        """Return the contacts of a protein; None if its structure is not known."""
        chain = self.chain_of(protein)
        return None if chain is None else known_contacts(chain)

    def checked(self, records: Iterable[Protein | Reject]) -> Iterable[Protein | Reject]:
        """Return records; an iteration raises ValueError if ``inference.structure`` has no chain of them."""
        return records if self._named is None else with_a_match(records, self._named)


def known_contacts(chain: StructureChain) -> Chain:
    """Return a chain of a structure as the scores of contacts take it."""
    return Chain(
        id=chain.id,
        sequence=chain.sequence,
        structure="." * len(chain.sequence),
        resolved=chain.has_beta,
        contacts=chain.contacts(),
    )


def precisions(truth: Chain, probabilities: Matrix) -> list[RangePrecision]:
    """Return the precisions of a protein for each class of ``RANGES``."""
    found = []
    for kind, bounds in RANGES.items():
        i, j = truth.pairs(*bounds)
        shares: dict[str, float | None] = {}
        for name, share in SHARES.items():
            shares[name] = precision(truth, probabilities, kind, share) if len(i) else None
        found.append(RangePrecision(kind, len(i), int(truth.contacts[i, j].sum()), shares))
    return found


def described(found: Sequence[RangePrecision]) -> str:
    """Return precisions in one line: ``P@L short 0.120, medium 0.300, long -; P@L/5 ...``."""
    parts = []
    for name in SHARES:
        values = [f"{one.range} {_number(one.shares[name])}" for one in found]
        parts.append(f"{name} {', '.join(values)}")
    return "; ".join(parts)


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"


@dataclass(frozen=True)
class Compared:
    """Protein that has been compared with its structure."""

    id: str
    truth: Chain
    found: list[RangePrecision]

    def rows(self) -> Iterator[list[object]]:
        """Yield the rows in ``COLUMNS``."""
        length = len(self.truth.sequence)
        resolved = int(self.truth.resolved.sum())
        for one in self.found:
            values = ["" if value is None else f"{value:.6f}" for value in one.shares.values()]
            yield [self.id, length, resolved, one.range, one.num_pairs, one.num_contacts, *values]


def write_precisions(path: Path, compared: Iterable[Compared]) -> list[str]:
    """Write the table of precisions; return lines for the user, with the means over proteins last."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    lines: list[str] = []
    all_found: list[list[RangePrecision]] = []
    for one in compared:
        writer.writerows(one.rows())
        all_found.append(one.found)
        if len(all_found) <= SHOWN_PROTEINS:
            lines.append(f"{one.id}: {described(one.found)}")
    write_whole(path, text.getvalue())
    if len(all_found) > 1:
        lines.append(f"mean of {len(all_found):,} proteins: {described(_means(all_found))}")
    lines.append(f"wrote {path}: precision of contacts by range, against structures")
    return lines


def _means(all_found: Sequence[Sequence[RangePrecision]]) -> list[RangePrecision]:
    """Return the mean precisions over the proteins that have pairs of the range."""
    means = []
    for of_range in zip(*all_found, strict=True):
        shares: dict[str, float | None] = {}
        for name in SHARES:
            values = [one.shares[name] for one in of_range]
            known = [value for value in values if value is not None]
            shares[name] = float(np.mean(known)) if known else None
        num_pairs = sum(one.num_pairs for one in of_range)
        num_contacts = sum(one.num_contacts for one in of_range)
        means.append(RangePrecision(of_range[0].range, num_pairs, num_contacts, shares))
    return means
