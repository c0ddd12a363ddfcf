"""What a group asks of its instance type."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import INSTANCE_TYPES, InstanceType, closest
from config.reading.violation import Violation
from config.rules.paths import group_path, group_violation


def types_are_offered(cluster: Cluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        if group.instance_type not in INSTANCE_TYPES:
            yield group_violation(
                group,
                "instance_type",
                f"HyperPod offers {len(INSTANCE_TYPES)} types, which config/facts/instance_types.csv lists",
                f"set {closest(group.instance_type) or 'one of them'}",
            )


def threads_are_possible(cluster: Cluster) -> Iterator[Violation]:
    for group, instance in _known(cluster):
        if group.threads_per_core and group.threads_per_core > instance.threads_per_core:
            yield group_violation(
                group, "threads_per_core", f"{instance.name} has one thread per core", "set 1, or null"
            )


def efa_only_needs_efa(cluster: Cluster) -> Iterator[Violation]:
    for group, instance in _known(cluster):
        if group.efa_only and not instance.num_efa:
            yield group_violation(
                group,
                "efa_only",
                f"{instance.name} has no EFA",
                "set false, or a type with EFA, as ml.g5.8xlarge",
            )


def health_checks_fit_the_type(cluster: Cluster) -> Iterator[Violation]:
    """SageMaker developer guide, "Deep health checks": on accelerated nodes only.

    Connectivity is tested by collectives between nodes.
    """
    for group, instance in _known(cluster):
        checks, path = group.deep_health_checks, group_path(group, "deep_health_checks")
        if not checks or not group.runs_jobs:
            continue
        if len(set(checks)) < len(checks):
            yield Violation(path, checks, "each check is listed once", "remove the repetition")
        if instance.accelerator is None:
            yield Violation(
                path, checks, f"accelerators are checked, and {instance.name} has none", "remove it"
            )
        elif "InstanceConnectivity" in checks and not instance.num_efa:
            yield Violation(
                path,
                checks,
                f"InstanceConnectivity is for types with EFA, and {instance.name} has none",
                "set [InstanceStress]",
            )


def plan_covers_the_type(cluster: Cluster) -> Iterator[Violation]:
    for group in cluster.instance_groups:
        found = INSTANCE_TYPES.get(group.instance_type)
        if group.training_plan_arn and found and not found.training_plan:
            yield group_violation(
                group,
                "training_plan_arn",
                f"{group.instance_type} is in no training plan; plans reserve"
                f" {', '.join(sorted(t.name for t in INSTANCE_TYPES.values() if t.training_plan))}",
                "set instance_type to the plan's, or remove training_plan_arn",
            )


def _known(cluster: Cluster) -> Iterator[tuple[InstanceGroup, InstanceType]]:
    for group in cluster.instance_groups:
        if group.instance_type in INSTANCE_TYPES:
            yield group, INSTANCE_TYPES[group.instance_type]


RULES = (
    types_are_offered,
    threads_are_possible,
    efa_only_needs_efa,
    health_checks_fit_the_type,
    plan_covers_the_type,
)
