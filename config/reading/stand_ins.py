"""Stand-ins for wrong and missing values, so that the rules can check the rest of a file.

A stand-in may violate a rule. Therefore each place has several different stand-ins, and the rules check the
file with each of them. A violation that does not appear every time in the same words is due to a stand-in.
"""

import copy
from typing import Any

from pydantic import ValidationError

from config.cluster_kinds import Kind
from config.reading.places import Location, below, in_document, key_meant, network_meant, schema_at

StandIns = dict[Location, list[Any]]
"""Stand-ins by location in the document."""

_NUMBERS = (1, 10**6)
"""Stand-ins for integers that the model does not constrain."""
_TEXTS = ("unknown-1", "unknown-2")
"""Stand-ins for strings that the model does not constrain."""


def repaired(
    error: ValidationError, document: dict[str, Any], kind: Kind
) -> tuple[dict[str, Any], StandIns]:
    """Return a copy of the document with the first stand-in for each value in the error, and all stand-ins.

    Unknown keys are removed. The value of a mistyped key moves to the key that was meant. A network without
    its kind gets the kind that its keys belong to, so that the next round checks its content.
    """
    rest = copy.deepcopy(document)
    stand_ins = StandIns()
    all_details = error.errors(include_url=False)
    for details in all_details:
        if details["type"] == "extra_forbidden":
            *parents, key = in_document(details)
            holder = below(rest, parents)
            value = holder.pop(key)
            meant = key_meant(details, kind)
            if meant:
                holder.setdefault(meant, value)
    for details in all_details:
        place = in_document(details)
        location = details["loc"]
        if details["type"] == "extra_forbidden":
            continue
        if details["type"] == "missing" and place[-1] in below(rest, place[:-1]):
            continue  # The key was mistyped, and its value has moved here.
        if details["type"].startswith("union_tag"):
            vpc = network_meant(rest["network"])
            if vpc:
                rest["network"]["vpc"] = vpc
                continue
            place = location
        stand_ins[place] = _values(schema_at(location, kind))
    return with_stand_ins(rest, stand_ins, 0), stand_ins


def with_stand_ins(document: dict[str, Any], stand_ins: StandIns, index: int) -> dict[str, Any]:
    """Return a copy with stand-in number ``index`` at each place; shorter lists repeat from their start."""
    made = copy.deepcopy(document)
    for (*parents, key), values in stand_ins.items():
        below(made, parents)[key] = values[index % len(values)]
    return made


def _values(node: dict[str, Any]) -> list[Any]:
    """Return values that the schema of a place accepts."""
    if "const" in node:
        return [node["const"]]
    if "enum" in node:
        return list(node["enum"])
    if "anyOf" in node or "oneOf" in node:
        return [value for option in node.get("anyOf") or node["oneOf"] for value in _values(option)]
    match node["type"]:
        case "null":
            return [None]
        case "boolean":
            return [False, True]
        case "integer":
            return [node.get("minimum", _NUMBERS[0]), node.get("maximum", _NUMBERS[1])]
        case "string":
            return list(node.get("examples", _TEXTS))
        case "array":
            return [[value] for value in _values(node["items"])]
        case "object":
            properties = node.get("properties", {})
            values = {name: _values(value) for name, value in properties.items()}
            required = {
                name: values[name]
                for name, value in properties.items()
                if name in node.get("required", ()) or "const" in value  # the kind of a network
            }
            return _objects(values) + _objects(required)
    raise ValueError(f"no stand-ins for fields of the type {node['type']}")


def _objects(values: dict[str, list[Any]]) -> list[dict[str, Any]]:
    """Return as many objects as the longest list has values; shorter lists repeat from their start."""
    num_objects = max(map(len, values.values()), default=1)
    return [
        {name: choices[index % len(choices)] for name, choices in values.items()}
        for index in range(num_objects)
    ]
