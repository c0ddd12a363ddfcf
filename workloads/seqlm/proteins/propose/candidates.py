"""Candidates of a batch: all variants of a space, or those that a search finds if it has too many.

The search is evolutionary. It keeps the best variants by a score, and makes new ones of them by changing or
adding a mutation, and by joining the mutations of two.
"""

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from .space import NUM_RESIDUES, Mutations, Space

MOST_ENUMERATED = 1_000_000
"""Largest number of variants that are enumerated."""
POPULATION = 3_000
"""Variants that the search keeps."""
GENERATIONS = 25
"""Largest number of rounds of the search."""
CHILDREN = 3_000
"""New variants of a round."""
PATIENCE = 4
"""Rounds without a new variant among the best ``number`` after which the search ends."""

Floats = npt.NDArray[np.float64]
Score = Callable[[Mutations], Floats]
"""Function from variants to their scores, the larger the better."""


class Candidates(NamedTuple):
    """Variants that a batch is chosen from."""

    mutations: Mutations
    is_complete: bool
    """Whether they are all variants of the space that were not measured."""


def candidates_of(
    space: Space,
    measured: Mutations,
    score: Score,
    number: int,
    seed: int,
    pool: Mutations | None = None,
) -> Candidates:
    """Return variants that were not measured.

    Args:
        space: positions and residues that may change.
        measured: measured variants.
        score: score that a search maximizes.
        number: size of the batch.
        seed: seed of the search.
        pool: the only variants that may be proposed; None for all of the space.
    """
    if pool is not None:
        return Candidates(without(space, pool, measured), True)
    if space.num_variants() <= MOST_ENUMERATED:
        return Candidates(without(space, space.all_variants(), measured), True)
    return Candidates(_search(space, measured, score, number, seed), False)


def without(space: Space, mutations: Mutations, others: Mutations) -> Mutations:
    """Return the variants that are not among others."""
    width = max(mutations.shape[1], others.shape[1])
    known = set(space.keys(others, width))
    if not known:
        return mutations
    is_new = np.array([key not in known for key in space.keys(mutations, width)], dtype=bool)
    return mutations[is_new]


def _search(space: Space, measured: Mutations, score: Score, number: int, seed: int) -> Mutations:
    """Return the best variants that an evolutionary search finds."""
    generator = np.random.default_rng(seed)
    singles = Space(space.wild, space.places, space.allowed, 1, space.first_position).all_variants()
    start = np.full((len(singles), space.max_mutations), space.no_mutation, dtype=np.int32)
    start[:, :1] = singles
    found = _new(space, np.concatenate([_inside(space, measured), start]), start[:0])
    scores = score(found)
    best: set[bytes] = set()
    quiet = 0
    for _ in range(GENERATIONS):
        order = np.argsort(-scores, kind="stable")[:POPULATION]
        found = found[order]
        scores = scores[order]
        leaders = set(space.keys(found[:number], space.max_mutations))
        quiet = quiet + 1 if leaders == best else 0
        if quiet >= PATIENCE:
            break
        best = leaders
        children = _children(space, found, generator)
        children = _new(space, children, found)
        if len(children):
            found = np.concatenate([found, children])
            scores = np.concatenate([scores, score(children)])
    return without(space, found, measured)


def _inside(space: Space, mutations: Mutations) -> Mutations:
    """Return the variants that the space allows to propose, in its width."""
    allowed = np.zeros(space.no_mutation + 1, dtype=bool)
    allowed[space.no_mutation] = True
    for index in range(len(space.places)):
        allowed[space.mutations_at(index)] = True
    if not len(mutations):
        return np.zeros((0, space.max_mutations), dtype=np.int32)
    fits = allowed[mutations].all(axis=1)
    fits &= (mutations != space.no_mutation).sum(axis=1) <= space.max_mutations
    return mutations[fits][:, : space.max_mutations]


def _new(space: Space, mutations: Mutations, others: Mutations) -> Mutations:
    """Return the variants that are not among others, each once, without the wild type."""
    wild = np.full((1, mutations.shape[1]), space.no_mutation, dtype=np.int32)
    fresh = without(space, mutations, np.concatenate([others, wild]))
    keys = space.keys(fresh, fresh.shape[1])
    first = {key: row for row, key in reversed(list(enumerate(keys)))}
    return fresh[sorted(first.values())]


def _children(space: Space, parents: Mutations, generator: np.random.Generator) -> Mutations:
    """Return new variants of parents, which are in the order of their scores."""
    changeable = [index for index, letters in enumerate(space.allowed) if letters]
    by_place = {index: space.mutations_at(index) for index in changeable}
    # Squares of uniform numbers prefer the better parents.
    firsts = (generator.random(CHILDREN) ** 2 * len(parents)).astype(int)
    seconds = (generator.random(CHILDREN) ** 2 * len(parents)).astype(int)
    kinds = generator.integers(3, size=CHILDREN)
    children = np.full((CHILDREN, space.max_mutations), space.no_mutation, dtype=np.int32)
    for child in range(CHILDREN):
        mutations = _by_place(space, parents[firsts[child]])
        if kinds[child] == 0:
            other = _by_place(space, parents[seconds[child]])
            mutations = {
                index: number
                for index, number in (mutations | other).items()
                if generator.random() < 0.5 or (index in mutations and index in other)
            }
        else:
            index = changeable[generator.integers(len(changeable))]
            if kinds[child] == 1 and mutations:
                removed = list(mutations)[generator.integers(len(mutations))]
                del mutations[removed]
            options = by_place[index]
            mutations[index] = int(options[generator.integers(len(options))])
        while len(mutations) > space.max_mutations:
            removed = list(mutations)[generator.integers(len(mutations))]
            del mutations[removed]
        numbers = [mutations[index] for index in sorted(mutations)]
        children[child, : len(numbers)] = numbers
    return children


def _by_place(space: Space, row: Mutations) -> dict[int, int]:
    """Return the mutations of a variant, (K,), by the index of their places."""
    return {
        number // NUM_RESIDUES: number for number in row.tolist() if number != space.no_mutation
    }
