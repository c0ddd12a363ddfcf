"""Nearest vectors among many: of all pairs if they are few, and in cells of neighbouring vectors if not.

All vectors have length 1, so that their product is the cosine of the angle between them. The search by cells
is approximate. It divides the known vectors into groups, and each group into cells of about the same size
(two levels of k-means). For each vector it looks into the nearest cells of the nearest groups only, so its
cost grows little faster than the number of vectors.

Shapes: N known vectors, Q query vectors, C features, K neighbours.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]
Rows = npt.NDArray[np.int64]

MOST_PAIRS = 400_000_000
"""Largest number of pairs of vectors that are all compared: about 10 seconds with 320 features."""
CELL_VECTORS = 256
"""Number of known vectors of a cell, on average."""
LOOKED_AT_GROUPS = 8
LOOKED_AT_CELLS = 32
"""Numbers of groups, and of cells in them, that are looked into for each vector."""
MOST_PER_CELL = 16 * CELL_VECTORS
"""Number of vectors of a cell that are compared. A cell has more only if many vectors are nearly equal."""
KMEANS_PASSES = 8
KMEANS_SAMPLE = 64
"""Number of vectors per centre from which the centres are computed."""
CHUNK_NUMBERS = 1 << 22
"""Products that are in memory at once. The columns of the largest ones take twice their memory."""
COPIED_FEATURES = 32
"""Features of all known vectors that are copied at once when their rows are put in order."""
SEED = 0
"""Seed of the first centres."""


class Found(NamedTuple):
    """Nearest known vectors of each vector, the nearest first. Row -1 is none."""

    rows: Rows
    """(Q, K)"""
    distances: Floats
    """Cosine distances to them, (Q, K)."""


class Search(ABC):
    """Search for the nearest of known vectors."""

    @abstractmethod
    def nearest(self, asked: Floats, number: int) -> Found:
        """Return the ``number`` nearest known vectors of each query vector."""


def search_among(known: Floats, num_asked: int) -> Search:
    """Return a search among known vectors, exact if all pairs can be compared.

    Args:
        known: (N, C) vectors of length 1. The search keeps the array, and may put its rows in another order.
        num_asked: number of query vectors.
    """
    if len(known) * num_asked <= MOST_PAIRS:
        return AllPairs(known)
    return CellSearch(known)


def expected_pairs(num_known: int, num_asked: int) -> int:
    """Return the number of pairs of vectors that a search compares, about, its preparation included."""
    if num_known * num_asked <= MOST_PAIRS:
        return num_known * num_asked
    num_cells = -(-num_known // CELL_VECTORS)
    num_groups = max(1, round(num_cells**0.5))
    per_group = -(-num_cells // num_groups)
    divided = num_known * (num_groups + per_group)
    per_vector = num_groups + LOOKED_AT_GROUPS * per_group + LOOKED_AT_CELLS * CELL_VECTORS
    return divided + num_asked * per_vector


class AllPairs(Search):
    """Exact search, which compares all pairs.

    Args:
        known: (N, C) vectors of length 1.
    """

    def __init__(self, known: Floats) -> None:
        self._known = known

    def nearest(self, asked: Floats, number: int) -> Found:
        """Return the ``number`` nearest known vectors of each query vector."""
        from sklearn.neighbors import NearestNeighbors

        index = NearestNeighbors(n_neighbors=number, algorithm="brute", metric="euclidean")
        distances, rows = index.fit(self._known).kneighbors(asked)
        return Found(
            rows, (distances**2 / 2).astype(np.float32)
        )  # because the vectors have length 1


@dataclass(frozen=True)
class _Division:
    """Vectors divided by their nearest centre."""

    centres: Floats
    """(centres, C)"""
    order: Rows
    """(vectors,) vectors, those of the first centre first."""
    bounds: Rows
    """(centres + 1,) first vector of each centre in this order, and the number of vectors."""


class CellSearch(Search):
    """Approximate search in cells.

    Args:
        known: (N, C) vectors of length 1. The search keeps the array, and puts its rows in the order of the
            cells, because a copy would double the memory.
    """

    def __init__(self, known: Floats) -> None:
        num_cells = -(-len(known) // CELL_VECTORS)
        num_groups = max(1, round(num_cells**0.5))
        # A group of many nearly equal vectors has no more cells than its search can afford.
        most_cells = 4 * -(-num_cells // num_groups)
        groups = _divided(known, num_groups)
        self._groups = groups.centres
        centres: list[Floats] = []
        orders: list[Rows] = []
        sizes: list[Rows] = []
        for start, stop in zip(groups.bounds[:-1], groups.bounds[1:], strict=True):
            members = groups.order[start:stop]
            wanted = min(most_cells, -(-len(members) // CELL_VECTORS))
            cells = _divided(known[members], wanted)
            centres.append(cells.centres)
            orders.append(members[cells.order])
            sizes.append(np.diff(cells.bounds))
        self._cells = np.concatenate(centres)
        """(cells, C) centres of the cells, those of the first group first."""
        self._first_cell = np.cumsum([0, *map(len, centres)])
        """(groups + 1,) first cell of each group, and the number of cells."""
        self._order = np.concatenate(orders)
        """(N,) rows of the known vectors, those of the first cell first."""
        self._bounds = np.cumsum(np.concatenate([[0], *sizes]))
        """(cells + 1,) first row of each cell in this order, and the number of rows."""
        _put_in_order(known, self._order)
        self._known = known

    def nearest(self, asked: Floats, number: int) -> Found:
        """Return the ``number`` nearest known vectors of each query vector."""
        cells = self._nearest_cells(asked)
        rows = np.full((len(asked), number), -1, dtype=np.int64)
        cosines = np.full((len(asked), number), -np.inf, dtype=np.float32)
        # The vectors that look into a cell are compared with all of its vectors in one product.
        flat = cells.ravel()
        by_cell = np.argsort(flat, kind="stable")
        counts = np.bincount(flat + 1, minlength=len(self._bounds))  # the first one is of no cell
        ends = np.cumsum(counts)
        for cell in np.flatnonzero(counts[1:]).tolist():
            first = int(self._bounds[cell])
            last = min(first + MOST_PER_CELL, int(self._bounds[cell + 1]))
            of_cell = self._known[first:last]
            # The compared vectors are copied, so that their numbers count as the products do.
            most_rows = max(1, CHUNK_NUMBERS // max(of_cell.shape))
            stop = int(ends[cell + 1])
            for chunk in range(int(ends[cell]), stop, most_rows):
                some = by_cell[chunk : min(stop, chunk + most_rows)] // cells.shape[1]
                products = _products(asked[some], of_cell)
                best = _largest(products, min(number, len(of_cell)))
                candidates = np.concatenate([rows[some], self._order[first + best]], axis=1)
                values = np.concatenate(
                    [cosines[some], np.take_along_axis(products, best, 1)], axis=1
                )
                chosen = _largest(values, number)
                rows[some] = np.take_along_axis(candidates, chosen, 1)
                cosines[some] = np.take_along_axis(values, chosen, 1)
        return Found(rows, np.maximum(0, 1 - cosines))

    def _nearest_cells(self, asked: Floats) -> npt.NDArray[np.int32]:
        """Return the cells to look into for each vector, (Q, cells); -1 is none."""
        found = []
        num_groups = min(LOOKED_AT_GROUPS, len(self._groups))
        widest = int(np.diff(self._first_cell).max())
        most_rows = max(1, CHUNK_NUMBERS // max(len(self._groups), num_groups * widest))
        for chunk in range(0, len(asked), most_rows):
            some = asked[chunk : chunk + most_rows]
            groups = _largest(_products(some, self._groups), num_groups)
            values = np.full((len(some), num_groups, widest), -np.inf, dtype=np.float32)
            for group in np.unique(groups).tolist():
                rows, places = np.nonzero(groups == group)
                first = int(self._first_cell[group])
                last = int(self._first_cell[group + 1])
                values[rows, places, : last - first] = _products(
                    some[rows], self._cells[first:last]
                )
            flat = values.reshape(len(some), -1)
            best = _largest(flat, min(LOOKED_AT_CELLS, flat.shape[1]))
            cells = self._first_cell[np.take_along_axis(groups, best // widest, 1)] + best % widest
            is_cell = np.isfinite(np.take_along_axis(flat, best, 1))
            found.append(np.where(is_cell, cells, -1).astype(np.int32))
        return np.concatenate(found)


def _put_in_order(vectors: Floats, order: Rows) -> None:
    """Put the rows of an array in another order, in place."""
    for first in range(0, vectors.shape[1], COPIED_FEATURES):
        some = slice(first, first + COPIED_FEATURES)
        vectors[:, some] = vectors[order, some]


def _products(a: Floats, b: Floats) -> Floats:
    """Return the products of all pairs of vectors."""
    return a @ b.T


def _largest(values: Floats, number: int) -> Rows:
    """Return the columns of the largest values of each row, the largest first."""
    if number < values.shape[1]:
        columns = np.argpartition(values, values.shape[1] - number, axis=1)[:, -number:]
    else:
        columns = np.broadcast_to(np.arange(values.shape[1]), values.shape)
    order = np.argsort(-np.take_along_axis(values, columns, 1), axis=1, kind="stable")
    return np.take_along_axis(columns, order, 1)


def _divided(vectors: Floats, num_centres: int) -> _Division:
    """Divide vectors by k-means. Fewer centres remain if some have no vector."""
    random = np.random.default_rng(SEED)
    sample = vectors
    if len(vectors) > KMEANS_SAMPLE * num_centres:
        rows = random.choice(len(vectors), KMEANS_SAMPLE * num_centres, replace=False)
        sample = vectors[np.sort(rows)]
    centres = sample[random.choice(len(sample), num_centres, replace=False)]
    for _ in range(KMEANS_PASSES):
        nearest = _nearest_centres(sample, centres)
        order = np.argsort(nearest, kind="stable")
        used, starts = np.unique(nearest[order], return_index=True)
        sums = np.add.reduceat(sample[order], starts, axis=0)
        lengths = np.linalg.norm(sums, axis=1, keepdims=True)
        centres = centres[used]
        np.divide(sums, lengths, out=centres, where=lengths > 0)
    nearest = _nearest_centres(vectors, centres)
    order = np.argsort(nearest, kind="stable")
    used, counts = np.unique(nearest, return_counts=True)
    return _Division(centres[used], order, np.cumsum([0, *counts]))


def _nearest_centres(vectors: Floats, centres: Floats) -> Rows:
    """Return the number of the nearest centre of each vector."""
    most_rows = max(1, CHUNK_NUMBERS // len(centres))
    found = [
        _products(vectors[start : start + most_rows], centres).argmax(axis=1)
        for start in range(0, len(vectors), most_rows)
    ]
    return np.concatenate(found)
