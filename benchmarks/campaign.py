"""Simulated campaigns of ``seqlm propose`` on a landscape that was measured completely.

``python -m benchmarks.campaign --landscape gb1_landscape.csv.gz`` reads the variants of four positions of
protein G domain B1 (Wu et al. 2016, doi:10.7554/eLife.16965), as the columns ``variant`` and ``fitness``.
Each campaign measures 384 of them: 96 at random, and three rounds of 96. No arm has a language model. Random
choice and greedy walks measure as many.
"""

import argparse
import json
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from seqlm.proteins.alphabet import STANDARD_RESIDUES, encode
from seqlm.proteins.config import ProposeConfig
from seqlm.proteins.mutations.edits import Variant, edits_between
from seqlm.proteins.propose.campaign import ZeroShot, next_round
from seqlm.proteins.propose.measured import Measured
from seqlm.proteins.propose.space import Mutations, Space
from seqlm.proteins.propose.surrogate import Values
from seqlm.proteins.reading.counts import Counts
from seqlm.training.data.table_rows import Problems, TableUse, read_rows
from seqlm.training.hardware import environment

PER_ROUND = 96
ROUNDS = 4
"""Rounds, of which the first one is random."""
SEEDS = 30
BEST_VARIANTS = 10
"""Number of the best variants, one of which a campaign may find."""
LANDSCAPE = TableUse(fields="variant and fitness", other_formats="nothing else")
FACTS = ("device", "python", "numpy", "git_sha")
"""Names of the environment's facts in the result."""
Floats = npt.NDArray[np.float64]
Rows = list[int]


@dataclass(frozen=True)
class Landscape:
    """Variants of a few positions with their values."""

    variants: tuple[str, ...]
    """Residues at the positions."""
    values: Floats
    space: Space
    mutations: Mutations
    """The variants as mutations of the first one."""


@dataclass(frozen=True)
class Found:
    """Result of a campaign."""

    best: tuple[float, ...]
    """Best value after each round, as a share of the largest one."""
    has_maximum: bool
    has_one_of_best: bool


Arm = Callable[[Landscape, int], list[Rows]]
"""Function from a landscape and a seed to the measured rows of each round."""


def read_landscape(path: Path) -> Landscape:
    """Read a landscape.

    Raises:
        ValueError: if the file is no table with the columns ``variant`` and ``fitness``, or has bad rows.
    """
    problems = Problems()
    variants = []
    values = []
    for _, cells in read_rows(path, ["variant", "fitness"], problems, LANDSCAPE):
        variants.append(str(cells["variant"]))
        values.append(float(str(cells["fitness"])))
    problems.raise_if_any(str(path))
    return landscape_of(variants, values)


def landscape_of(variants: Sequence[str], values: Sequence[float]) -> Landscape:
    """Return the landscape of variants of equal length."""
    wild = variants[0]
    places = tuple(range(len(wild)))
    allowed = tuple(STANDARD_RESIDUES.replace(letter, "") for letter in wild)
    space = Space(wild, places, allowed, len(wild))
    mutations = space.numbered([_variant(wild, letters) for letters in variants])
    return Landscape(tuple(variants), np.array(values), space, mutations)


def _variant(wild: str, letters: str) -> Variant:
    tokens = encode(wild)
    return Variant(letters, edits_between(tokens.tobytes(), encode(letters).tobytes()), tokens)


def _first(landscape: Landscape, seed: int) -> Rows:
    """Return the rows of the random first round, which are the same in every arm."""
    generator = np.random.default_rng(seed)
    drawn: Rows = generator.choice(len(landscape.values), PER_ROUND, replace=False).tolist()
    return drawn


