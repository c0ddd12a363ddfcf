"""Rules for instance groups with any scheduler, and for the features that they use of their types."""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial

from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import INSTANCE_TYPES, any_of, closest, known
from config.reading.violation import Violation
from config.rules.rule import CommonGroupRule, CommonRule, group_path, group_violation, repetitions

_PLANNED = sorted(name for name, instance in INSTANCE_TYPES.items() if instance.training_plan)
"""Types that training plans reserve."""
_NEVER = re.compile(r"cron\(\S+ \S+ (30 0?2|31 (0?[2469]|11)) ")
"""Start of a schedule on a day that its month never has."""


def names_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    names = [group.name for group in cluster.instance_groups]
    earlier = "an earlier group has this name"
    fix = "set another name"
    yield from repetitions("instance_groups", names, earlier, fix, key=".name")


def health_checks_fit_the_type(cluster: Cluster) -> Iterator[Violation]:
    """Allow health checks on accelerated nodes only (SageMaker developer guide, "Deep health checks").

    The connectivity check runs collectives between nodes.
    """
    for group in cluster.instance_groups:
        checks = group.deep_health_checks
        types = known(group.types)
        if not checks or not group.runs_jobs or not types:
            continue
        wrong = partial(group_violation, group, "deep_health_checks")
        if len(set(checks)) < len(checks):
            yield wrong("each check is listed once", "remove the repetition")
        if plain := _without(group, "accelerator"):
            yield wrong(f"accelerators are checked, and {plain} has none", "remove it")
        elif "InstanceConnectivity" in checks and (plain := _without(group, "num_efa")):
            yield wrong(
                f"InstanceConnectivity is for types with EFA, and {plain} has none",
                "set [InstanceStress]",
            )


def _without(group: InstanceGroup, hardware: str) -> str:
    """Return the types of a group without some hardware, as text; empty if all have it.

    Args:
        group: group of the cluster file.
        hardware: field of ``InstanceType``.
    """
    return any_of([found.name for found in known(group.types) if not getattr(found, hardware)])


def types_are_offered(cluster: Cluster) -> Iterator[Violation]:
    """Allow the types of the table, because their hardware decides on addresses, devices and images."""
    allowed = (
        f"HyperPod offers {len(INSTANCE_TYPES)} types, which config/facts/instance_types.csv lists"
    )
    for group in cluster.instance_groups:
        many = [
            (f"instance_types[{index}]", name) for index, name in enumerate(group.instance_types)
        ]
        one = [("instance_type", group.instance_type)] if group.instance_type else []
        for field, name in one + many:
            if name not in INSTANCE_TYPES:
                fix = f"set {closest(name) or 'one of them'}"
                yield Violation(group_path(group, field), name, allowed, fix)


def types_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    """Allow each type once, because the order of the list is that in which HyperPod looks for capacity."""
    for group in cluster.instance_groups:
        path = group_path(group, "instance_types")
        earlier = "an earlier item is this type"
        yield from repetitions(path, group.instance_types, earlier, "remove it")


@dataclass(frozen=True)
class _Shared:
    """Hardware in which the types of a group agree, so that each job and plugin fits each node."""

    field: str
    """Field of ``InstanceType``."""
    name: str
    """Name for messages."""
    reason: str


_SHARED = (
    _Shared("architecture", "architecture", "a group has one machine image"),
    _Shared("device_plugin", "vendor of accelerators", "a job has one kind of device"),
    _Shared(
        "num_accelerators",
        "number of accelerators",
        "Slurm's GRES and the processes of a job are the same on each node",
    ),
    _Shared(
        "processes_per_accelerator",
        "processes per accelerator",
        "the processes of a job are the same on each node",
    ),
    _Shared("num_efa", "number of EFA interfaces", "each node of a job has as many"),
)


