"""Comparison of two cluster files: what the new cluster's file lacks.

Settings are never copied. The lines are printed, and a person adds them.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from config.cluster import Cluster
from config.eks_cluster import EksCluster
from config.slurm_cluster import SlurmCluster

NAMED_LISTS: Mapping[str, Sequence[str]] = {
    "slurm": (
        "access.groups",
        "access.users",
        "access.accounts",
        "scheduling.qos",
        "scheduling.partitions",
    ),
    "eks": ("task_governance.teams", "task_governance.priority_classes"),
}
"""Lists of items with names, by scheduler: people, their accounts and their shares."""
VALUES: Mapping[str, Sequence[str]] = {
    "slurm": ("access.id_ranges", "scheduling.enforce"),
    "eks": ("task_governance.fair_share", "task_governance.lend_unallocated"),
}
"""Other fields that decide about people's numbers and shares."""


@dataclass(frozen=True)
class Difference:
    """Item or value of the old cluster's file that the new one lacks or has otherwise."""

    place: str
    """Field, such as ``access.users``."""
    name: str
    """Name of the item; empty for a field with one value."""
    wanted: Any
    """Value in the old cluster's file, without defaults."""
    present: Any
    """Value in the new cluster's file; None if it is missing."""

    @property
    def label(self) -> str:
        return f"{self.place}[{self.name}]" if self.name else self.place


def differences(source: Cluster, target: Cluster) -> list[Difference]:
    """Return what the target's file lacks of the source's, in the order of the file.

    Clusters with different schedulers have no such settings in common.
    """
    if source.scheduler != target.scheduler:
        return []
    assert isinstance(source, SlurmCluster | EksCluster)
    ours, theirs = (cluster.model_dump(exclude_defaults=True) for cluster in (source, target))
    found = []
    for place in NAMED_LISTS[source.scheduler]:
        present = {item["name"]: item for item in _at(theirs, place) or []}
        for item in _at(ours, place) or []:
            if present.get(item["name"]) != item:
                found.append(Difference(place, item["name"], item, present.get(item["name"])))
    for place in VALUES[source.scheduler]:
        wanted, got = _at(ours, place), _at(theirs, place)
        if wanted is not None and wanted != got:
            found.append(Difference(place, "", wanted, got))
    return found


def lines_to_add(found: Sequence[Difference]) -> Iterator[str]:
    """Yield the lines of YAML that the target's file needs: ``+`` is new, and ``-`` is what it replaces."""
    place = ""
    for difference in found:
        section, _, field = difference.place.partition(".")
        if difference.place != place:
            place = difference.place
            yield f"  {section}:"
            yield f"    {field}:"
        if difference.present is not None:
            yield f"-     {_line(difference.present, difference.name)}"
        yield f"+     {_line(difference.wanted, difference.name)}"


def _line(value: Any, name: str) -> str:
    """Return a value on one line of YAML."""
    # Values of enumerations and dates, if there ever are any, become text.
    plain = json.loads(json.dumps(value, default=str))
    text = yaml.safe_dump(
        plain, default_flow_style=True, sort_keys=False, width=10**6, allow_unicode=True
    )
    text = text.removesuffix("\n").removesuffix("\n...")
    return f"- {text}" if name else text


def _at(document: Mapping[str, Any], place: str) -> Any:
    section, _, field = place.partition(".")
    return (document.get(section) or {}).get(field)
