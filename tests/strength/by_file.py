"""Plugin of pytest: name the test file at hand to coverage, in child processes too, and count CPU seconds."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import coverage
import pytest

_seconds: dict[str, float] = defaultdict(float)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    name = item.nodeid.partition("::")[0]
    os.environ["TEST_FILE"] = name
    if current := coverage.Coverage.current():
        current.switch_context(name)
    began = _cpu_seconds()
    result = yield
    _seconds[name] += _cpu_seconds() - began
    return result


def _cpu_seconds() -> float:
    """CPU seconds of this process and of the children that it has waited for."""
    return sum(os.times()[:4])


def pytest_sessionfinish() -> None:
    """Keep the CPU seconds of this process's test files."""
    if _seconds:
        Path(os.environ["STRENGTH_FOLDER"], f"seconds-{os.getpid()}.json").write_text(
            json.dumps(_seconds)
        )
