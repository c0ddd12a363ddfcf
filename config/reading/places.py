"""Places in a cluster file, and the keys that mistyped keys probably mean."""

import difflib
from collections.abc import Sequence
from functools import cache
from typing import Any

from pydantic_core import ErrorDetails

from config.cluster import ExistingVpc, NewVpc
from config.cluster_kinds import KINDS
from config.reading.violation import Violation, key_path
from config.section import Section

Location = tuple[int | str, ...]

NETWORKS: dict[int | str, type[Section]] = {"new": NewVpc, "existing": ExistingVpc}


def in_document(details: ErrorDetails) -> Location:
    """Return the location of the value in the file.

    Pydantic includes the kind of network as if it were a key below it, and reports a wrong kind at the
    network.
    """
    location = details["loc"]
    if details["type"].startswith("union_tag"):
        return (*location, "vpc")
    if location[0] == "network":
        return (location[0], *location[2:])
    return location


def below(value: Any, location: Sequence[int | str]) -> Any:
    """Return the value at the location, or None."""
    for part in location:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def path_of(location: Location, document: dict[str, Any]) -> str:
    """Return the location as text, for example ``instance_groups[workers].ebs_gib``."""
    path = ""
    value = document
    for part in location:
        value = below(value, [part])
        path = _path_below(path, part, value)
    return path


def _path_below(path: str, part: int | str, value: Any) -> str:
    return f"{path}[{item_label(value, part)}]" if isinstance(part, int) else key_path(path, part)


def is_within(path: str, section: str) -> bool:
    """Return whether ``path`` is the place ``section`` or below it."""
    return path == section or path.startswith((f"{section}.", f"{section}[")) or not section


def in_file_order(found: list[Violation], document: dict[str, Any]) -> list[Violation]:
    """Sort violations as the file has their values; a missing key has the place of its section."""
    order: list[str] = []

    def walk(value: Any, path: str) -> None:
        order.append(path)
        parts: list[Any] = []
        if isinstance(value, dict):
            parts = list(value)
        elif isinstance(value, list):
            parts = list(range(len(value)))
        for part in parts:
            walk(value[part], _path_below(path, part, value[part]))

    walk(document, "")

    def position(violation: Violation) -> int:
        around = [path for path in order if is_within(violation.path, path)]
        innermost = max(around, key=len)
        return order.index(innermost)

    return sorted(found, key=position)


def item_label(item: Any, index: int) -> str:
    """Return an item's name, or its index from 0 if it has no name that fits on a line."""
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else str(index)


def key_meant(details: ErrorDetails, kind: type[Section]) -> str | None:
    """Return the key that is most similar to an unknown one."""
    *parents, key = details["loc"]
    if other_network(details) or other_schedulers(details, kind):
        return None
    return next(iter(difflib.get_close_matches(str(key), keys_at(parents, kind), n=1)), None)


def other_network(details: ErrorDetails) -> str | None:
    """Return the other kind of network if it has the key that this kind lacks."""
    top, *rest = details["loc"]
    if top != "network" or len(rest) != 2:
        return None
    kind, key = rest
    for other, section in NETWORKS.items():
        if other != kind and key in section.model_fields:
            return str(other)
    return None


def other_schedulers(details: ErrorDetails, kind: type[Section]) -> list[str]:
    """Return the other schedulers with cluster files that have this key; empty for an endpoint file."""
    *parents, key = details["loc"]
    if kind not in KINDS.values():
        return []
    return [scheduler for scheduler, other in KINDS.items() if key in keys_at(parents, other)]


def network_meant(network: dict[str, Any]) -> str | None:
    """Return the only kind of network that has some of these keys, or None."""
    only_new = NewVpc.model_fields.keys() - ExistingVpc.model_fields.keys()
    only_existing = ExistingVpc.model_fields.keys() - NewVpc.model_fields.keys()
    has_new = bool(network.keys() & only_new)
    has_existing = bool(network.keys() & only_existing)
    if has_new == has_existing:
        return None
    return "new" if has_new else "existing"


def keys_at(location: Sequence[int | str], kind: type[Section]) -> list[str]:
    """Return the keys of the section at pydantic's location; empty if this kind of file lacks it."""
    try:
        return list(_without_null(schema_at(location, kind))["properties"])
    except KeyError:
        return []


def schema_at(location: Sequence[int | str], kind: type[Section]) -> dict[str, Any]:
    """Return the JSON schema at pydantic's location, which includes the kind below a network.

    Raises:
        KeyError: if this kind of file has no such place.
    """
    node = _schema(kind)
    for part in location:
        node = _without_null(node)
        if "oneOf" in node:
            [node] = [
                option for option in node["oneOf"] if option["properties"]["vpc"]["const"] == part
            ]
        elif isinstance(part, int):
            node = node["items"]
        else:
            node = (
                node["properties"][part] if "properties" in node else node["additionalProperties"]
            )
    return node


def _without_null(node: dict[str, Any]) -> dict[str, Any]:
    """Return the schema of the value that is not null, for a field that may be null."""
    return next((option for option in node.get("anyOf", ()) if option.get("type") != "null"), node)


@cache
def _schema(kind: type[Section]) -> dict[str, Any]:
    """Return the JSON schema of a kind of file, with all references replaced by their definitions."""
    root = kind.model_json_schema()

    def whole(node: Any) -> Any:
        if isinstance(node, list):
            return [whole(item) for item in node]
        if not isinstance(node, dict):
            return node
        if "$ref" in node:
            return whole(root["$defs"][node["$ref"].rpartition("/")[2]])
        return {key: whole(value) for key, value in node.items() if key != "$defs"}

    return whole(root)
