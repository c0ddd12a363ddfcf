"""Rules for instance groups with any scheduler, and for the features that they use of their types."""

from collections.abc import Iterator
from functools import partial

from config.cluster import Cluster, InstanceGroup
from config.facts.instance_catalogue import INSTANCE_TYPES, InstanceType, closest
from config.reading.violation import Violation
from config.rules.rule import CommonGroupRule, CommonRule, group_violation, repetitions

_PLANNED = sorted(name for name, instance in INSTANCE_TYPES.items() if instance.training_plan)
"""Types that training plans reserve."""


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
        instance = _hardware(group)
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
    # The hardware of a type decides on addresses, devices and images. A new row of the table adds one.
    CommonGroupRule(
        "instance_type",
        lambda _, group: group.instance_type not in INSTANCE_TYPES,
        f"HyperPod offers {len(INSTANCE_TYPES)} types, which config/facts/instance_types.csv lists",
        lambda _, group: f"set {closest(group.instance_type) or 'one of them'}",
    ),
    # EC2 refuses more threads than the processor has (DescribeInstanceTypes, ValidThreadsPerCore).
    CommonGroupRule(
        "threads_per_core",
        lambda _, group: (
            group.threads_per_core == 2
            and (found := _hardware(group))
            and found.threads_per_core == 1
        ),
        "{group.instance_type} has one thread per core",
        "set 1, or null",
    ),
    # EC2 attaches interfaces of type efa-only to types with EFA only (EC2 user guide).
    CommonGroupRule(
        "efa_only",
        lambda _, group: group.efa_only and (found := _hardware(group)) and not found.num_efa,
        "{group.instance_type} has no EFA",
        "set false, or a type with EFA, such as ml.g5.8xlarge",
    ),
    health_checks_fit_the_type,
    # SageMaker sells plans for the types of ReservedCapacityInstanceType (API reference).
    CommonGroupRule(
        "training_plan_arn",
        lambda _, group: (
            group.training_plan_arn and (found := _hardware(group)) and not found.training_plan
        ),
        f"no training plan reserves {{group.instance_type}}; plans reserve {', '.join(_PLANNED)}",
        "set instance_type to the plan's, or remove training_plan_arn",
    ),
)
