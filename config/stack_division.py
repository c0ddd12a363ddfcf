"""Division of an EKS cluster's teams and access entries between its stack and nested stacks.

CloudFormation accepts 500 resources per stack, and a team has three. The cluster's own stack has the first
teams and entries of the file, and nested stacks have the others. CloudFormation moves no resource between
stacks. The first ones therefore keep their places, where deployed clusters have them, and the place of each
other one depends only on its name. An entry without access (``level: none``) keeps the places of the later
ones, and has no resource. ``kubernetes.entries_in_cluster_stack`` keeps more entries in the cluster's own
stack, for clusters that have them there because they were deployed before there were nested stacks.
"""

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from config.eks_cluster import EksCluster
from config.kubernetes import FIRST_ENTRIES, AccessEntry, Kubernetes
from config.resource_names import COMMON_NAMESPACE
from config.task_governance import Team, team_namespace

MAX_RESOURCES = 500
"""Most resources of a stack (AWS CloudFormation user guide, "Understand CloudFormation quotas")."""
FIRST_TEAMS = 60
"""Teams in the cluster's own stack."""
RESOURCES_PER_TEAM = 3
"""Quota, labels of the namespace, and the association of its service account with MLflow's role."""
OTHER_RESOURCES = MAX_RESOURCES - FIRST_TEAMS * RESOURCES_PER_TEAM - FIRST_ENTRIES
"""Room for all other resources of the cluster's own stack beside the first teams and entries."""
LEAST_OTHER_RESOURCES = 45
"""Fewest other resources of the cluster's own stack. They are in an existing EKS cluster, without options."""
NUM_TEAM_STACKS = 10
TEAMS_PER_STACK = 160
"""Most teams of a nested stack. The Kubernetes objects of all its teams are a few more resources."""
NUM_ENTRY_STACKS = 5
ENTRIES_PER_STACK = 490
"""Most access entries of a nested stack. The stack may have one resource more for metadata."""

Item = TypeVar("Item")


@dataclass(frozen=True)
class Division:
    teams: list[Team]
    """Teams in the cluster's own stack."""
    entries: dict[int, AccessEntry]
    """Access entries in the cluster's own stack by their place in the file."""
    team_stacks: dict[int, list[Team]]
    """Other teams by the number of their nested stack."""
    entry_stacks: dict[int, list[AccessEntry]]
    """Other access entries by the number of their nested stack."""

    @property
    def namespaces(self) -> list[str]:
        """Namespaces of jobs in the cluster's own stack: those of its teams, or the common one."""
        return [team_namespace(team.name) for team in self.teams] or [COMMON_NAMESPACE]


def division(cluster: EksCluster) -> Division:
    teams = cluster.teams
    entries = cluster.kubernetes.access
    num_own = cluster.kubernetes.entries_in_cluster_stack
    return Division(
        teams[:FIRST_TEAMS],
        {place: entry for place, entry in enumerate(entries[:num_own]) if entry.has_access},
        _by_stack(teams[FIRST_TEAMS:], _team_stack),
        _by_stack(entries[num_own:], _entry_stack),
    )


def most_teams(teams: Sequence[Team]) -> int:
    """Return the number of teams, from the first on, that fit into the stacks."""
    return FIRST_TEAMS + _most(teams[FIRST_TEAMS:], _team_stack, TEAMS_PER_STACK)


def most_entries(kubernetes: Kubernetes) -> int:
    """Return the number of access entries, from the first on, that fit beside those of the own stack."""
    num_own = kubernetes.entries_in_cluster_stack
    return num_own + _most(kubernetes.access[num_own:], _entry_stack, ENTRIES_PER_STACK)


def most_own_entries(parts: Division) -> int:
    """Return the number of access entries for which the cluster's own stack may have room.

    Its options have up to ``OTHER_RESOURCES``. Their exact number is known only after the synthesis, which
    refuses a larger template (``stacks/assembly_checks.py``).
    """
    of_teams = len(parts.teams) * RESOURCES_PER_TEAM
    nested = len(parts.team_stacks) + len(parts.entry_stacks)
    return MAX_RESOURCES - LEAST_OTHER_RESOURCES - of_teams - nested


def _team_stack(team: Team) -> int:
    return zlib.crc32(team.name.encode()) % NUM_TEAM_STACKS


def _entry_stack(entry: AccessEntry) -> int | None:
    """Return the number of an entry's nested stack; None if it has no access, and so no resource."""
    if not entry.has_access:
        return None
    return zlib.crc32(entry.principal_arn.encode()) % NUM_ENTRY_STACKS


def _by_stack(
    items: Sequence[Item], stack_of: Callable[[Item], int | None]
) -> dict[int, list[Item]]:
    found: dict[int, list[Item]] = {}
    for item in items:
        stack = stack_of(item)
        if stack is not None:
            found.setdefault(stack, []).append(item)
    return dict(sorted(found.items()))


def _most(items: Sequence[Item], stack_of: Callable[[Item], int | None], per_stack: int) -> int:
    used: dict[int, int] = {}
    for number, item in enumerate(items):
        stack = stack_of(item)
        if stack is None:
            continue
        used[stack] = used.get(stack, 0) + 1
        if used[stack] > per_stack:
            return number
    return len(items)
