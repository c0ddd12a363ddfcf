"""What a piece of a CloudFormation template refers to."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

IN_SUB = re.compile(r"\$\{([A-Za-z0-9]+)(?:\.[^}]+)?\}")
"""``${LogicalId}`` and ``${LogicalId.Attribute}``, not ``${!Literal}`` or ``${AWS::Region}``."""


def referenced_resources(value: Any) -> set[str]:
    """Logical ids (and parameters) in Ref, Fn::GetAtt and Fn::Sub."""
    return {name for kind, name in _references(value) if kind == "resource"}


def imported_exports(value: Any) -> set[str]:
    """Names of exports in Fn::ImportValue, as far as they are literal."""
    return {name for kind, name in _references(value) if kind == "import"}


def _references(value: Any) -> Iterator[tuple[str, str]]:
    if isinstance(value, list):
        for item in value:
            yield from _references(item)
    if not isinstance(value, dict):
        return
    match value:
        case {"Ref": str(name)}:
            yield "resource", name
        case {"Fn::GetAtt": [str(name), *_]}:
            yield "resource", name
        case {"Fn::GetAtt": str(text)}:
            yield "resource", text.partition(".")[0]
        case {"Fn::ImportValue": str(name)}:
            yield "import", name
        case {"Fn::Sub": str(text) | [str(text), *_]}:
            for name in IN_SUB.findall(text):
                yield "resource", name
    for item in value.values():
        yield from _references(item)
