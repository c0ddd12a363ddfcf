"""What Karpenter asks of the cluster, and of the groups that it scales.

SageMaker developer guide, "Autoscaling on SageMaker HyperPod EKS" and "Create a NodeClass".
"""

from __future__ import annotations

from collections.abc import Iterator

from config.eks_cluster import EksCluster, scaled_groups
from config.reading.violation import Violation
from config.rules.paths import group_violation

MAX_GROUPS = 10
"""Of a NodeClass."""


def karpenter_needs_continuous_provisioning(cluster: EksCluster) -> Iterator[Violation]:
    if cluster.autoscaling == "karpenter" and not cluster.continuous_provisioning:
        yield Violation(
            "continuous_provisioning",
            False,
            "Karpenter asks for single nodes, which needs continuous provisioning",
            "set true, or autoscaling to none",
        )


def karpenter_needs_node_recovery(cluster: EksCluster) -> Iterator[Violation]:
    if cluster.autoscaling == "karpenter" and cluster.node_recovery == "none":
        yield Violation(
            "node_recovery",
            "none",
            "Karpenter leaves faulty nodes to HyperPod's automatic recovery",
            "set automatic, or autoscaling to none",
        )


def karpenter_has_groups(cluster: EksCluster) -> Iterator[Violation]:
    scaled = scaled_groups(cluster)
    if cluster.autoscaling == "none":
        for group in scaled:
            yield group_violation(
                group,
                "max_instances",
                "it is for Karpenter, and autoscaling is none",
                "remove it, or set autoscaling to karpenter",
            )
    elif not scaled:
        yield Violation(
            "autoscaling",
            "karpenter",
            "it scales groups with max_instances, and none has it",
            "set max_instances in a group, or autoscaling to none",
        )
    elif len(scaled) > MAX_GROUPS:
        yield Violation(
            "instance_groups",
            f"{len(scaled)} groups with max_instances",
            f"Karpenter scales at most {MAX_GROUPS}",
            f"remove max_instances from {len(scaled) - MAX_GROUPS}",
        )


def scaled_groups_begin_with_no_nodes(cluster: EksCluster) -> Iterator[Violation]:
    for group in scaled_groups(cluster):
        if group.num_instances:
            yield group_violation(
                group,
                "num_instances",
                "Karpenter begins with no nodes, and would take these away",
                "set 0, or remove max_instances",
            )


RULES = (
    karpenter_needs_continuous_provisioning,
    karpenter_needs_node_recovery,
    karpenter_has_groups,
    scaled_groups_begin_with_no_nodes,
)
