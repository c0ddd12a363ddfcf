"""Mistake in a cluster or endpoint file, and its text."""

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from config.public_key import is_private_key

MAX_PLACE_WIDTH = 48
"""Widest column of places in a list of mistakes. A longer place moves the rest of its line to the right."""
MAX_VALUE_WIDTH = 24
"""Widest column of values in a list of mistakes."""
MAX_SHOWN_ITEMS = 10
"""Most items of a list that are shown. Of a longer list, only their number is."""

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
    rows = []
    for violation in found:
        place = _printable(f"{violation.path}:")
        got = _printable(f"{shown(violation.got)};")
        rest = _printable(f"{violation.allowed}; {violation.fix}")
        rows.append((place, got, rest))
    place_width = min(max(len(place) for place, _, _ in rows), MAX_PLACE_WIDTH)
    value_width = min(max(len(got) for _, got, _ in rows), MAX_VALUE_WIDTH)
    lines = [
        f"  {place:<{place_width}} got {got:<{value_width}} {rest}" for place, got, rest in rows
    ]
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
    if isinstance(value, list):
        if len(value) > MAX_SHOWN_ITEMS:
            return f"a list of {len(value):,} items"
        items = ["a list" if isinstance(item, list) else shown(item) for item in value]
        return f"[{', '.join(items)}]"
    if isinstance(value, str):
        return _shown_text(value)
    return str(value)


def _shown_text(text: str) -> str:
    if is_private_key(text):
        return "a private key"
    needs_quotes = _NOT_A_TEXT.fullmatch(text) or text.strip() != text or not text.isprintable()
    return json.dumps(text, ensure_ascii=False) if needs_quotes else text
