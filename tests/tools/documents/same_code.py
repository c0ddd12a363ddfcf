"""Show that two revisions differ in language alone: ``python -m tests.tools.documents.same_code OLD NEW``.

Python files are compared as syntax trees without docstrings, string literals and names of tests. YAML, shell
and other files are compared without their comments. Markdown files are not compared.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from typing import Any

import yaml

NOT_COMPARED = (".md", ".svg", ".png", "CODEOWNERS", "LICENSE")


def main() -> int:
    old, new = sys.argv[1:]
    changed = _git("diff", "--name-only", "--no-renames", old, new).splitlines()
    different = [
        name
        for name in changed
        if not same(name, _git("show", f"{old}:{name}"), _git("show", f"{new}:{name}"))
    ]
    print("\n".join(different) or f"{len(changed)} files changed, in language alone")
    return int(bool(different))


def same(name: str, old: str, new: str) -> bool:
    """Return whether two versions of a file have the same code."""
    if name.endswith(NOT_COMPARED):
        return True
    return _code(name, old) == _code(name, new)


def _code(name: str, text: str) -> Any:
    if name.endswith(".py"):
        return _tree(text)
    if name.endswith((".yaml", ".yml")):
        return list(yaml.safe_load_all(re.sub(r"!\w+", "", text)))
    return [
        line for raw in text.splitlines() if (line := re.sub(r"(^|\s)#(?!!).*$", "", raw).rstrip())
    ]


def _tree(text: str) -> str:
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(body := getattr(node, "body", None), list):
            node.body = [item for item in body if not _is_text(item)] or [ast.Pass()]  # type: ignore[attr-defined]
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            node.value = ""
        elif isinstance(node, ast.JoinedStr):  # only the values that it inserts
            values = [value for value in node.values if isinstance(value, ast.FormattedValue)]
            node.values = sorted(values, key=lambda value: ast.dump(value.value))
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            node.name = "test"
    return ast.dump(tree)


def _is_text(item: ast.stmt) -> bool:
    return isinstance(item, ast.Expr) and isinstance(getattr(item.value, "value", None), str)


def _git(*words: str) -> str:
    done = subprocess.run(["git", *words], capture_output=True, text=True)
    return done.stdout if done.returncode == 0 else ""


if __name__ == "__main__":
    sys.exit(main())
