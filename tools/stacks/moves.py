"""Access entries and teams of an EKS cluster that an update would move to another place in its stacks.

CloudFormation moves nothing. It creates the resource in the new place before it deletes the one in the old
place. That fails for access entries and associations of service accounts, and may remove objects of teams
that the new resource has applied.
"""

import json
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from config.eks_cluster import EksCluster
from config.kubernetes import FIRST_ENTRIES
from config.stack_division import FIRST_TEAMS
from config.task_governance import team_namespace
from tools.stacks.replacements import Template
from tools.stacks.stack_contents import read_stack
from tools.stacks.stack_states import STACK

ENTRY = "AWS::EKS::AccessEntry"
ENTRY_ID = re.compile("KubernetesAccess([0-9]+)[0-9A-F]{8}")
"""Logical id of an entry in the cluster's own stack: its place in the file, and the CDK's hash."""
PATCH = "Custom::AWSCDK-EKS-KubernetesPatch"
"""Change of a Kubernetes object. Each team has one, of its namespace."""
ASSOCIATION = "AWS::EKS::PodIdentityAssociation"
"""Role of a service account. With MLflow, each team has one, by its place among the first teams."""
PATCHED = "namespace/"
"""Beginning of the name of a namespace in a patch."""
ASSET_PATH = "aws:asset:path"
"""Key of a nested stack's metadata with its file in the folder of synthesized templates."""
OWN_STACK = ""
MOST_LISTED = 5
"""Most principals or teams that a message lists."""


@dataclass(frozen=True)
class Place:
    stack: str
    """Logical id of the nested stack, or ``OWN_STACK``."""
    logical_id: str


@dataclass(frozen=True)
class Places:
    """Places of the cluster file's access entries and teams."""

    entries: dict[str, Place] = field(default_factory=dict)
    """Places by principal."""
    teams: dict[str, Place] = field(default_factory=dict)
    """Places of the changes of namespaces, by team. They are in the stacks of the quotas."""
    associations: dict[str, Place] = field(default_factory=dict)
    """Places of associations by team."""

    def add(self, stack: str, resources: Mapping[str, Mapping[str, Any]]) -> None:
        """Add the entries and teams among a stack's resources, which are by logical id."""
        for logical_id, resource in resources.items():
            place = Place(stack, logical_id)
            properties = resource.get("Properties", {})
            if resource["Type"] == ENTRY:
                principal = properties.get("PrincipalArn")
                # Entries of the stacks' own roles, such as the installer's, refer to a resource.
                if isinstance(principal, str):
                    self.entries[principal] = place
            elif resource["Type"] == PATCH:
                name = str(properties.get("ResourceName", ""))
                _add_team(self.teams, name.removeprefix(PATCHED), place)
            elif resource["Type"] == ASSOCIATION:
                _add_team(self.associations, str(properties.get("Namespace", "")), place)


def _add_team(places: dict[str, Place], namespace: str, place: Place) -> None:
    """Add the place if the namespace belongs to a team."""
    prefix = team_namespace("")
    if namespace.startswith(prefix):
        places[namespace.removeprefix(prefix)] = place


def template_places(template: Template, folder: Path) -> Places:
    """Return the places in a template and in those of its nested stacks, as far as the folder has them."""
    found = Places()
    found.add(OWN_STACK, template["Resources"])
    for logical_id, resource in template["Resources"].items():
        path = resource.get("Metadata", {}).get(ASSET_PATH)
        if resource["Type"] != STACK or path is None:
            continue
        file = folder / path
        if file.is_file():
            found.add(logical_id, json.loads(file.read_text())["Resources"])
    return found


def deployed_places(cloudformation: Any, stack_name: str) -> Places:
    """Return the places of the resources that exist in a deployed stack and its nested stacks."""
    found = Places()
    stacks = {OWN_STACK: stack_name}
    while stacks:
        stack, name = stacks.popitem()
        contents = read_stack(cloudformation, name)
        if contents is None:
            continue
        existing = [resource for resource in contents.resources if resource.physical_id]
        found.add(
            stack,
            {
                resource.logical_id: {
                    "Type": resource.resource_type,
                    "Properties": resource.properties,
                }
                for resource in existing
            },
        )
        if stack == OWN_STACK:
            stacks |= {
                resource.logical_id: resource.physical_id
                for resource in existing
                if resource.resource_type == STACK
            }
    return found


