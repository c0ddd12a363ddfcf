"""Rules between the values of a cluster file, in addition to the types of single values.

Each rule checks the whole cluster and yields violations. All rules run. A rule skips what another rule
checks, so that a wrong instance type or range is reported once.
"""

from collections.abc import Callable, Iterator

from config.cluster import Cluster
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.reading.violation import Violation
from config.rules import (
    access,
    features,
    gpu_slices,
    groups,
    kubernetes,
    network,
    observability,
    region,
    scheduling,
    slurm,
    storage,
    studio,
    tags,
    task_governance,
)
from config.slurm_cluster import SlurmCluster

RULES: tuple[Callable[[Cluster], Iterator[Violation]], ...] = (
    *region.RULES,
    *tags.RULES,
    *network.RULES,
    *storage.RULES,
    *groups.RULES,
    *observability.RULES,
    *features.RULES,
    *studio.RULES,
)
"""Rules for every scheduler."""

SLURM_RULES: tuple[Callable[[SlurmCluster], Iterator[Violation]], ...] = (
    *slurm.RULES,
    *access.RULES,
    *scheduling.RULES,
)

EKS_RULES: tuple[Callable[[EksCluster], Iterator[Violation]], ...] = (
    *kubernetes.RULES,
    *gpu_slices.RULES,
    *task_governance.RULES,
)


def violations(cluster: AnyCluster) -> list[Violation]:
    """Return all violations in the order of the rules: common rules first, then the scheduler's own."""
    found = [violation for rule in RULES for violation in rule(cluster)]
    if isinstance(cluster, SlurmCluster):
        return found + [violation for rule in SLURM_RULES for violation in rule(cluster)]
    return found + [violation for rule in EKS_RULES for violation in rule(cluster)]