def proposed(options: ProposeConfig, landscape: Landscape, seed: int) -> list[Rows]:
    """Choose each round by ``seqlm propose``."""
    rounds = [_first(landscape, seed)]
    space = landscape.space
    width = landscape.mutations.shape[1]
    keys = space.keys(landscape.mutations, width)
    row_of = {key: row for row, key in enumerate(keys)}
    zero_shot = ZeroShot(space, np.zeros((len(space.places), len(STANDARD_RESIDUES))))
    for number in range(1, ROUNDS):
        known = [row for rows in rounds for row in rows]
        measured = _measured(landscape, known)
        chosen = next_round(
            space,
            measured,
            zero_shot,
            replace(options, seed=seed * ROUNDS + number),
            _no_embedding,
            pool=landscape.mutations,
        )
        found = [one.mutations for one in chosen.proposals]
        numbers = np.full((len(found), width), space.no_mutation, dtype=np.int32)
        for row, one in enumerate(found):
            numbers[row, : len(one)] = one
        rounds.append([row_of[key] for key in space.keys(numbers, width)])
    return rounds


def _measured(landscape: Landscape, rows: Rows) -> Measured:
    """Return the state of a campaign that has measured rows once."""
    variants = [_variant(landscape.space.wild, landscape.variants[row]) for row in rows]
    values = landscape.values[rows]
    zeros = np.zeros(len(rows))
    measured = Values(values, np.ones(len(rows)), zeros)
    return Measured(tuple(variants), measured, (1,) * len(rows), 1, (), Counts("measurements"))


def _no_embedding(sequences: Sequence[str]) -> npt.NDArray[np.float32]:
    raise AssertionError("campaigns without a language model have no embeddings")


def random_choice(landscape: Landscape, seed: int) -> list[Rows]:
    """Measure variants at random."""
    generator = np.random.default_rng(seed)
    drawn = generator.choice(len(landscape.values), PER_ROUND * ROUNDS, replace=False).tolist()
    return [drawn[first : first + PER_ROUND] for first in range(0, len(drawn), PER_ROUND)]


def greedy_walks(landscape: Landscape, seed: int) -> list[Rows]:
    """Walk from random variants until all measurements are used.

    A step measures every mutation of the positions that are not fixed, and fixes the position of the best.
    """
    generator = np.random.default_rng(seed)
    row_of = {letters: row for row, letters in enumerate(landscape.variants)}
    measured: dict[int, None] = {}
    while len(measured) < PER_ROUND * ROUNDS:
        for row in _walk(landscape, row_of, int(generator.integers(len(landscape.values)))):
            measured[row] = None
    rows = list(measured)[: PER_ROUND * ROUNDS]
    return [rows[first : first + PER_ROUND] for first in range(0, len(rows), PER_ROUND)]


def _walk(landscape: Landscape, row_of: Mapping[str, int], start: int) -> Iterator[int]:
    """Yield the rows that a greedy walk measures. Variants that the landscape lacks are left out."""
    yield start
    best = start
    free = set(range(len(landscape.variants[start])))
    while free:
        here = landscape.variants[best]
        options: dict[int, int] = {}
        for place in sorted(free):
            for letter in STANDARD_RESIDUES:
                row = row_of.get(f"{here[:place]}{letter}{here[place + 1 :]}")
                if row is not None and letter != here[place]:
                    options[row] = place
                    yield row
        if not options:
            return
        top = max(options, key=lambda row: float(landscape.values[row]))
        if landscape.values[top] <= landscape.values[best]:
            return
        best = top
        free.remove(options[top])