def describe_moves(old: Places, new: Places, cluster: EksCluster) -> Iterator[str]:
    """Yield a message if an update would move access entries, and one if it would move teams.

    Args:
        old: places before the update.
        new: places after the update.
        cluster: cluster file of the update.
    """
    principals = _moved(old.entries, new.entries)
    if principals:
        listed = {entry.principal_arn for entry in cluster.kubernetes.access}
        removed = [principal for principal in old.entries if principal not in listed]
        num_own = cluster.kubernetes.entries_in_cluster_stack
        yield " ".join(_of_entries(principals, removed, num_own=num_own, kept=_num_kept(old)))
    if _moved(old.teams, new.teams) or _moved(old.associations, new.associations):
        yield " ".join(_of_teams(old, new))


def _moved(old: Mapping[str, Place], new: Mapping[str, Place]) -> list[str]:
    """Return the names whose place differs, in the order of the new templates."""
    return [name for name, place in new.items() if name in old and old[name] != place]


def _num_kept(old: Places) -> int:
    """Return the value of ``kubernetes.entries_in_cluster_stack`` that keeps deployed entries in place."""
    ids = [place.logical_id for place in old.entries.values() if place.stack == OWN_STACK]
    in_file = [int(found[1]) for found in map(ENTRY_ID.fullmatch, ids) if found]
    return max([FIRST_ENTRIES, *(place + 1 for place in in_file)])


def _of_entries(
    moved: Sequence[str], removed: Sequence[str], *, num_own: int, kept: int
) -> Iterator[str]:
    """Yield the sentences about access entries.

    Args:
        moved: principals whose entries would move.
        removed: principals that the file no longer has.
        num_own: first entries of the file that the update has in the cluster's own stack.
        kept: first entries of the file that the deployed stack has there.
    """
    yield f"this update would move access entries to other places in the stacks: {_first(moved)}."
    yield (
        "EKS accepts one entry per principal, and CloudFormation creates a resource before it deletes"
        " another, so the update would fail, and change no one's access."
    )
    yield (
        "Keep the entries of kubernetes.access in their order, also those with `level: none`, and add new"
        " ones at the end."
    )
    if removed:
        yield f"Put removed entries back in their places, with `level: none`: {_first(removed)}."
    if num_own != kept:
        yield (
            f"Set kubernetes.entries_in_cluster_stack to {kept}, not {num_own}, because the cluster's own"
            f" stack was deployed with the first {kept} entries."
        )


def _of_teams(old: Places, new: Places) -> Iterator[str]:
    """Yield the sentences about teams."""
    between = _moved(old.teams, new.teams)
    associations = _moved(old.associations, new.associations)
    removed = [team for team in old.teams if team not in new.teams]
    num_own = sum(place.stack == OWN_STACK for place in old.teams.values())
    if between:
        yield (
            "this update would move teams to other places in the stacks: "
            f"{_first(between)}. CloudFormation creates a resource before it deletes another, so it could"
            " delete a team's quota and objects after it has created the new ones."
        )
    else:
        yield (
            "this update would move associations of teams with MLflow's role to other places in the stack: "
            f"{_first(associations)}. EKS accepts one association per service account, and CloudFormation"
            " creates a resource before it deletes another, so the update would fail."
        )
    yield "Keep the teams of task_governance.teams in their order, and add new ones at the end."
    if removed:
        yield (
            "Put removed teams back in their places, without `quota`, and take their members' access away: "
            f"{_first(removed)}."
        )
    if num_own > FIRST_TEAMS:
        yield (
            f"An earlier version deployed {num_own} teams in the cluster's own stack, which now has the first"
            f" {FIRST_TEAMS}: wait for the end of the others' jobs, deploy the file with the first"
            f" {FIRST_TEAMS} alone, and then with all."
        )


def _first(names: Collection[str]) -> str:
    """Return the first names, and the number of the others."""
    listed = ", ".join([*names][:MOST_LISTED])
    more = len(names) - MOST_LISTED
    return f"{listed} and {more} more, {len(names)} in all" if more > 0 else listed