def types_are_interchangeable(cluster: Cluster) -> Iterator[Violation]:
    """Require types on which a job finds the same devices, whichever of them HyperPod starts."""
    for group in cluster.instance_groups:
        types = known(group.instance_types)
        for other in types[1:]:
            first = types[0]
            index = group.instance_types.index(other.name)
            for shared in _SHARED:
                wanted = getattr(first, shared.field)
                found = getattr(other, shared.field)
                if found != wanted:
                    yield Violation(
                        group_path(group, f"instance_types[{index}]"),
                        other.name,
                        f"{shared.reason}, and its {shared.name} is {found}, that of {first.name} {wanted}",
                        "remove it, or give it a group of its own",
                    )
                    break


def batches_have_one_size(cluster: Cluster) -> Iterator[Violation]:
    """Require one of two units, because CapacitySizeConfig of the API has one type and one value."""
    for group in cluster.instance_groups:
        batches = group.rolling_update
        if batches and (batches.max_nodes is None) == (batches.max_percent is None):
            yield Violation(
                group_path(group, "rolling_update.max_nodes"),
                batches.max_nodes,
                "a batch is a number of nodes or a percentage",
                "set either max_nodes or max_percent",
            )


def rollback_alarms_are_names(cluster: Cluster) -> Iterator[Violation]:
    """Refuse ARNs: the service takes names of alarms in the account and region of the cluster."""
    for group in cluster.instance_groups:
        alarms = group.rolling_update.rollback_alarms if group.rolling_update else []
        for index, alarm in enumerate(alarms):
            if alarm.startswith("arn:"):
                yield Violation(
                    group_path(group, f"rolling_update.rollback_alarms[{index}]"),
                    alarm,
                    "an alarm of CloudWatch is given by its name, in the account and region of the cluster",
                    f"set {alarm.rpartition(':alarm:')[2]}",
                )


