"""What HyperPod does only with continuous provisioning."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster
from config.rules.paths import group_path
from config.violation import Violation


def own_key_needs_continuous_provisioning(cluster: Cluster) -> Iterator[Violation]:
    """SageMaker developer guide, "Customer managed AWS KMS key encryption for SageMaker HyperPod"."""
    if cluster.storage.kms != "aws" and not cluster.continuous_provisioning:
        yield Violation(
            "continuous_provisioning",
            False,
            "HyperPod encrypts volumes with a key of yours (storage.kms) only with continuous provisioning",
            "set true, or storage.kms to aws",
        )


def minimum_needs_continuous_provisioning(cluster: Cluster) -> Iterator[Violation]:
    """Otherwise a group has all its nodes or none, so there is nothing to accept."""
    for group in cluster.instance_groups:
        if group.min_instances is not None and not cluster.continuous_provisioning:
            yield Violation(
                group_path(group, "min_instances"),
                group.min_instances,
                "without continuous provisioning a group starts with all its nodes or not at all",
                "remove it, or set continuous_provisioning to true",
            )


def spot_needs_continuous_provisioning(cluster: Cluster) -> Iterator[Violation]:
    """SageMaker developer guide, "Spot instances in Amazon SageMaker HyperPod": it works with that mode.

    All or nothing would fail the whole cluster whenever spot capacity is short.
    """
    for group in cluster.instance_groups:
        if group.capacity == "spot" and not cluster.continuous_provisioning:
            yield Violation(
                group_path(group, "capacity"),
                "spot",
                "spot instances come and go, which needs continuous provisioning",
                "set on_demand, or continuous_provisioning to true",
            )


RULES = (
    own_key_needs_continuous_provisioning,
    minimum_needs_continuous_provisioning,
    spot_needs_continuous_provisioning,
)
