"""Inputs with one oddity each, beside proteins that every command uses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from seqlm.proteins.reading.policies import Kind

PLAIN = "MKTAYIAKQRQISFVKSHFSRQEL"
OTHER = "MSDEKWLLNAGPCTHIVYRFQMKE"
GOOD = {"good0": "MGSSHHHHHHSSGLVPRGSHMASM", "good1": "MALWMRLLPLLALLALWGPDPAAA"}
"""Proteins without an oddity."""
ODD = "odd"
"""Id of the odd record."""
DNA = "ATGGCTAAAGTTCTGATCGGTACC" * 2
MAX_RESIDUES = 60
LONG = (PLAIN + OTHER) * 2
SHORT = PLAIN[:10]
UNUSUAL = PLAIN + "UOBZJX"
REPETITIVE = "MAMMAM" * 5
HUGE = "M" * (33 << 20)
"""A record above the limit of 32 MiB."""


@dataclass(frozen=True)
class Given:
    """Record of an input."""

    id: str
    sequence: str


@dataclass(frozen=True)
class Oddity:
    """Input with an oddity."""

    records: Sequence[Given]
    """Odd records, which come after those of ``GOOD``."""
    equals: str
    """Sequence that the record stands for if it is used. It is cleaned if it is written otherwise."""
    alone: bool = False
    """Whether the input has no other record."""
    extra_cells: Sequence[str] = ()
    """Cells that the row of the record has beside those of the header."""

    @property
    def sequences(self) -> dict[str, str]:
        """Sequences by id of all records."""
        good = {} if self.alone else GOOD
        return {**good, **{record.id: record.sequence for record in self.records}}

    @property
    def all_records(self) -> list[Given]:
        """Records in the order of the input."""
        good = [] if self.alone else [Given(name, sequence) for name, sequence in GOOD.items()]
        return [*good, *self.records]


def _odd(sequence: str, equals: str | None = None) -> Oddity:
    return Oddity([Given(ODD, sequence)], sequence if equals is None else equals)


def _named(name: str) -> Oddity:
    return Oddity([Given(name, PLAIN)], PLAIN)


ODDITIES: Mapping[Kind, Oddity] = {
    Kind.FINAL_STOP: _odd(PLAIN + "*", PLAIN),
    Kind.BLANK: _odd(f"{PLAIN[:7]} {PLAIN[7:9]}\n{PLAIN[9:]}", PLAIN),
    Kind.LOWER_CASE: _odd(PLAIN.lower(), PLAIN),
    Kind.UNUSUAL: _odd(UNUSUAL),
    Kind.INNER_STOP: _odd(f"{PLAIN[:7]}*{PLAIN[7:]}"),
    Kind.GAP: _odd(f"{PLAIN[:7]}-{PLAIN[7:]}"),
    Kind.CHARACTER: _odd(f"{PLAIN[:7]}1{PLAIN[7:]}"),
    Kind.CHAINS: _odd(f"{PLAIN}|{OTHER}", PLAIN),
    Kind.BAD_CHAINS: _odd(f"{PLAIN}||{OTHER}"),
    Kind.EMPTY: _odd(""),
    Kind.SHORT: _odd(SHORT),
    Kind.REPETITIVE: _odd(REPETITIVE),
    Kind.LONG: _odd(LONG),
    Kind.HUGE: _odd(HUGE),
    Kind.NUCLEOTIDES: _odd(DNA),
    Kind.NO_ID: _named(""),
    Kind.MARKED_ID: _named(f">{ODD}"),
    Kind.CONTROL_CHARACTER: _named("o\x07dd"),
    Kind.REPEATED_ID: Oddity([Given("good0", PLAIN)], PLAIN),
    Kind.REPEATED_SEQUENCE: Oddity([Given(ODD, GOOD["good0"])], GOOD["good0"]),
    Kind.FIELDS: Oddity([Given(ODD, PLAIN)], PLAIN, extra_cells=("extra",)),
    Kind.NO_RECORD: Oddity([], PLAIN, alone=True),
    Kind.NOTHING_USED: Oddity([Given(ODD, "MK1")], PLAIN, alone=True),
}
"""Oddities of proteins. Those of labels, mutations and maps are written by the commands that meet them."""
REFERENCES = (PLAIN, UNUSUAL, SHORT, REPETITIVE, LONG, GOOD["good0"])
"""Sequences that records are compared with."""
OF_STRUCTURES = (
    Kind.UNRESOLVED,
    Kind.MODIFIED,
    Kind.UNKNOWN_RESIDUE,
    Kind.ALTERNATIVE,
    Kind.MODEL,
    Kind.OTHER_POLYMER,
    Kind.LIGAND,
    Kind.WATER,
)
"""Oddities inside a structure, which ``structures/test_structures.py`` writes and counts."""
ONLY_TABLES = (Kind.FIELDS, Kind.NO_RECORD)
"""Oddities that FASTA cannot have. An empty FASTA file is a damaged file."""


def fasta_of(oddity: Oddity) -> str:
    """Return an input as FASTA."""
    return "".join(f">{record.id}\n{record.sequence}\n" for record in oddity.all_records)
