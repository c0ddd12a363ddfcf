"""Tools without the CDK read configuration, so ``config`` does not import it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ALLOWED = {"config", "cryptography", "pydantic", "pydantic_core", "yaml"}
SHARED_MODULES = ("seqlm.training.data.small_file", "seqlm.training.strict_yaml")
"""Modules that run files also use. The same rule applies to them."""


def test_config_imports_only_these() -> None:
    paths = sorted(Path("config").rglob("*.py"))
    assert paths
    for module in SHARED_MODULES:
        paths.append(Path("workloads", *module.split(".")).with_suffix(".py"))
    for path in paths:
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        roots = {name.split(".")[0] for name in imported - set(SHARED_MODULES)}
        assert roots - sys.stdlib_module_names <= ALLOWED, path
