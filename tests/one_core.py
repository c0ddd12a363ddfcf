"""One core for what a test starts: launchers without a GPU start a process for each core, up to two."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def one_core() -> Iterator[None]:
    """Give this process, and those that it starts, a core of its own among the workers of pytest."""
    before = os.sched_getaffinity(0)
    cores = sorted(before)
    worker = int(os.environ.get("PYTEST_XDIST_WORKER", "gw0").removeprefix("gw"))
    os.sched_setaffinity(0, {cores[worker % len(cores)]})
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
