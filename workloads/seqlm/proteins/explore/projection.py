"""Maps of embeddings, nearest neighbours and label transfer.

Shapes: N proteins, C features, K neighbours.
"""

from dataclasses import dataclass
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pandas as pd

Floats = npt.NDArray[np.float32]
NUM_NEIGHBORS = 10
"""Number of neighbours that the page shows for a protein."""
UMAP_SEED = 0


@dataclass(frozen=True)
class Projection:
    """Map of the proteins."""

    name: str
    points: Floats
    """Coordinates, (N, 2)."""
    axes: str
    """Description of the axes, for the reader."""


class Neighbors(NamedTuple):
    """Nearest other proteins of each protein, the nearest first."""

    rows: npt.NDArray[np.integer]
    """Rows of the neighbours, (N, K)."""
    distances: Floats
    """Cosine distances to them, (N, K)."""


@dataclass(frozen=True)
class Transfer:
    """Nearest labelled protein of the reference for each protein, except itself."""

    nearest: npt.NDArray[np.int32]
    """Row of the protein, (N,); -1 if there is none."""
    distances: Floats
    """Cosine distance to it, (N,)."""

    def sources(self, table: pd.DataFrame, label: str) -> pd.DataFrame:
        """Return the transferred label of each row, the id that it comes from, and the distance."""
        is_found = self.nearest >= 0
        rows = np.where(is_found, self.nearest, 0)
        labels = table[label].astype("string").iloc[rows].reset_index(drop=True).where(is_found)
        ids = table["id"].iloc[rows].reset_index(drop=True).where(is_found)
        return pd.DataFrame({"transferred": labels, "nearest": ids, "distance": self.distances})


def projections(vectors: Floats) -> list[Projection]:
    """Return PCA, and UMAP (McInnes et al. 2018, arXiv:1802.03426) if umap-learn is installed."""
    from sklearn.decomposition import PCA

    pca = PCA(min(2, *vectors.shape), svd_solver="covariance_eigh")
    points = pca.fit_transform(vectors)
    shares = np.nan_to_num([*pca.explained_variance_ratio_, 0.0][:2])
    if points.shape[1] < 2:
        points = np.column_stack([points, np.zeros(len(points))])
    axes = f"PCA: {shares[0]:.0%} and {shares[1]:.0%} of the variance"
    found = [Projection("PCA", points.astype(np.float32), axes)]
    if find_spec("umap") and len(vectors) > NUM_NEIGHBORS:
        from umap import UMAP

        points = UMAP(metric="cosine", random_state=UMAP_SEED).fit_transform(vectors)
        axes = "UMAP: distances between groups mean little"
        found.append(Projection("UMAP", points.astype(np.float32), axes))
    return found


def neighbors(vectors: Floats, number: int = NUM_NEIGHBORS) -> Neighbors:
    """Return the nearest other proteins of each protein; fewer than ``number`` if there are fewer others."""
    number = min(number, len(vectors) - 1)
    found = _nearest(vectors, vectors, number + 1)
    # Equal vectors may come before the protein itself, or even push it out. The last one is left out then.
    is_self = found.rows == np.arange(len(vectors))[:, None]
    is_self[~is_self.any(axis=1), -1] = True
    rows = found.rows[~is_self].reshape(-1, number)
    return Neighbors(rows, found.distances[~is_self].reshape(-1, number))


def transfer(vectors: Floats, is_reference: npt.NDArray[np.bool_]) -> Transfer:
    """Return the nearest protein of the reference for each protein.

    Labels are transferred from the nearest labelled protein as by Littmann et al. 2021
    (doi:10.1038/s41598-020-80786-0), which uses the Euclidean distance.
    """
    reference = np.flatnonzero(is_reference)
    nearest = np.full(len(vectors), -1, dtype=np.int32)
    closest = np.full(len(vectors), np.inf, dtype=np.float32)
    if len(reference):
        found = _nearest(vectors[reference], vectors, min(2, len(reference)))
        proteins = reference[found.rows]
        # A protein of the reference finds itself first, so that its second neighbour counts.
        is_self = proteins[:, 0] == np.arange(len(vectors))
        column = is_self.astype(int)
        places = np.flatnonzero(column < proteins.shape[1])
        nearest[places] = proteins[places, column[places]]
        closest[places] = found.distances[places, column[places]]
    return Transfer(nearest, closest)


def _nearest(known: Floats, asked: Floats, number: int) -> Neighbors:
    """Return the nearest of the ``known`` vectors for each of the vectors ``asked``."""
    from sklearn.neighbors import NearestNeighbors

    index = NearestNeighbors(n_neighbors=number, algorithm="brute", metric="euclidean").fit(
        _unit(known)
    )
    distances, rows = index.kneighbors(_unit(asked))
    cosine = (distances**2 / 2).astype(np.float32)  # because the vectors are unit vectors
    return Neighbors(rows, cosine)


def _unit(vectors: Floats) -> Floats:
    """Return the vectors with length 1; those of length 0 stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)
