"""mypy follows every module of the CDK that is used: what it skips would pass any check."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[1]
CHECKED = (
    REPOSITORY / "app.py",
    *(p for d in ("constructs", "stacks") for p in (REPOSITORY / d).rglob("*.py")),
)


def imported(path: Path) -> Iterator[str]:
    """Modules of the CDK by their full names."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module == "aws_cdk":
            yield from (f"aws_cdk.{name.name}" for name in node.names if name.name.islower())
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("aws_cdk."):
            yield str(node.module)


def test_what_is_used_is_followed() -> None:
    overrides = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["tool"]["mypy"][
        "overrides"
    ]
    (followed,) = (
        found["module"] for found in overrides if found.get("follow_imports") == "normal"
    )
    used = {name for path in CHECKED for name in imported(path)}
    assert "aws_cdk.aws_ec2" in used
    assert used == {name for name in followed if name.startswith("aws_cdk.")}
