"""Sequences of cells, requests and Python as token ids, cleaned as the policy table says.

FASTA has a reader of its own for speed (``data/fasta.py``), which cleans in the same way.
"""

import re

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import encode

from .policies import Kind

_NOT_A_LETTER = re.compile(r"[^A-Za-z]")
ONE_CHAIN = "one chain; give each chain a record of its own"
"""Sequences that readers take which know no chains."""
_KINDS = {
    "*": Kind.INNER_STOP,
    "-": Kind.GAP,
    ".": Kind.GAP,
    "|": Kind.CHAINS,
    ":": Kind.CHAINS,
}
"""Kinds of characters that are no residues; all others are of ``Kind.CHARACTER``."""


class SequenceError(ValueError):
    """A text that is no sequence of residues.

    Args:
        kind: kind of the mistake.
        got: content of the text instead of residues, for messages.
        allowed: allowed content.
    """

    def __init__(self, kind: Kind, got: str, allowed: str) -> None:
        super().__init__(kind, got, allowed)
        self.kind = kind
        self.got = got
        self.allowed = allowed

    def __str__(self) -> str:
        return f"{self.got} is not a residue; allowed are {self.allowed}"


def kind_of_character(character: str) -> Kind:
    """Return the kind of a record with a character that is no residue."""
    return _KINDS.get(character, Kind.CHARACTER)


def cleaned(text: str) -> str:
    """Return a sequence without blanks, line ends and the ``*`` in which translated genes end."""
    return "".join(text.split()).removesuffix("*")


def read_sequence(text: str) -> npt.NDArray[np.uint8]:
    """Return the token ids of a cleaned sequence, (L,); none for a text without residues.

    Raises:
        SequenceError: (a ValueError) if a character is no letter.
    """
    letters = cleaned(text)
    try:
        return encode(letters)
    except ValueError:
        found = _NOT_A_LETTER.search(letters)
        assert found is not None  # encode refuses nothing else
    kind = kind_of_character(found[0])
    allowed = "the letters A-Z in either case and one '*' at the end"
    if kind is Kind.CHAINS:
        allowed += f", and {ONE_CHAIN}"
    raise SequenceError(kind, f"{found[0]!a} at position {found.start() + 1}", allowed)
