"""Strict YAML of run files and cluster files, and values as messages show them.

The configuration of clusters imports this module, so it needs only the standard library and PyYAML.
"""

import itertools
import json
import re
import reprlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from seqlm.training.data.small_file import read_small

MAX_DEPTH = 16
"""Largest number of nested levels, twice as many as the files need. PyYAML fails at several hundred."""
MAX_YAML_BYTES = 1 << 20
"""Size limit of a YAML file. PyYAML reads about 100 kB per second."""
MAX_JSON_BYTES = 64 << 20
"""Size limit of a JSON file that a report shows."""
MAX_SHOWN = 100
"""Length to which a value is cut in a message."""
MAX_SHOWN_VALUES = 20
"""Number of values of a list that a message shows."""
_REPR = reprlib.Repr()
_REPR.maxlevel = 3
_REPR.maxstring = MAX_SHOWN
_REPR.maxother = MAX_SHOWN


class StrictLoader(yaml.SafeLoader):
    """Loader that reads everything as text except plain numbers, true, false and null.

    YAML 1.1 reads ``on`` as true, ``010`` as 8 and ``1:30`` as 90. Here they are text, which a field for a
    number refuses. Numbers have the forms that PyYAML writes, which therefore quotes texts of these forms.
    Repeated keys, aliases and tags are errors.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML reads the attribute of the class)
    depth = 0
    """Nested levels around the current node."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{line}: got the alias *{event.anchor}; write the value itself")
        tag = getattr(event, "tag", None)
        if tag:
            raise ValueError(f"{line}: got the tag {shown(tag)}; remove it, and put text in quotes")
        if self.depth == MAX_DEPTH:
            raise ValueError(f"{line}: more than {MAX_DEPTH} levels of nesting; remove some")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        mapping: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"line {line}: got a list or mapping as a key; expected text")
            key = key_node.value
            if key in lines:
                raise ValueError(
                    f"line {line}: got {shown(key)} again after line {lines[key]}; remove one of them"
                )
            lines[key] = line
            mapping[key] = self.construct_object(value_node, deep=deep)
        return mapping


for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,17})", "-+0123456789"),  # longer numbers fit no field
    (
        "float",
        r"[-+]?(0|[1-9][0-9]*)\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+([eE][-+][0-9]+)?",
        "-+.0123456789",
    ),
):
    StrictLoader.add_implicit_resolver(
        f"tag:yaml.org,2002:{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def read_yaml_file(path: Path, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Return the one document in a file.

    Raises:
        FileNotFoundError: if there is no such file.
        ValueError: if the file cannot be read, is not YAML or is refused. The text begins with the path.
    """
    try:
        return read_yaml(read_small(path, MAX_YAML_BYTES), loader)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name a YAML file that you may read (ls -l {path})"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text"
        ) from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_yaml(text: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Return the one document in a text.

    Raises:
        ValueError: if it is not YAML or is refused, naming the line.
    """
    # These characters end lines in PyYAML, but not in YAML 1.2.
    found = re.search("[\x85\u2028\u2029]", text)
    if found:
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(
            f"line {line}: got the invisible character U+{ord(found[0]):04X}; remove it"
        )
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        parts = [getattr(error, "context", None), getattr(error, "problem", None)]
        reason = ", ".join(part for part in parts if part) or " ".join(str(error).split())
        raise ValueError(f"not YAML: {where}{reason}") from None


def shown(value: object) -> str:
    """Return a value as messages show it: escaped, and cut to ``MAX_SHOWN`` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def shown_first(values: Iterable[object]) -> str:
    """Return the first values of a list as messages show them, however many and long they are."""
    first = [shown(value) for value in itertools.islice(values, MAX_SHOWN_VALUES + 1)]
    if len(first) > MAX_SHOWN_VALUES:
        first[MAX_SHOWN_VALUES:] = ["..."]
    return ", ".join(first)


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML mapping; return an empty one if the file is missing or unreadable.

    Reports use this, because they show whatever files a run has.
    """
    try:
        if path.suffix == ".json":
            loaded = json.loads(read_small(path, MAX_JSON_BYTES))
        else:
            loaded = read_yaml(read_small(path, MAX_YAML_BYTES))
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
