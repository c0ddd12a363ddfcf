"""What of a cluster's demand its deployed stacks and present nodes do not hold yet."""

from __future__ import annotations

from collections import Counter

from config.address_demand import address_takers
from config.slurm_cluster import SlurmCluster
from config.stack_names import stack_names
from tools.preflight.read_only_aws import ReadOnlyAws
from tools.preflight.stacks import is_deployed


def missing_nodes(aws: ReadOnlyAws, cluster: SlurmCluster) -> SlurmCluster:
    """The cluster with as many nodes in each group as are still to come."""
    if not is_deployed(aws, stack_names(cluster).hyperpod):
        return cluster
    described = aws.call("sagemaker", "describe_cluster", ClusterName=cluster.name)
    present = {
        (group["InstanceGroupName"], group.get("InstanceType")): group.get("CurrentCount", 0)
        for group in described["InstanceGroups"]
    }
    groups = [
        group.model_copy(
            update={
                "num_instances": max(
                    0, group.num_instances - present.get((group.name, group.instance_type), 0)
                )
            }
        )
        for group in cluster.instance_groups
    ]
    return cluster.model_copy(update={"instance_groups": groups})


def missing_addresses(aws: ReadOnlyAws, cluster: SlurmCluster) -> Counter[str]:
    """Addresses that the next deployment takes, by zone id; what a deployed stack made it has already."""
    names = stack_names(cluster)
    held: tuple[str, ...] = ("network.",) if is_deployed(aws, names.network) else ()
    if is_deployed(aws, names.storage):
        held += ("storage.", "accounting_database")
    return Counter(
        {
            zone: sum(number for place, number in taken.items() if not place.startswith(held))
            for zone, taken in address_takers(missing_nodes(aws, cluster)).items()
        }
    )
