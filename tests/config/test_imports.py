"""Tools without the CDK read configuration, so ``config`` does not import it."""

from __future__ import annotations

import ast
import sys
from pathlib import Path

ALLOWED = {"config", "cryptography", "pydantic", "pydantic_core", "yaml"}
STRICT_YAML = "seqlm.training.strict_yaml"
"""Loader that run files also use; the same rule applies to it."""


def test_config_imports_only_these() -> None:
    paths = sorted(Path("config").rglob("*.py"))
    assert paths
    for path in [*paths, Path("workloads", STRICT_YAML.replace(".", "/")).with_suffix(".py")]:
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name for alias in node.names}
            elif isinstance(node, ast.ImportFrom):
                imported.add(node.module or "")
        roots = {name.split(".")[0] for name in imported - {STRICT_YAML}}
        assert roots - sys.stdlib_module_names <= ALLOWED, path
