"""What must hold between the values of a cluster file, beyond what each value's own type says.

Every rule looks at the whole cluster and yields what is wrong. All of them run, so a rule takes for granted
what another one checks: a wrong instance type or range is told once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from config.cluster import Cluster
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.reading.violation import Violation
from config.rules import (
    access,
    control_plane,
    database,
    groups,
    hardware,
    kubernetes_nodes,
    node_setup,
    observability,
    ranges,
    region,
    slurm_groups,
    storage,
    studio,
    subnets,
    tags,
    task_governance,
)
from config.slurm_cluster import SlurmCluster

RULES: tuple[Callable[[Cluster], Iterator[Violation]], ...] = (
    *region.RULES,
    *tags.RULES,
    *ranges.RULES,
    *subnets.RULES,
    *storage.RULES,
    *groups.RULES,
    *hardware.RULES,
    *observability.RULES,
    *studio.RULES,
)
"""For every scheduler."""

SLURM_RULES: tuple[Callable[[SlurmCluster], Iterator[Violation]], ...] = (
    *database.RULES,
    *slurm_groups.RULES,
    *access.RULES,
    *node_setup.RULES,
)

EKS_RULES: tuple[Callable[[EksCluster], Iterator[Violation]], ...] = (
    *control_plane.RULES,
    *kubernetes_nodes.RULES,
    *task_governance.RULES,
)


def violations(cluster: AnyCluster) -> list[Violation]:
    """Everything that is wrong, in the order of the rules: those for all first, then the scheduler's own."""
    found = [violation for rule in RULES for violation in rule(cluster)]
    if isinstance(cluster, SlurmCluster):
        return found + [violation for rule in SLURM_RULES for violation in rule(cluster)]
    return found + [violation for rule in EKS_RULES for violation in rule(cluster)]
