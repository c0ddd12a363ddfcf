"""Seeds of the fuzz tests.

By default each test runs its own number of fixed seeds. With ``FUZZ_SECONDS`` set, new seeds are drawn until
that time has passed; the fuzz tests of a session share it equally. A failure reports its seed, and
``FUZZ_SEED`` repeats that seed alone.
"""

from __future__ import annotations

import itertools
import os
import random
import time
from collections.abc import Callable, Generator, Iterator

import pytest

NUM_TESTS = pytest.StashKey[int]()
SEED = pytest.StashKey[int]()


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    tests = [item for item in items if "rounds" in getattr(item, "fixturenames", ())]
    session.config.stash[NUM_TESTS] = len(tests)


@pytest.fixture
def rounds(request: pytest.FixtureRequest) -> Callable[[int], Iterator[random.Random]]:
    """Generators of random numbers, one per round: ``for chance in rounds(100): ...``."""
    seconds = float(os.environ.get("FUZZ_SECONDS", 0)) / request.config.stash[NUM_TESTS]

    def seeds(num_fixed: int) -> Iterator[int]:
        if "FUZZ_SEED" in os.environ:
            yield int(os.environ["FUZZ_SEED"])
        elif not seconds:
            yield from range(num_fixed)
        else:
            end = time.monotonic() + seconds
            new = random.SystemRandom()
            yield from itertools.takewhile(
                lambda seed: time.monotonic() < end, iter(lambda: new.getrandbits(32), None)
            )

    def generators(num_fixed: int) -> Iterator[random.Random]:
        for seed in seeds(num_fixed):
            request.node.stash[SEED] = seed
            yield random.Random(seed)

    return generators


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and SEED in item.stash:
        seed = item.stash[SEED]
        report.sections.append(("seed", f"{seed}; FUZZ_SEED={seed} repeats this round alone"))
    return report
