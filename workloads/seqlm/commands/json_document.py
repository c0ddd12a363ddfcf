"""JSON document of a command, in the form that all commands of the project share (docs/json.md)."""

import json
import math
from collections.abc import Mapping
from typing import Any

VERSION = 1
"""Version of the forms. It rises when a field is removed or changes its meaning, and not for new fields."""


def json_document(
    command: str, result: Mapping[str, Any], *, exit_status: int = 0, error: str | None = None
) -> str:
    """Return the document as text.

    Args:
        command: name of the command.
        result: fields of the command.
        exit_status: exit status of the command.
        error: message about an error.
    """
    found = {
        "version": VERSION,
        "command": command,
        "exit_status": exit_status,
        "error": error,
        "result": _with_nulls(result),
    }
    return json.dumps(found, indent=1, allow_nan=False)


def _with_nulls(value: Any) -> Any:
    """Return a value with null in place of numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
