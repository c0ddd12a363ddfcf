"""What of a cluster's demand its deployed stacks and present nodes do not hold yet."""

from __future__ import annotations

from collections import Counter

from config.address_demand import address_takers
from config.cluster import Cluster
from config.eks_cluster import EksInstanceGroup
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed


def missing_nodes(aws: ReadOnlyAws, cluster: Cluster) -> Cluster:
    """The cluster with as many nodes in each group as are still to come, also by Karpenter."""
    if not is_deployed(aws, cluster, "hyperpod"):
        return cluster
    described = aws.call("sagemaker", "describe_cluster", ClusterName=cluster.name)
    present = {
        (group["InstanceGroupName"], group.get("InstanceType")): group.get("CurrentCount", 0)
        for group in described["InstanceGroups"]
    }
    groups = []
    for group in cluster.instance_groups:
        there = present.get((group.name, group.instance_type), 0)
        missing = {"num_instances": max(0, group.num_instances - there)}
        if isinstance(group, EksInstanceGroup) and group.max_instances:
            missing["max_instances"] = max(0, group.max_instances - there)
        groups.append(group.model_copy(update=missing))
    return cluster.model_copy(update={"instance_groups": groups})


def missing_addresses(aws: ReadOnlyAws, cluster: Cluster) -> Counter[str]:
    """Addresses that the next deployment takes, by zone id; what a deployed stack made it has already."""
    held: tuple[str, ...] = ("network.",) if is_deployed(aws, cluster, "network") else ()
    if is_deployed(aws, cluster, "storage"):
        held += ("storage.", "accounting_database")
    if is_deployed(aws, cluster, "hyperpod"):
        held += ("kubernetes",)
    return Counter(
        {
            zone: sum(number for place, number in taken.items() if not place.startswith(held))
            for zone, taken in address_takers(missing_nodes(aws, cluster)).items()
        }
    )
