"""JSON document of a command, in the form that all commands of the project share (docs/json.md)."""

import json
import math
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from seqlm.training.command_line import USAGE_ERROR

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


@contextmanager
def json_error(command: str, fields: Iterable[str], *, is_wanted: bool) -> Iterator[None]:
    """Print the document of a command that a ValueError ends, and pass the error on.

    Args:
        command: name of the command.
        fields: names of the fields of its result, which are null after an error.
        is_wanted: whether to print documents.
    """
    try:
        yield
    except ValueError as error:
        if is_wanted:
            result = dict.fromkeys(fields)
            print(json_document(command, result, exit_status=USAGE_ERROR, error=str(error)))
        raise


def _with_nulls(value: Any) -> Any:
    """Return a value with null in place of numbers that JSON lacks: NaN and infinity."""
    if isinstance(value, Mapping):
        return {name: _with_nulls(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_with_nulls(inner) for inner in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
