"""Rules for the features that a group uses of its instance type."""

from collections.abc import Iterator
from functools import partial

from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import INSTANCE_TYPES, InstanceType, closest
from config.reading.violation import Violation
from config.rules.rule import CommonGroupRule, group_violation

_PLANNED = sorted(name for name, instance in INSTANCE_TYPES.items() if instance.training_plan)


def health_checks_fit_the_type(cluster: Cluster) -> Iterator[Violation]:
    """Allow health checks on accelerated nodes only (SageMaker developer guide, "Deep health checks").

    The connectivity check runs collectives between nodes.
    """
    for group in cluster.instance_groups:
        checks, instance = group.deep_health_checks, _hardware(group)
        if not checks or not group.runs_jobs or instance is None:
            continue
        wrong = partial(group_violation, group, "deep_health_checks")
        if len(set(checks)) < len(checks):
            yield wrong("each check is listed once", "remove the repetition")
        if instance.accelerator is None:
            yield wrong(f"accelerators are checked, and {instance.name} has none", "remove it")
        elif "InstanceConnectivity" in checks and not instance.num_efa:
            yield wrong(
                f"InstanceConnectivity is for types with EFA, and {instance.name} has none",
                "set [InstanceStress]",
            )


def _hardware(group: InstanceGroup) -> InstanceType | None:
    return INSTANCE_TYPES.get(group.instance_type)


RULES = (
    CommonGroupRule(
        "instance_type",
        lambda _, group: group.instance_type not in INSTANCE_TYPES,
        f"HyperPod offers {len(INSTANCE_TYPES)} types, which config/facts/instance_types.csv lists",
        lambda _, group: f"set {closest(group.instance_type) or 'one of them'}",
    ),
    CommonGroupRule(
        "threads_per_core",
        lambda _, group: (
            group.threads_per_core == 2 and (found := _hardware(group)) and found.threads_per_core == 1
        ),
        "{group.instance_type} has one thread per core",
        "set 1, or null",
    ),
    CommonGroupRule(
        "efa_only",
        lambda _, group: group.efa_only and (found := _hardware(group)) and not found.num_efa,
        "{group.instance_type} has no EFA",
        "set false, or a type with EFA, such as ml.g5.8xlarge",
    ),
    health_checks_fit_the_type,
    CommonGroupRule(
        "training_plan_arn",
        lambda _, group: group.training_plan_arn and (found := _hardware(group)) and not found.training_plan,
        f"no training plan reserves {{group.instance_type}}; plans reserve {', '.join(_PLANNED)}",
        "set instance_type to the plan's, or remove training_plan_arn",
    ),
)
