"""Mistake in a cluster or endpoint file, and its text."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from config.public_key import is_private_key

MAX_PLACE_WIDTH = 48
MAX_VALUE_WIDTH = 24
"""Widest columns of a list of mistakes; what is longer moves the rest of its line to the right."""

# Strings that YAML would not read as strings without quotes.
_NOT_A_TEXT = re.compile(r"|(0|[1-9]\d*)(\.\d*)?|\.\d+|true|false|null|~", re.IGNORECASE)


@dataclass(frozen=True)
class Violation:
    path: str
    """Place of the mistake, for example ``instance_groups[workers].ebs_gib``."""
    got: object
    """Value in the file; None for a missing or empty key."""
    allowed: str
    """Allowed values, and the reason if it is not obvious."""
    fix: str
    """Action that fixes the mistake; begins with a verb."""


def mistakes_text(file: Path, found: Iterable[Violation]) -> str:
    """Return the file's path and, in columns, one line per mistake."""
    columns = [(f"{each.path}:", f"{shown(each.got)};", f"{each.allowed}; {each.fix}") for each in found]
    rows = [tuple(map(_printable, texts)) for texts in columns]
    place_width = min(max(len(place) for place, _, _ in rows), MAX_PLACE_WIDTH)
    value_width = min(max(len(got) for _, got, _ in rows), MAX_VALUE_WIDTH)
    lines = [f"  {place:<{place_width}} got {got:<{value_width}} {rest}" for place, got, rest in rows]
    count = f"{len(rows)} mistakes" if len(rows) > 1 else "1 mistake"
    return "\n".join((f"{file}: {count}", *lines))


def _printable(text: str) -> str:
    """Escape characters that control a terminal or change the order of what it shows."""
    return "".join(char if char.isprintable() else json.dumps(char)[1:-1] for char in text)


def key_path(path: str, key: str) -> str:
    """Return the path of a key below another path; a key that would be invisible is quoted."""
    if not key or key.strip() != key or not key.isprintable():
        return f"{path}[{json.dumps(key, ensure_ascii=False)}]"
    return f"{path}.{key}" if path else key


def shown(value: object) -> str:
    """Return a value on one line of YAML; mappings and inner lists, which may be long, are only named.

    A private key is also only named, wherever it was pasted, because printed text ends up in logs.
    """
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return "a mapping"
    if isinstance(value, str) and is_private_key(value):
        return "a private key"
    if isinstance(value, list):
        return f"[{', '.join('a list' if isinstance(item, list) else shown(item) for item in value)}]"
    if isinstance(value, str) and (
        _NOT_A_TEXT.fullmatch(value) or value.strip() != value or not value.isprintable()
    ):
        return json.dumps(value, ensure_ascii=False)
    return str(value)
