"""The nodes that Kubernetes's own pods are placed on."""

from __future__ import annotations

from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.instance_catalogue import instance_type


def lasting_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Groups whose nodes are always there and let any pod in."""
    return [
        group
        for group in cluster.instance_groups
        if group.num_instances
        and group.capacity != "spot"
        and all(taint.effect == "PreferNoSchedule" for taint in group.taints)
    ]


def system_groups(cluster: EksCluster) -> list[EksInstanceGroup]:
    """Groups whose first nodes must be there before anything is installed that needs nodes.

    Those without accelerators if there are any: capacity for the others may be hours away, and their deep
    health checks, which keep pods off, take up to two more. Else the ones that wait for neither a plan nor
    checks, else all. That there is one at all is a rule of the cluster file.
    """
    possible = lasting_groups(cluster)
    plain = [group for group in possible if not instance_type(group.instance_type).accelerator]
    prompt = [group for group in possible if not group.training_plan_arn and not group.deep_health_checks]
    return plain or prompt or possible
