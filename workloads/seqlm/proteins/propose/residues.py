"""Differences between residues: 1 for any two, and a distance between their properties."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import STANDARD_RESIDUES

SHARE_OF_PROPERTIES = 0.6
"""Share of the properties in the difference of two residues that is expected. The rest counts any two as
different."""
_PROPERTIES = {
    "A": (1.8, 88.6, 0.0, 0.0, 0.0),
    "C": (2.5, 108.5, 0.0, 0.0, 0.0),
    "D": (-3.5, 111.1, -1.0, 0.0, 0.0),
    "E": (-3.5, 138.4, -1.0, 0.0, 0.0),
    "F": (2.8, 189.9, 0.0, 1.0, 0.0),
    "G": (-0.4, 60.1, 0.0, 0.0, 0.0),
    "H": (-3.2, 153.2, 0.3, 0.5, 0.0),
    "I": (4.5, 166.7, 0.0, 0.0, 0.0),
    "K": (-3.9, 168.6, 1.0, 0.0, 0.0),
    "L": (3.8, 166.7, 0.0, 0.0, 0.0),
    "M": (1.9, 162.9, 0.0, 0.0, 0.0),
    "N": (-3.5, 114.1, 0.0, 0.0, 0.0),
    "P": (-1.6, 112.7, 0.0, 0.0, 1.0),
    "Q": (-3.5, 143.8, 0.0, 0.0, 0.0),
    "R": (-4.5, 173.4, 1.0, 0.0, 0.0),
    "S": (-0.8, 89.0, 0.0, 0.0, 0.0),
    "T": (-0.7, 116.1, 0.0, 0.0, 0.0),
    "V": (4.2, 140.0, 0.0, 0.0, 0.0),
    "W": (-0.9, 227.8, 0.0, 1.0, 0.0),
    "Y": (-1.3, 193.6, 0.0, 1.0, 0.0),
}
"""Hydropathy (Kyte and Doolittle 1982), volume in cubic angstrom (Zamyatnin 1972), charge at pH 7, aromatic
ring, and the ring of proline."""
_UNITS = (3.0, 42.0, 0.5, 0.5, 0.5)
"""Difference of each property that counts as 1: about a standard deviation for the first two."""

Floats = npt.NDArray[np.float64]


def _by_properties() -> Floats:
    """Return the distances of the residues by their properties, (20, 20), 1 on average."""
    vectors = np.array([_PROPERTIES[letter] for letter in STANDARD_RESIDUES]) / np.array(_UNITS)
    distances = np.sqrt(((vectors[:, None] - vectors[None, :]) ** 2).sum(axis=2))
    return np.asarray(distances / distances[~np.eye(len(distances), dtype=bool)].mean())


class Differences(NamedTuple):
    """Kinds of differences between residues, whose weights the measured values decide on."""

    tables: Floats
    """Difference of each two residues by each kind, (T, 21, 21), 1 on average. The last row is for all other
    residues, such as X. Each is a Euclidean distance, so that covariances are positive."""
    shares: Floats
    """Expected share of each kind in the weight of a position, (T,)."""


def _with_others(table: Floats) -> Floats:
    """Add the row of all other residues, which differ from every one by 1."""
    padded = np.pad(table, ((0, 1), (0, 1)), constant_values=1.0)
    padded[-1, -1] = 0.0
    return padded


_IDENTITY = 1.0 - np.eye(len(STANDARD_RESIDUES) + 1)
ONE_HOT = Differences(_IDENTITY[None], np.ones(1))
"""Any two residues differ by 1."""
SIMILARITY = Differences(
    np.stack([_IDENTITY, _with_others(_by_properties())]),
    np.array([1 - SHARE_OF_PROPERTIES, SHARE_OF_PROPERTIES]),
)
"""The same, and the distance between their properties."""
