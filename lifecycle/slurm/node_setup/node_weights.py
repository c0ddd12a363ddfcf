"""Weights and features of Slurm's nodes, by the group that each node belongs to.

Jobs take the nodes of a partition with lower weights first. The feature is how the node's capacity is bought,
so that a job can exclude spot nodes. HyperPod writes the lines of nodes in slurm.conf, so both are set in the
running slurmctld.
"""

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import Any, TypedDict

SHOW = ("scontrol", "--oneliner", "show", "node")
FEATURES = frozenset({"plan", "on_demand", "spot"})
"""Features that are set here. Others of a node stay."""
NONE = "(null)"
"""Text of scontrol for a value that is not set."""


class GroupOptions(TypedDict):
    """Options of the nodes of a group."""

    weight: int
    feature: str


def groups_by_address(resource_config: Mapping[str, Any]) -> dict[str, str]:
    """Return the group of each node, by its address, from the platform's resource_config.json."""
    return {
        instance["CustomerIpAddress"]: group["Name"]
        # The platform writes null for a group without nodes.
        for group in resource_config.get("InstanceGroups") or []
        for instance in group.get("Instances") or []
        if instance.get("CustomerIpAddress")
    }


def shown_nodes(text: str) -> list[dict[str, str]]:
    """Return the fields of all nodes, from the output of ``SHOW``, without the reason, which is free text."""
    lines = [line.partition(" Reason=")[0] for line in text.splitlines()]
    return [
        dict(re.findall(r"(\S+?)=(\S*)", line)) for line in lines if line.startswith("NodeName=")
    ]


def updates(
    wanted: Mapping[str, GroupOptions], groups: Mapping[str, str], nodes: Iterable[dict[str, str]]
) -> list[list[str]]:
    """Return a command for each set of nodes with the same changes.

    Args:
        wanted: options by group.
        groups: group of each address.
        nodes: nodes as ``shown_nodes`` returns them; those of other groups stay as they are.
    """
    names: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        options = wanted.get(groups.get(node.get("NodeAddr", ""), ""))
        if options is not None and (changes := _changes(node, options)):
            names[changes].append(node["NodeName"])
    return [_update(found, changes) for changes, found in names.items()]


def removals(nodes: Iterable[dict[str, str]]) -> list[list[str]]:
    """Return commands that remove our features from all nodes."""
    names: dict[tuple[str, ...], list[str]] = defaultdict(list)
    for node in nodes:
        available = _features(node.get("AvailableFeatures", NONE))
        if FEATURES & set(available):
            rest = ",".join(name for name in available if name not in FEATURES)
            names[_set_features(rest)].append(node["NodeName"])
    return [_update(found, changes) for changes, found in names.items()]


def _update(names: Iterable[str], changes: Iterable[str]) -> list[str]:
    return ["scontrol", "update", f"NodeName={','.join(names)}", *changes]


def _changes(node: Mapping[str, str], options: GroupOptions) -> tuple[str, ...]:
    """Return the changes of a node, in the form of `scontrol update`."""
    found = []
    if node.get("Weight") != str(options["weight"]):
        found.append(f"Weight={options['weight']}")
    available = _features(node.get("AvailableFeatures", NONE))
    wanted = [name for name in available if name not in FEATURES] + [options["feature"]]
    active = _features(node.get("ActiveFeatures", NONE))
    if set(available) != set(wanted) or options["feature"] not in active:
        found += _set_features(",".join(wanted))
    return tuple(found)


def _set_features(names: str) -> tuple[str, str]:
    return (f"AvailableFeatures={names}", f"ActiveFeatures={names}")


def _features(shown: str) -> list[str]:
    return [] if shown == NONE else [name for name in shown.split(",") if name]
