"""Hardware and price of the nodes that jobs had."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from config.cluster import Cluster, InstanceGroup
from config.facts.price_list import Price, PriceList, dearest, node_keys
from config.slurm_cluster import SlurmInstanceGroup
from tools.usage.records import GPU, NEURON, JobRecord, node_names


@dataclass(frozen=True)
class NodeKind:
    """Nodes of one instance type, or of a group with several."""

    instance_type: str
    num_cpus: int
    """Processors that the scheduler allocates, one per thread."""
    device: str
    """Slurm's name for the accelerators: ``gres/gpu`` or ``gres/neuron``."""
    num_devices: int
    price: Price | None
    """Price per hour on demand, of several types the highest; None if it is not known."""


@dataclass(frozen=True)
class ClusterNodeKinds:
    """Kinds of the nodes of a cluster on which jobs are placed."""

    of_groups: Mapping[str, NodeKind]
    """Kind of each group."""
    num_nodes: Mapping[str, int]
    """Number of nodes of each group."""
    groups_of_partitions: Mapping[str, Sequence[str]]
    of_hosts: Mapping[str, NodeKind] = field(default_factory=dict)
    """Kinds of present nodes, by their names in the scheduler."""

    @property
    def are_mixed(self) -> bool:
        """Return whether there are several kinds; HyperPod's partition ``dev`` then has all of them."""
        return len(set(self.of_groups.values())) > 1

    def of_record(self, record: JobRecord) -> Mapping[NodeKind | None, int]:
        """Return the number of nodes of each kind that an allocation had; None stands for an unknown kind.

        A partition whose nodes are all alike decides. Otherwise, the names of the nodes do. A partition that
        no group has, such as HyperPod's ``dev``, has the nodes of all groups.
        """
        kinds = self._kinds_of(record.partition)
        if len(kinds) == 1:
            return {kinds.pop(): record.num_nodes}
        names = list(node_names(record.nodes))
        if len(names) != record.num_nodes:
            return {None: record.num_nodes}
        return Counter(self.of_hosts.get(name) for name in names)

    def _kinds_of(self, partition: str) -> set[NodeKind]:
        groups = self.groups_of_partitions.get(partition, self.of_groups)
        return {self.of_groups[name] for name in groups}


def cluster_node_kinds(
    cluster: Cluster, prices: PriceList, groups_of_hosts: Mapping[str, str]
) -> ClusterNodeKinds:
    """Return the kinds of a cluster's nodes.

    Args:
        cluster: cluster file.
        prices: prices of the region.
        groups_of_hosts: group of each present node, by the node's name in the scheduler.
    """
    groups = [group for group in cluster.instance_groups if group.runs_jobs]
    of_groups = {group.name: _node_kind(group, prices) for group in groups}
    partitions: dict[str, list[str]] = defaultdict(list)
    for group in groups:
        if isinstance(group, SlurmInstanceGroup) and group.partition:
            partitions[group.partition].append(group.name)
    return ClusterNodeKinds(
        of_groups=of_groups,
        num_nodes={group.name: group.num_instances for group in groups},
        groups_of_partitions=partitions,
        of_hosts={
            host: of_groups[group] for host, group in groups_of_hosts.items() if group in of_groups
        },
    )


def _node_kind(group: InstanceGroup, prices: PriceList) -> NodeKind:
    hardware = group.hardware
    threads = group.threads_per_core or hardware.threads_per_core
    return NodeKind(
        instance_type=group.types_text,
        num_cpus=hardware.vcpus * threads // hardware.threads_per_core,
        device=NEURON if hardware.is_neuron else GPU,
        num_devices=hardware.num_accelerators,
        price=dearest(node_keys(group.types), prices),
    )
