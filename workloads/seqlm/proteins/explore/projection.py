"""Maps of embeddings, nearest neighbours and label transfer.

Shapes: N proteins, C features, K neighbours.
"""

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .search import AllPairs, Found, Search, expected_pairs, search_among

Floats = npt.NDArray[np.float32]
NUM_NEIGHBORS = 10
"""Number of neighbours that the page shows for a protein."""
UMAP_SEED = 0
TIMED_PAIRS = 50_000_000
"""Number of compared pairs from which on the duration of a transfer is estimated."""
TIMED_VECTORS = 2_000
"""Number of vectors whose comparison is timed before a transfer."""
ANNOUNCED_SECONDS = 5.0
"""Shortest duration of a transfer that is printed before it."""
CHECKED_VECTORS = 200
"""Number of vectors for which an approximate search is compared with an exact one."""
CHECKED_ERROR = 1e-6
"""Difference of distances that counts as equal."""


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


def transfer(
    batches: Callable[[], Iterable[Floats]], is_reference: npt.NDArray[np.bool_]
) -> Transfer:
    """Return the nearest protein of the reference for each protein, and print how long that takes.

    Labels are transferred from the nearest labelled protein as by Littmann et al. 2021
    (doi:10.1038/s41598-020-80786-0), which uses the Euclidean distance.

    Args:
        batches: function that yields the vectors of all proteins in their order.
        is_reference: (N,) whether a protein belongs to the reference.
    """
    count = len(is_reference)
    reference = np.flatnonzero(is_reference)
    nearest = np.full(count, -1, dtype=np.int32)
    closest = np.full(count, np.inf, dtype=np.float32)
    if not len(reference):
        return Transfer(nearest, closest)
    known = _unit_rows(batches(), is_reference)
    _announce(known, count)
    search = search_among(known, count)
    number = min(2, len(reference))
    first_row = 0
    for unit in map(_unit, batches()):
        found = search.nearest(unit, number)
        if first_row == 0:
            _check(search, known, unit, found)
        proteins = np.where(found.rows < 0, -1, reference[found.rows])
        # A protein of the reference finds itself first, so that its second neighbour counts.
        is_self = proteins[:, 0] == np.arange(first_row, first_row + len(unit))
        column = is_self.astype(int)
        places = np.flatnonzero(column < number)
        nearest[first_row + places] = proteins[places, column[places]]
        closest[first_row + places] = found.distances[places, column[places]]
        first_row += len(unit)
        del unit  # or else it stays in memory while the next vectors are read
    return Transfer(nearest, closest)


def _unit_rows(batches: Iterable[Floats], is_chosen: npt.NDArray[np.bool_]) -> Floats:
    """Return the chosen vectors with length 1."""
    found = np.empty((0, 0), dtype=np.float32)
    first_row = 0
    num_found = 0
    for vectors in batches:
        if first_row == 0:
            shape = (int(is_chosen.sum()), vectors.shape[1])
            found = np.empty(shape, dtype=np.float32)  # joined parts would be in memory twice
        some = _unit(vectors[is_chosen[first_row : first_row + len(vectors)]])
        found[num_found : num_found + len(some)] = some
        first_row += len(vectors)
        num_found += len(some)
    return found


def _announce(known: Floats, count: int) -> None:
    """Print how long the transfer takes, if that is noticeable."""
    pairs = expected_pairs(len(known), count)
    if pairs < TIMED_PAIRS:
        return
    sample = known[:TIMED_VECTORS]
    AllPairs(sample[:1]).nearest(sample[:1], 1)  # imports what it needs
    started = time.perf_counter()
    AllPairs(sample).nearest(sample, 1)
    per_pair = (time.perf_counter() - started) / len(sample) ** 2
    seconds = per_pair * pairs
    if seconds >= ANNOUNCED_SECONDS:
        duration = timedelta(seconds=round(seconds))
        print(
            f"transferring labels from {len(known):,} to {count:,} proteins takes about {duration}"
        )


def _check(search: Search, known: Floats, asked: Floats, found: Found) -> None:
    """Print how often an approximate search finds the nearest vector, for the first ones.

    Args:
        search: search among the known vectors.
        known: known vectors in any order.
        asked: query vectors.
        found: neighbours that the search has found.
    """
    if isinstance(search, AllPairs):
        return
    number = min(CHECKED_VECTORS, len(asked))
    exact = AllPairs(known).nearest(asked[:number], 1)
    num_right = int((found.distances[:number, 0] <= exact.distances[:, 0] + CHECKED_ERROR).sum())
    print(
        f"the nearest proteins are searched approximately: {num_right:,} of {number:,} that were checked "
        "have the nearest one"
    )


def _nearest(known: Floats, asked: Floats, number: int) -> Neighbors:
    """Return the nearest of the ``known`` vectors for each of the vectors ``asked``."""
    found = AllPairs(_unit(known)).nearest(_unit(asked), number)
    return Neighbors(found.rows, found.distances)


def _unit(vectors: Floats) -> Floats:
    """Return the vectors with length 1; those of length 0 stay as they are."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(lengths, np.finfo(np.float32).tiny), dtype=np.float32)
