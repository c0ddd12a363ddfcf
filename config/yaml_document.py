"""Reading a cluster file's YAML, strictly."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

_TAG_PREFIX = "tag:yaml.org,2002:"
MAX_DEPTH = 20
"""Levels of nesting; three times what a cluster file needs, far less than Python's recursion limit."""
_WANTED = "the path of a cluster file, as clusters/slurm.yaml, or of an endpoint's, as endpoints/esm2.yaml"


class _StrictLoader(yaml.SafeLoader):
    """YAML as its version 1.2 has it and editors show it, of which PyYAML's 1.1 differs.

    There ``on`` is true, ``1:30`` is 90 and ``2026-08-30`` is no text. Only numbers, true, false and null are
    other than texts here. A number with a leading zero is a text as well, since the versions disagree about
    its value; what wants a number then refuses it. Keys are texts whatever they look like, and PyYAML's
    silent choice of the last of two equal keys is an error.
    """

    yaml_implicit_resolvers = {}  # noqa: RUF012 (PyYAML's own way)
    depth = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        event = self.peek_event()
        line, tag = event.start_mark.line + 1, getattr(event, "tag", None)
        if tag:
            raise ValueError(
                f"line {line}: got the tag {tag.replace(_TAG_PREFIX, '!!')};"
                " a cluster file has none; remove it, and set a text in quotes"
            )
        if isinstance(event, yaml.AliasEvent):
            raise ValueError(
                f"line {line}: got the alias *{event.anchor}; a cluster file has none; write the value again"
            )
        if self.depth == MAX_DEPTH:
            raise ValueError(f"line {line}: got more than {MAX_DEPTH} levels; remove brackets or indentation")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        lines: dict[str, int] = {}
        made: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if not isinstance(key_node, yaml.ScalarNode):
                kind = "a list" if isinstance(key_node, yaml.SequenceNode) else "a mapping"
                raise ValueError(f"line {line}: got {kind} for a key; keys are texts; set a text")
            key = key_node.value
            if key in lines:
                raise ValueError(
                    f"line {line}: got {key if key.isprintable() else ascii(key)} again;"
                    f" it was set in line {lines[key]}; remove one of the two"
                )
            lines[key] = line
            made[key] = self.construct_object(value_node, deep=deep)
        return made


for _kind, _pattern, _first in (
    ("bool", r"true|True|TRUE|false|False|FALSE", "tTfF"),
    ("null", r"null|Null|NULL|~|", ["n", "N", "~", ""]),
    # Longer ones fit nowhere.
    ("int", r"[-+]?(0|[1-9][0-9]{0,17})", "-+0123456789"),
    ("float", r"[-+]?(\.[0-9]+|[0-9]+\.[0-9]*|[0-9]+(?=[eE]))([eE][-+]?[0-9]+)?", "-+.0123456789"),
):
    _StrictLoader.add_implicit_resolver(
        f"{_TAG_PREFIX}{_kind}", re.compile(f"^(?:{_pattern})$"), list(_first)
    )


def read_document(path: Path) -> dict[str, Any]:
    """The file's top-level mapping.

    Raises:
        ValueError: if there is no such file, or it is not a YAML mapping without repeated keys. The text
            begins with the path, and names the line where there is one.
    """
    if not path.exists():
        raise ValueError(f"{path}: no such file; set {_WANTED}")
    if not path.is_file():
        raise ValueError(f"{path}: not a file; set {_WANTED}")
    try:
        text = path.read_text(encoding="utf-8")
        # They end lines for PyYAML, and not for YAML 1.2.
        if found := re.search("[\x85\u2028\u2029]", text):
            line = text.count("\n", 0, found.start()) + 1
            raise ValueError(
                f"line {line}: got the character U+{ord(found[0]):04X}, which no one sees; remove it"
            )
        document = yaml.load(text, Loader=_StrictLoader)
    except OSError as error:
        raise ValueError(f"{path}: cannot be read: {error.strerror}; see ls -l {path}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path}: byte {error.start} is not UTF-8; save the file as UTF-8 text") from error
    except yaml.YAMLError as error:
        raise ValueError(f"{path}: {_told(error)}") from error
    except ValueError as error:
        raise ValueError(f"{path}: {error}") from error
    if document is None:
        raise ValueError(f"{path}: the file is empty; start from clusters/slurm.yaml")
    if not isinstance(document, dict):
        kind = "a list" if isinstance(document, list) else "a single value"
        raise ValueError(f"{path}: got {kind}; a cluster file is a mapping; start from clusters/slurm.yaml")
    return document


def _told(error: yaml.YAMLError) -> str:
    if isinstance(error, yaml.MarkedYAMLError) and error.problem_mark:
        mark = error.problem_mark
        return f"line {mark.line + 1}, column {mark.column + 1}: {error.problem}; correct the YAML there"
    reason = " ".join(str(error).split())
    return f"{reason}; save the file as plain text"