DEFAULT = ProposeConfig(
    number=PER_ROUND, features=("similarity",), warm_start=False, direction="higher"
)
ONE_HOT = replace(DEFAULT, features=("one_hot",))
BEFORE = replace(DEFAULT, shapes=("plain", "root"), exploration=3.0)
"""First defaults of ``seqlm propose``."""
ONE_HOT_BEFORE = replace(BEFORE, features=("one_hot",))
ARMS: Mapping[str, Arm] = {
    "propose, similarity of residues": partial(proposed, DEFAULT),
    "propose, one-hot": partial(proposed, ONE_HOT),
    "propose, constant liar": partial(proposed, replace(DEFAULT, batch="liar")),
    "propose, Thompson sampling": partial(
        proposed, replace(DEFAULT, acquisition="thompson", exploration=1.0)
    ),
    "first defaults, similarity of residues": partial(proposed, BEFORE),
    "first defaults, exploration 4": partial(proposed, replace(BEFORE, exploration=4.0)),
    "first defaults, one-hot": partial(proposed, ONE_HOT_BEFORE),
    "first defaults, one-hot, constant liar": partial(
        proposed, replace(ONE_HOT_BEFORE, batch="liar")
    ),
    "first defaults, one-hot, largest bounds alone": partial(
        proposed, replace(ONE_HOT_BEFORE, batch="top")
    ),
    "first defaults, one-hot, plain values alone": partial(
        proposed, replace(ONE_HOT_BEFORE, shapes=("plain",))
    ),
    "greedy single-mutation walks": greedy_walks,
    "random choice": random_choice,
}
"""Ways to choose the measured variants."""


def simulated(landscape: Landscape, arm: Arm, seed: int) -> Found:
    """Return the result of one campaign."""
    values = landscape.values
    order = np.argsort(-values, kind="stable")
    measured: set[int] = set()
    best = []
    for rows in arm(landscape, seed):
        measured.update(rows)
        best.append(float(values[list(measured)].max() / values.max()))
    assert len(measured) == PER_ROUND * ROUNDS, "a campaign measures each variant once"
    return Found(
        tuple(best),
        int(order[0]) in measured,
        not measured.isdisjoint(order[:BEST_VARIANTS].tolist()),
    )


def summary(found: Sequence[Found]) -> dict[str, Any]:
    """Return the figures of the campaigns of one arm."""
    last = [one.best[-1] for one in found]
    error = statistics.stdev(last) / len(last) ** 0.5 if len(last) > 1 else None
    return {
        "seeds": len(found),
        "best_of_maximum": statistics.fmean(last),
        "standard_error": error,
        "best_of_maximum_by_round": [
            statistics.fmean(values) for values in zip(*(one.best for one in found), strict=True)
        ],
        "found_maximum": statistics.fmean(one.has_maximum for one in found),
        "found_one_of_best_ten": statistics.fmean(one.has_one_of_best for one in found),
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Run campaigns, print their figures and write them as JSON."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.campaign", description=__doc__)
    parser.add_argument(
        "--landscape", type=Path, required=True, help="table of variant and fitness"
    )
    parser.add_argument("--seeds", type=int, default=SEEDS, help="campaigns of each arm")
    parser.add_argument("--first-seed", type=int, default=0, help="seed of the first campaign")
    parser.add_argument(
        "--arms", nargs="+", choices=ARMS, default=list(ARMS), help="ways to choose"
    )
    parser.add_argument("--processes", type=int, default=1, help="processes, one thread each")
    parser.add_argument("--out", type=Path, help="JSON file to write")
    options = parser.parse_args(arguments)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    facts = environment(torch.device("cpu"))
    landscape = read_landscape(options.landscape)
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    figures: dict[str, Any] = {}
    for name in options.arms:
        started = time.process_time()
        one = partial(simulated, landscape, ARMS[name])
        if options.processes > 1:
            with ProcessPoolExecutor(options.processes) as pool:
                found = list(pool.map(one, seeds))
        else:
            found = [one(seed) for seed in seeds]
        figures[name] = summary(found)
        if options.processes == 1:
            figures[name]["processor_seconds_per_campaign"] = (time.process_time() - started) / len(
                seeds
            )
        print(name, json.dumps(figures[name]), flush=True)
        if options.out:
            document = {
                "landscape": options.landscape.name,
                "variants": len(landscape.values),
                "measurements": PER_ROUND * ROUNDS,
                "first_seed": options.first_seed,
                "environment": {name: facts[name] for name in FACTS},
                "arms": figures,
            }
            options.out.write_text(json.dumps(document, indent=1) + "\n")


if __name__ == "__main__":
    main()
