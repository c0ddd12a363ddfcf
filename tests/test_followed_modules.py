"""mypy follows every module that is used: what it skips would pass any check."""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).parents[1]
CDK = "aws_cdk"
UNTYPED = {"huggingface_hub", "pandas"}
"""Packages whose functions count as untyped, because following their imports takes longer than all else."""


def settings() -> dict[str, Any]:
    """Settings of mypy."""
    content = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())
    return dict(content["tool"]["mypy"])


def modules(follow_imports: str) -> list[str]:
    """Modules, or patterns of modules, that mypy follows in this way."""
    return [
        name
        for override in settings()["overrides"]
        if override.get("follow_imports") == follow_imports
        for name in override["module"]
    ]


def is_among(name: str, patterns: list[str]) -> bool:
    """Whether mypy applies a pattern to a module; ``package.*`` includes the package."""
    return any(
        f"{name}.".startswith(pattern.removesuffix("*"))
        if pattern.endswith(".*")
        else name == pattern
        for pattern in patterns
    )


def imported() -> Iterator[str]:
    """Modules that the checked files import, by their full names."""
    for checked in settings()["files"]:
        path = REPOSITORY / checked
        for file in path.rglob("*.py") if path.is_dir() else [path]:
            for node in ast.walk(ast.parse(file.read_text())):
                if isinstance(node, ast.Import):
                    yield from (name.name for name in node.names)
                elif isinstance(node, ast.ImportFrom) and node.module == CDK:
                    yield from (f"{CDK}.{name.name}" for name in node.names if name.name.islower())
                elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                    yield node.module


def test_what_is_used_is_followed() -> None:
    """The tests' stand-ins, which the growth benchmark imports, are checked with the tests."""
    skipped = modules("skip")
    followed = modules("normal")
    used = set(imported())
    assert f"{CDK}.aws_ec2" in used
    unchecked = {
        name
        for name in used
        if is_among(name, skipped) and not is_among(name, followed) and "tests." not in name
    }
    assert unchecked == UNTYPED


def test_no_module_of_the_cdk_is_followed_in_vain() -> None:
    of_cdk = {name for name in modules("normal") if name.startswith(f"{CDK}.")}
    assert of_cdk <= set(imported())
