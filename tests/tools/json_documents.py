"""Comparison of JSON documents with the table of their forms."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tools.json_forms import Command
from tools.json_output import paths_of

RunJson = Callable[..., dict[str, Any]]
"""Runs the main function of a command with arguments, and returns the document (the fixture ``run_json``)."""


def check_paths(result: dict[str, Any], command: Command) -> None:
    """Compare the paths of a result with those of the table; an empty list or null stands for all below."""
    known = {path.removesuffix("[]") for path in command.fields}
    for path in paths_of(result):
        leaf = path.removesuffix("[]")
        assert leaf in known or any(name.startswith((f"{leaf}.", f"{leaf}[]")) for name in known), (
            path
        )
