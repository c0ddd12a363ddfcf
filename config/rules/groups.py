"""Rules for instance groups with any scheduler, and for features that need continuous provisioning."""

from collections.abc import Iterator

from config.cluster import Cluster
from config.reading.violation import Violation
from config.rules.rule import CommonGroupRule, CommonRule, repetitions


def names_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    names = [group.name for group in cluster.instance_groups]
    earlier, fix = "an earlier group has this name", "set another name"
    yield from repetitions("instance_groups", names, earlier, fix, key=".name")


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
        lambda cluster, group: group.min_instances is not None and not cluster.continuous_provisioning,
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
    names_are_distinct,
    CommonGroupRule(
        "min_instances",
        lambda _, group: group.min_instances is not None and group.min_instances > group.num_instances,
        "num_instances ({group.num_instances}) or less is allowed",
        lambda _, group: f"set {group.num_instances} or less" if group.num_instances else "remove it",
    ),
    CommonGroupRule(
        "capacity",
        lambda _, group: group.capacity == "spot" and group.training_plan_arn,
        "a training plan brings its own capacity",
        "set on_demand, or remove the plan",
    ),
    CommonGroupRule(
        "training_plan_arn",
        # arn:aws:sagemaker:<region>:<account>:training-plan/<name>
        lambda cluster, group: (arn := group.training_plan_arn) and arn.split(":")[3] != cluster.region,
        "a plan's capacity is in its own region, and the cluster is in {cluster.region}",
        lambda cluster, group: (
            f"set region to {(group.training_plan_arn or '').split(':')[3]}, or the ARN of a plan in"
            f" {cluster.region}"
        ),
    ),
    CommonGroupRule(
        "auto_patch",
        lambda _, group: group.image_id and group.auto_patch != "none",
        "patching replaces the image, and image_id keeps it at {group.image_id}",
        "set none, or remove image_id",
    ),
)
