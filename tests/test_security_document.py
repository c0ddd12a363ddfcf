"""Each promise of docs/security.md names a test, and each test that it names exists."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).parents[1]
PROMISES = (REPOSITORY / "docs" / "security.md").read_text().partition("## Promises")[2]
ROWS = [line.strip("| ").split(" | ") for line in PROMISES.splitlines() if line.startswith("| ")]
NAMED = [
    (promise, file, test)
    for promise, *cells in ROWS
    for file, test in re.findall(r"`(tests/\S+\.py)::(\w+)`", " ".join(cells))
]


def test_every_promise_has_a_test() -> None:
    promises = {row[0] for row in ROWS if not row[0].startswith("**")} - {"promise"}
    assert len(promises) > 20 and promises == {promise for promise, _, _ in NAMED}


@pytest.mark.parametrize(("file", "test"), [(file, test) for _, file, test in NAMED])
def test_the_test_exists(file: str, test: str) -> None:
    tree = ast.parse((REPOSITORY / file).read_text())
    assert test in {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
