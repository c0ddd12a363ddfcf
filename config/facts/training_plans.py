"""Facts about SageMaker's training plans: reserved capacity with a type, a zone, a number and dates."""

from config.cluster import Cluster, InstanceGroup

TARGET = "hyperpod-cluster"
"""Target of a plan, which is bought for HyperPod or for training jobs and cannot be changed."""
WARNING_DAYS = (14, 3, 1)
"""Days before the end of a plan at which people are warned. An extension must be bought before the end."""


def plan_name(arn: str) -> str:
    """Return the name of a plan, the last part of its ARN."""
    return arn.rpartition("/")[2]


def groups_of_plans(cluster: Cluster) -> dict[str, list[InstanceGroup]]:
    """Return the groups that use each plan, by the plan's ARN."""
    groups: dict[str, list[InstanceGroup]] = {}
    for group in cluster.instance_groups:
        if group.training_plan_arn:
            groups.setdefault(group.training_plan_arn, []).append(group)
    return groups
