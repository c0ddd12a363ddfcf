"""Bundled protein chains with known contacts and secondary structure (``sample/README.md``)."""

import base64
import json
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from workloads.esm2.alphabet import encode

FILE = Path(__file__).parent / "sample" / "structures.json"
RANGES = {"short": (6, 11), "medium": (12, 23), "long": (24, 1 << 30)}
"""Smallest and largest |i - j| of the classes of contacts (CASP)."""


@dataclass(frozen=True)
class Chain:
    """Chain of L residues."""

    id: str
    sequence: str
    structure: str
    """H helix, E strand, C other, ``.`` unresolved; (L,)."""
    resolved: npt.NDArray[np.bool_]
    """(L,) whether the residue has coordinates."""
    contacts: npt.NDArray[np.bool_]
    """(L, L), symmetric: C-beta atoms (C-alpha of Gly) less than 8 A apart."""

    @cached_property
    def tokens(self) -> npt.NDArray[np.uint8]:
        return encode(self.sequence)

    def pairs(self, shortest: int, longest: int = 1 << 30) -> tuple[npt.NDArray[np.int64], ...]:
        """Return i and j of the resolved pairs with ``shortest`` <= j - i <= ``longest``."""
        i, j = np.triu_indices(len(self.sequence), shortest)
        kept = self.resolved[i] & self.resolved[j] & (j - i <= longest)
        return i[kept], j[kept]


def chains(use: Literal["fit", "score"]) -> list[Chain]:
    """Return the chains to fit a regression, or those to score it."""
    return [_chain(row) for row in json.loads(FILE.read_text())[use]]


def _chain(row: dict[str, str]) -> Chain:
    length = len(row["sequence"])
    contacts = np.zeros((length, length), dtype=bool)
    upper = np.triu_indices(length, 1)
    bits = np.frombuffer(base64.b64decode(row["contacts"]), dtype=np.uint8)
    contacts[upper] = np.unpackbits(bits, count=len(upper[0])).astype(bool)
    resolved = np.array([letter == "1" for letter in row["resolved"]])
    return Chain(row["id"], row["sequence"], row["structure"], resolved, contacts | contacts.T)


def precision(chain: Chain, scores: npt.NDArray[np.floating], kind: str, share: float = 1.0) -> float:
    """Return the share of contacts among the L * ``share`` highest scores of one class of pairs.

    Args:
        chain: chain, of which L residues are resolved.
        scores: (L', L') scores of all pairs; L' includes unresolved residues.
        kind: key of ``RANGES``.
        share: 1 for the precision at L, 0.2 for that at L / 5.
    """
    i, j = chain.pairs(*RANGES[kind])
    count = max(1, int(chain.resolved.sum() * share))
    best = np.argsort(-scores[i, j], kind="stable")[:count]
    return float(chain.contacts[i, j][best].mean())
