"""Plugin of pytest: name the test file at hand to coverage, here and in child processes."""

from __future__ import annotations

import json
import os
import time
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
    began = time.monotonic()
    result = yield
    _seconds[name] += time.monotonic() - began
    return result


def pytest_sessionfinish() -> None:
    """Keep the seconds of this process's test files."""
    if _seconds:
        Path(os.environ["STRENGTH_FOLDER"], f"seconds-{os.getpid()}.json").write_text(json.dumps(_seconds))
