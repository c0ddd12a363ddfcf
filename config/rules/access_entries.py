"""Who may use Kubernetes, and where."""

from __future__ import annotations

import re
from collections.abc import Iterator

from config.eks_cluster import EksCluster
from config.reading.violation import Violation
from config.rules.paths import repetitions
from config.task_governance import MAX_NAME, team_namespace
from config.text_forms import TEAM_NAME

_OF_TEAMS = team_namespace("")


def principals_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    """API reference of EKS, CreateAccessEntry: no ARN is in two entries."""
    principals = [entry.principal_arn for entry in cluster.kubernetes.access]
    earlier = "EKS takes one entry for each role or user, and an earlier one has it"
    yield from repetitions("kubernetes.access", principals, earlier, "merge the two", key=".principal_arn")


def administrators_have_no_namespaces(cluster: EksCluster) -> Iterator[Violation]:
    for index, entry in enumerate(cluster.kubernetes.access):
        if entry.level == "cluster_admin" and entry.namespaces:
            yield Violation(
                f"kubernetes.access[{index}].namespaces",
                entry.namespaces,
                "a cluster_admin is one everywhere",
                "remove them, or set level to admin",
            )


def namespaces_of_teams_exist(cluster: EksCluster) -> Iterator[Violation]:
    """Other namespaces may be made by anyone, these by task governance alone."""
    teams = [team.name for team in cluster.task_governance.teams] if cluster.task_governance else []
    if not all(re.search(TEAM_NAME.pattern, team) and len(team) <= MAX_NAME for team in teams):
        return  # who means one that is wrong itself is not to blame
    there = [team_namespace(team) for team in teams]
    for index, entry in enumerate(cluster.kubernetes.access):
        for position, namespace in enumerate(entry.namespaces):
            if namespace.startswith(_OF_TEAMS) and namespace not in there:
                yield Violation(
                    f"kubernetes.access[{index}].namespaces[{position}]",
                    namespace,
                    f"namespaces of teams are {', '.join(there)}" if there else "there are no teams",
                    "add the team to task_governance.teams, or remove the namespace",
                )


RULES = (principals_are_distinct, administrators_have_no_namespaces, namespaces_of_teams_exist)