RULES = (
    # Source: SageMaker developer guide, "Customer managed AWS KMS key encryption for SageMaker HyperPod".
    CommonRule(
        "continuous_provisioning",
        lambda cluster: cluster.storage.kms != "aws" and not cluster.continuous_provisioning,
        "HyperPod encrypts volumes with your own key (storage.kms) only with continuous provisioning",
        "set true, or storage.kms to aws",
    ),
    # Without it a group has all its nodes or none, so a minimum has no effect.
    CommonGroupRule(
        "min_instances",
        lambda cluster, group: (
            group.min_instances is not None and not cluster.continuous_provisioning
        ),
        "without continuous provisioning a group starts with all its nodes or not at all",
        "remove it, or set continuous_provisioning to true",
    ),
    # Spot works only with that mode (SageMaker developer guide, "Spot instances in Amazon SageMaker
    # HyperPod"). Without it, the whole cluster would fail whenever spot capacity is short.
    CommonGroupRule(
        "capacity",
        lambda cluster, group: group.capacity == "spot" and not cluster.continuous_provisioning,
        "spot instances come and go, which needs continuous provisioning",
        "set on_demand, or continuous_provisioning to true",
    ),
    # HyperPod finds groups by their names (API reference, ClusterInstanceGroupSpecification).
    names_are_distinct,
    # The group could never reach a minimum above its InstanceCount (API reference, MinInstanceCount).
    CommonGroupRule(
        "min_instances",
        lambda _, group: (
            group.min_instances is not None and group.min_instances > group.num_instances
        ),
        "num_instances ({group.num_instances}) or less is allowed",
        lambda _, group: (
            f"set {group.num_instances} or less" if group.num_instances else "remove it"
        ),
    ),
    # CapacityRequirements asks for capacity that AWS has left; a plan has paid for its own.
    CommonGroupRule(
        "capacity",
        lambda _, group: group.capacity == "spot" and group.training_plan_arn,
        "a training plan brings its own capacity",
        "set on_demand, or remove the plan",
    ),
    # The ARN names the region, and HyperPod places the nodes of a plan in its zone.
    CommonGroupRule(
        "training_plan_arn",
        # arn:aws:sagemaker:<region>:<account>:training-plan/<name>
        lambda cluster, group: (
            (arn := group.training_plan_arn) and arn.split(":")[3] != cluster.region
        ),
        "a plan's capacity is in its own region, and the cluster is in {cluster.region}",
        lambda cluster, group: (
            f"set region to {(group.training_plan_arn or '').split(':')[3]}, or the ARN of a plan in"
            f" {cluster.region}"
        ),
    ),
    # AutoPatchConfig installs HyperPod's newest image, so a pinned one would be lost unnoticed.
    CommonGroupRule(
        "auto_patch",
        lambda _, group: group.image_id and group.auto_patch != "none",
        "patching replaces the image, and image_id keeps it at {group.image_id}",
        "set none, or remove image_id",
    ),
    # The schedule installs HyperPod's newest image, like AutoPatchConfig.
    CommonGroupRule(
        "scheduled_update",
        lambda _, group: group.image_id and group.scheduled_update,
        "an update replaces the image, and image_id keeps it at {group.image_id}",
        "remove one of the two",
    ),
    # The service would accept it, and the nodes would keep their image for good.
    CommonGroupRule(
        "scheduled_update",
        lambda _, group: _NEVER.match(group.scheduled_update or ""),
        "the month has no such day, so the update never happens",
        "set an earlier day",
    ),
    # AWS does not document which of the two wins, or what happens if both begin together.
    CommonGroupRule(
        "scheduled_update",
        lambda _, group: group.scheduled_update and group.auto_patch != "none",
        "auto_patch ({group.auto_patch}) updates the group already",
        "remove it, or set auto_patch to none",
    ),
    batches_have_one_size,
    rollback_alarms_are_names,
    # HyperPod starts no node without a type (API reference, ClusterInstanceGroupSpecification).
    CommonGroupRule(
        "instance_type",
        lambda _, group: not group.types,
        "a group has a type, or several in instance_types",
        "add instance_type",
    ),
    # InstanceType and InstanceRequirements exclude each other (API reference,
    # ClusterInstanceGroupSpecification).
    CommonGroupRule(
        "instance_types",
        lambda _, group: group.instance_type and group.instance_types,
        "instance_type is {group.instance_type}, and a group has one of the two fields",
        "remove one of them",
    ),
    types_are_offered,
    types_are_distinct,
    types_are_interchangeable,
    # The service places nodes on the plan's capacity, which has its own instance type (API reference,
    # ReservedCapacitySummary).
    CommonGroupRule(
        "instance_types",
        lambda _, group: group.instance_types and group.training_plan_arn,
        "a training plan reserves one type",
        "set instance_type to the plan's, or remove training_plan_arn",
    ),
    # EC2 refuses more threads than the processor has (DescribeInstanceTypes, ValidThreadsPerCore).
    CommonGroupRule(
        "threads_per_core",
        lambda _, group: (
            group.threads_per_core == 2
            and any(found.threads_per_core == 1 for found in known(group.types))
        ),
        "{group.types_text} has one thread per core",
        "set 1, or null",
    ),
    # EC2 attaches interfaces of type efa-only to types with EFA only (EC2 user guide).
    CommonGroupRule(
        "efa_only",
        lambda _, group: group.efa_only and _without(group, "num_efa"),
        lambda _, group: f"{_without(group, 'num_efa')} has no EFA",
        "set false, or a type with EFA, such as ml.g5.8xlarge",
    ),
    health_checks_fit_the_type,
    # SageMaker sells plans for the types of ReservedCapacityInstanceType (API reference).
    CommonGroupRule(
        "training_plan_arn",
        lambda _, group: (
            group.training_plan_arn and any(not found.training_plan for found in known(group.types))
        ),
        f"no training plan reserves {{group.types_text}}; plans reserve {', '.join(_PLANNED)}",
        "set instance_type to the plan's, or remove training_plan_arn",
    ),
)
