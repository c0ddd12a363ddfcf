"""Strict YAML of run files and cluster files, and values as messages show them."""

import json
import re
import reprlib
from pathlib import Path
from typing import Any

import yaml

MAX_DEPTH = 16  # levels of nesting: twice what the files need; PyYAML's recursion fails at several hundred
MAX_SHOWN = 100  # characters of a value in a message
_REPR = reprlib.Repr()
_REPR.maxlevel, _REPR.maxstring, _REPR.maxother = 3, MAX_SHOWN, MAX_SHOWN


class StrictLoader(yaml.SafeLoader):
    """Loader that reads only plain numbers, true, false and null as anything but text.

    YAML 1.1 reads ``on`` as true, ``010`` as 8 and ``1:30`` as 90. Here they are text, which a field for a
    number refuses. The numbers are those that PyYAML writes, so that it quotes any text that looks like one.
    Repeated keys, aliases and tags are errors.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        line = f"line {event.start_mark.line + 1}"
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(f"{line}: got the alias *{event.anchor}; write the value itself")
        if tag := getattr(event, "tag", None):
            raise ValueError(f"{line}: got the tag {shown(tag)}; remove it, and put text in quotes")
        if self.depth == MAX_DEPTH:
            raise ValueError(f"{line}: more than {MAX_DEPTH} levels of nesting; remove some")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        made: dict[Any, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                raise ValueError(f"line {line}: got a list or mapping as a key; expected text")
            if first := lines.get(key := key_node.value):
                raise ValueError(
                    f"line {line}: got {shown(key)} again after line {first}; remove one of them"
                )
            lines[key] = line
            made[key] = self.construct_object(value_node, deep=deep)
        return made


for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    ("int", r"[-+]?(0|[1-9][0-9]{0,17})", "-+0123456789"),  # longer ones fit no field
    ("float", r"[-+]?(0|[1-9][0-9]*)\.[0-9]*([eE][-+][0-9]+)?|\.[0-9]+([eE][-+][0-9]+)?", "-+.0123456789"),
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
        return read_yaml(path.read_text(encoding="utf-8"), loader)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(
            f"{path} cannot be read: {error.strerror}; name a YAML file that you may read (ls -l {path})"
        ) from None
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from None
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from None


def read_yaml(text: str, loader: type[StrictLoader] = StrictLoader) -> Any:
    """Return the one document in a text.

    Raises:
        ValueError: if it is not YAML or is refused, naming the line.
    """
    # They end lines for PyYAML, and not for YAML 1.2.
    if found := re.search("[\x85\u2028\u2029]", text):
        line = text.count("\n", 0, found.start()) + 1
        raise ValueError(
            f"line {line}: got the character U+{ord(found[0]):04X}, which no one sees; remove it"
        )
    try:
        return yaml.load(text, Loader=loader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        told = filter(None, (getattr(error, "context", None), getattr(error, "problem", None)))
        reason = ", ".join(told) or " ".join(str(error).split())
        raise ValueError(f"not YAML: {where}{reason}") from None


def shown(value: object) -> str:
    """Return a value as messages show it: escaped, and at most ``MAX_SHOWN`` characters."""
    text = _REPR.repr(value)
    return text if len(text) <= MAX_SHOWN else f"{text[: MAX_SHOWN - 3]}..."


def read_mapping(path: Path) -> dict[str, Any]:
    """Read a JSON or YAML object; empty if missing or unreadable, since a report shows what there is."""
    try:
        text = path.read_text(encoding="utf-8")
        loaded = json.loads(text) if path.suffix == ".json" else read_yaml(text)
    except (OSError, ValueError, RecursionError):
        return {}
    return loaded if isinstance(loaded, dict) else {}
