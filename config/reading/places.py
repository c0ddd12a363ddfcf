"""Where in a cluster file something is, and which key was meant there."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from typing import Any, get_args

from pydantic_core import ErrorDetails

from config.cluster import ExistingVpc, NewVpc
from config.cluster_kinds import KINDS
from config.reading.violation import key_path
from config.section import Section

Location = tuple[int | str, ...]

NETWORKS: dict[int | str, type[Section]] = {"new": NewVpc, "existing": ExistingVpc}


def in_document(details: ErrorDetails) -> Location:
    """Where the value stands in the file.

    Pydantic names the kind of network as if it were a key below it, and says of a wrong kind that the network
    is wrong.
    """
    location = details["loc"]
    if details["type"].startswith("union_tag"):
        return (*location, "vpc")
    if location[0] == "network":
        return (location[0], *location[2:])
    return location


def below(value: Any, location: Sequence[int | str]) -> Any:
    """What is there; None if there is nothing."""
    for part in location:
        if isinstance(value, list) and isinstance(part, int) and part < len(value):
            value = value[part]
        else:
            value = value.get(part) if isinstance(value, dict) else None
    return value


def path_of(location: Location, document: dict[str, Any]) -> str:
    """As ``instance_groups[workers].ebs_gib``."""
    path, value = "", document
    for part in location:
        value = below(value, [part])
        path = f"{path}[{item_label(value, part)}]" if isinstance(part, int) else key_path(path, part)
    return path


def item_label(item: Any, index: int) -> str:
    """An item's name; its number, from 0, if it has none that can be shown on a line."""
    name = item.get("name") if isinstance(item, dict) else None
    return name if isinstance(name, str) and name and name.isprintable() else str(index)


def key_meant(details: ErrorDetails, kind: type[Section]) -> str | None:
    """The key that an unknown one is most like."""
    *parents, key = details["loc"]
    if other_network(details) or other_schedulers(details, kind):
        return None
    return next(iter(difflib.get_close_matches(str(key), section_at(parents, kind).model_fields, n=1)), None)


def other_network(details: ErrorDetails) -> str | None:
    """The kind of network that has the key which this one does not have."""
    section, *rest = details["loc"]
    if section != "network" or len(rest) != 2:
        return None
    kind, key = rest
    return next(
        (str(other) for other in NETWORKS if other != kind and key in NETWORKS[other].model_fields), None
    )


def other_schedulers(details: ErrorDetails, kind: type[Section]) -> list[str]:
    """The schedulers whose cluster files have the key which this kind does not have."""
    *parents, key = details["loc"]
    schedulers: list[str] = []
    if kind not in KINDS.values():
        return schedulers  # no cluster file
    for scheduler, other in KINDS.items():
        try:
            section = section_at(parents, other)
        except KeyError:
            continue  # what the key is in is this kind's alone
        if key in section.model_fields:
            schedulers.append(scheduler)
    return schedulers


def network_meant(network: dict[str, Any]) -> str | None:
    """The kind of network that alone has some of the keys of this one."""
    new, existing = NewVpc.model_fields.keys(), ExistingVpc.model_fields.keys()
    has_new, has_existing = bool(network.keys() & (new - existing)), bool(network.keys() & (existing - new))
    if has_new == has_existing:
        return None
    return "new" if has_new else "existing"


def section_at(location: Sequence[int | str], kind: type[Section]) -> type[Section]:
    section: type[Section] = kind
    for part in location:
        if section is kind and part == "network":
            continue
        if part in NETWORKS and not isinstance(part, int):
            section = NETWORKS[part]
        elif isinstance(part, str):
            section = _section_in(section.model_fields[part].annotation)
    return section


def _section_in(annotation: Any) -> type[Section]:
    """The one section in ``list[Section]``, ``Section | None`` and the like."""
    if isinstance(annotation, type) and issubclass(annotation, Section):
        return annotation
    inner = [argument for argument in get_args(annotation) if argument is not type(None)]
    return _section_in(inner[0])
