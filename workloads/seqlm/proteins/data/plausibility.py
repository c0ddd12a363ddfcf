"""Records that are valid text but implausible proteins: DNA or RNA, peptides, repeats."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import TOKENS, VOCAB_SIZE

SHORT_RESIDUES = 20
"""Shorter records are peptides. They also have too few letters to be distinguished from DNA."""
LOW_ENTROPY_BITS = 2.2
"""Entropy of the composition below which a record is of low complexity: SEG's threshold (Wootton & Federhen
1993, window of 12). Proteins have 4.2 bits on average."""
NUCLEOTIDES = "ACGTUN"
NUCLEOTIDE_SHARE = 0.95
"""Share of these letters from which on a record may be DNA or RNA."""
LEAST_BASE_SHARE = 0.05
"""Each of A, C, G and T or U has this share of DNA and RNA; repeats of some of these residues do not."""
REFUSED_SHARE = 0.5
"""Share of records that look like nucleotides from which on a file is refused. Fewer are a warning."""
_OF_NUCLEOTIDES = [TOKENS.index(letter) for letter in NUCLEOTIDES]
_BASES = [[TOKENS.index(letter) for letter in letters] for letters in ("A", "C", "G", "TU")]
_AT_ONCE = 500
"""Records that are counted at once, so that the counts stay in the CPU's cache."""
_SHOWN_CHARACTERS = 60
"""Length to which ids are cut in messages."""
Tokens: TypeAlias = bytes | npt.NDArray[np.uint8]
"""Token ids of a protein."""
ALLOW = "data.allow_nucleotides=true"

_KINDS = {
    "nucleotides": "look like DNA or RNA",
    "short": f"have fewer than {SHORT_RESIDUES} residues",
    "repetitive": "are of low complexity (few kinds of residues)",
}


def is_nucleotides(protein: npt.NDArray[np.uint8]) -> bool:
    """Return whether a record, (L,) token ids, looks like DNA or RNA."""
    others = len(protein.tobytes().translate(None, bytes(_OF_NUCLEOTIDES)))
    if others > (1 - NUCLEOTIDE_SHARE) * len(protein):
        return False
    found = Implausible()
    found.look_at([""], [protein])
    return bool(found.counts["nucleotides"])


@dataclass
class Implausible:
    """Numbers of implausible records by kind, with an example of each."""

    looked_at: int = 0
    """Number of records that were checked."""
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_KINDS, 0))
    examples: dict[str, str] = field(default_factory=dict)
    """Id of the first record of each kind that was found."""

    def __add__(self, other: "Implausible") -> "Implausible":
        counts = {kind: count + other.counts[kind] for kind, count in self.counts.items()}
        return Implausible(self.looked_at + other.looked_at, counts, other.examples | self.examples)

    def look_at(self, ids: Sequence[str | bytes], proteins: Sequence[Tokens]) -> None:
        """Count the implausible records among some, given as token ids."""
        for start in range(0, len(ids), _AT_ONCE):
            self._look_at(ids[start : start + _AT_ONCE], proteins[start : start + _AT_ONCE])

    def _look_at(self, ids: Sequence[str | bytes], proteins: Sequence[Tokens]) -> None:
        lengths = np.array([len(protein) for protein in proteins])
        joined = np.frombuffer(b"".join(proteins), dtype=np.uint8).astype(np.int64)  # type: ignore[arg-type]
        owners = np.repeat(np.arange(len(lengths)), lengths) * VOCAB_SIZE
        counts = np.bincount(owners + joined, minlength=len(lengths) * VOCAB_SIZE)
        shares = counts.reshape(len(lengths), VOCAB_SIZE) / lengths[:, None]
        logarithms = np.log2(shares, where=shares > 0, out=np.zeros_like(shares))
        entropy = -(shares * logarithms).sum(axis=1)
        long = lengths >= SHORT_RESIDUES
        nucleotides = long & (shares[:, _OF_NUCLEOTIDES].sum(axis=1) >= NUCLEOTIDE_SHARE)
        for letters in _BASES:
            nucleotides &= shares[:, letters].sum(axis=1) >= LEAST_BASE_SHARE
        found = {
            "nucleotides": nucleotides,
            "short": ~long,
            "repetitive": long & ~nucleotides & (entropy < LOW_ENTROPY_BITS),
        }
        self.looked_at += len(lengths)
        for kind, mask in found.items():
            self.counts[kind] += int(mask.sum())
            if mask.any() and kind not in self.examples:
                name = ids[int(mask.argmax())]
                text = name.decode() if isinstance(name, bytes) else name
                self.examples[kind] = text[:_SHOWN_CHARACTERS]

    def refuse_nucleotides(self, where: str) -> None:
        """Raise ValueError if half of the records or more look like DNA or RNA."""
        count = self.counts["nucleotides"]
        if count and count >= REFUSED_SHARE * self.looked_at:
            raise ValueError(
                f"{where}: {count:,} of {self.looked_at:,} records look like DNA or RNA (letters "
                f"{NUCLEOTIDES} only), for example {self.examples['nucleotides']}; give their translation "
                f"into proteins, or allow them with {ALLOW}"
            )

    def warnings(self) -> list[str]:
        """Describe each kind that was found, in one line each."""
        return [
            f"warning: {self.counts[kind]:,} of {self.looked_at:,} records {text}, for example "
            f"{self.examples[kind]}"
            for kind, text in _KINDS.items()
            if self.counts[kind]
        ]
