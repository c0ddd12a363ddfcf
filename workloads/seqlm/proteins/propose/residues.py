"""Differences between residues: 1 for any two, or less for two with similar properties."""

import numpy as np
import numpy.typing as npt

from seqlm.proteins.alphabet import STANDARD_RESIDUES

SHARE_OF_PROPERTIES = 0.6
"""Share of the properties in the difference of two residues. The rest counts any two as different."""
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


ONE_HOT: Floats = 1.0 - np.eye(len(STANDARD_RESIDUES) + 1)
"""Difference of each two residues, (21, 21). The last row is for all others, such as X."""
SIMILARITY: Floats = ONE_HOT.copy()
"""The same with their properties. Both are Euclidean distances, so that their covariances are positive."""
SIMILARITY[:-1, :-1] += SHARE_OF_PROPERTIES * (_by_properties() - ONE_HOT[:-1, :-1])
