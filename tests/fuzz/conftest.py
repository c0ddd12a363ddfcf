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
from collections import Counter
from collections.abc import Callable, Generator, Iterator

import pytest

NUM_TESTS = pytest.StashKey[int]()
SEED = pytest.StashKey[int]()
ROUNDS = pytest.StashKey[Counter[str]]()
"""Number of rounds of each test."""


def pytest_collection_modifyitems(session: pytest.Session, items: list[pytest.Item]) -> None:
    tests = [item for item in items if "rounds" in getattr(item, "fixturenames", ())]
    session.config.stash[NUM_TESTS] = len(tests)
    session.config.stash[ROUNDS] = Counter()


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
            request.config.stash[ROUNDS][request.node.name] += 1
            yield random.Random(seed)

    return generators


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """List the seeds that each test got, for the record of a long run."""
    counts = terminalreporter.config.stash.get(ROUNDS, Counter())
    if "FUZZ_SECONDS" in os.environ and counts:
        terminalreporter.section("rounds, each with a seed of its own")
        for name, count in counts.items():
            terminalreporter.line(f"{count:8,} {name}")
        terminalreporter.line(f"{counts.total():8,} in total")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.failed and SEED in item.stash:
        seed = item.stash[SEED]
        report.sections.append(("seed", f"{seed}; FUZZ_SEED={seed} repeats this round alone"))
    return report
