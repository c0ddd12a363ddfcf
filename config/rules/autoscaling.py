"""What Karpenter asks of the cluster, and of the groups that it scales.

SageMaker developer guide, "Autoscaling on SageMaker HyperPod EKS" and "Create a NodeClass".
"""

from __future__ import annotations

from collections.abc import Iterator

from config.eks_cluster import EksCluster, scaled_groups
from config.reading.violation import Violation
from config.rules.rule import EksGroupRule, EksRule

MAX_GROUPS = 10
"""Of a NodeClass."""


def karpenter_scales_few_groups(cluster: EksCluster) -> Iterator[Violation]:
    num_scaled = len(scaled_groups(cluster))
    if cluster.autoscaling == "karpenter" and num_scaled > MAX_GROUPS:
        yield Violation(
            "instance_groups",
            f"{num_scaled} groups with max_instances",
            f"Karpenter scales at most {MAX_GROUPS}",
            f"remove max_instances from {num_scaled - MAX_GROUPS}",
        )


RULES = (
    EksRule(
        "continuous_provisioning",
        lambda cluster: cluster.autoscaling == "karpenter" and not cluster.continuous_provisioning,
        "Karpenter asks for single nodes, which needs continuous provisioning",
        "set true, or autoscaling to none",
    ),
    EksRule(
        "node_recovery",
        lambda cluster: cluster.autoscaling == "karpenter" and cluster.node_recovery == "none",
        "Karpenter leaves faulty nodes to HyperPod's automatic recovery",
        "set automatic, or autoscaling to none",
    ),
    EksGroupRule(
        "max_instances",
        lambda cluster, group: cluster.autoscaling == "none" and group.max_instances is not None,
        "it is for Karpenter, and autoscaling is none",
        "remove it, or set autoscaling to karpenter",
    ),
    EksRule(
        "autoscaling",
        lambda cluster: cluster.autoscaling == "karpenter" and not scaled_groups(cluster),
        "it scales groups with max_instances, and none has it",
        "set max_instances in a group, or autoscaling to none",
    ),
    karpenter_scales_few_groups,
    EksGroupRule(
        "num_instances",
        lambda _, group: group.max_instances is not None and group.num_instances,
        "Karpenter begins with no nodes, and would take these away",
        "set 0, or remove max_instances",
    ),
)
