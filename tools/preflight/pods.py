"""Check that the nodes of EKS can hold the pods that the stack installs."""

from collections.abc import Iterator

from config.eks_cluster import EksCluster, lasting_groups
from config.pod_demand import (
    free_room,
    pod_room,
    pods_anywhere,
    pods_on_each_node,
    room_anywhere,
)
from tools.preflight.finding import Finding, Subject
from tools.preflight.read_only_aws import ReadOnlyAws

LIMIT = "HyperPod gives a node one network interface for pods"


def check_pods(aws: ReadOnlyAws, cluster: EksCluster) -> Iterator[Finding]:
    """Compare pods with the limits of the instance types, group by group and then for all together."""
    found = [*_groups(cluster), *_all_together(cluster)]
    ok = Subject("pods").ok(
        f"about {pods_anywhere(cluster)} pods of the stack fit beside the others; there is room for"
        f" {room_anywhere(cluster)}"
    )
    yield from found or [ok]


def _groups(cluster: EksCluster) -> Iterator[Finding]:
    for group in cluster.instance_groups:
        needed = pods_on_each_node(cluster, group)
        room = pod_room(group.hardware)
        if needed > room:
            fix = (
                f"set a larger instance_type for group {group.name}; `addresses_per_interface` of"
                " config/facts/instance_types.csv decides"
            )
            if group.gpu_slice:
                fix = f"set a mig_profile with fewer slices per GPU for group {group.name}"
            yield Subject(f"pods of group {group.name}").warn(
                f"each node runs about {needed} pods, and an {group.types_text} holds {room}: {LIMIT}",
                fix,
            )


def _all_together(cluster: EksCluster) -> Iterator[Finding]:
    needed = pods_anywhere(cluster)
    room = room_anywhere(cluster)
    lasting = lasting_groups(cluster)
    if needed <= room or not lasting:
        return
    group = min(lasting, key=lambda group: free_room(cluster, group))
    names = ", ".join(group.name for group in lasting)
    yield Subject("pods").warn(
        f"the stack's own pods, about {needed}, need room on {names}, which have room for {room}: {LIMIT}",
        f"set a larger instance_type or more num_instances for group {group.name}",
    )
