"""Number of IP addresses that a cluster needs in each zone."""

from collections import Counter, defaultdict
from math import ceil

from config.cluster import Cluster, InstanceGroup, NewVpc, control_plane_zones, zone_ids, zone_of
from config.eks_cluster import EksCluster, EksInstanceGroup
from config.facts.endpoint_services import endpoint_services
from config.facts.instance_catalogue import InstanceType, known
from config.slurm_cluster import SlurmCluster
from config.storage import LustreFileSystem

RESERVED_ADDRESSES = 5
"""Addresses that AWS reserves in every subnet (VPC user guide, "Subnet CIDR blocks")."""
_EFA_GIB_PER_SERVER = {125: 38400, 250: 19200, 500: 9600, 1000: 4800}
"""GiB per server of an EFA-enabled file system, by its throughput in MB/s per TiB."""
_GIB_PER_SERVER = 2400
"""GiB per server without EFA. Source of both: FSx for Lustre user guide, "IP addresses for file systems"."""

POD_ADDRESSES = 28
"""Addresses that the VPC CNI holds for pods on an EKS node, used or not. By default the CNI would hold
another whole interface as soon as there is one pod, which is 100 addresses on a P5 (amazon-vpc-cni-k8s,
docs/eni-and-ip-target.md). 28 addresses fit on one interface of most types with accelerators, and on two of
an m5.2xlarge."""
FREE_POD_ADDRESSES = 2
"""Addresses of these that stay free at least. The others last for 26 pods with an address of their own."""

_IOPS_PER_METADATA_SERVER = 12000
"""Metadata IOPS per server (FSx for Lustre user guide, "IP addresses for file systems")."""
_AUTOMATIC_GIB_PER_METADATA_SERVER = 24000
"""GiB per metadata server without ``metadata_iops``, for which FSx provides at most 12,000 IOPS (FSx for
Lustre user guide, "Lustre metadata performance configuration")."""
_HOME_ADDRESSES = 4
"""Addresses of an OpenZFS pair. It has one interface per server, and needs room for the address that moves
between them."""
_DATABASE_ADDRESSES = 3
"""Addresses of the database instance, its standby, and the instance that replaces a failed one."""
_CONTROL_PLANE_ADDRESSES = 6
"""Free addresses that EKS requires in each subnet of its control plane (EKS user guide, "View Amazon EKS
networking requirements for VPC and subnets")."""


def address_takers(cluster: Cluster) -> dict[str, Counter[str]]:
    """Return the addresses needed in each zone's private subnet, by the place in the file that needs them.

    A node of a type that is not in the catalogue counts as one address. Groups that Karpenter scales count
    with the most nodes that they may have.
    """
    takers: dict[str, Counter[str]] = defaultdict(Counter)
    first = takers[zone_ids(cluster)[0]]
    if cluster.storage.lustre:
        first["storage.lustre.capacity_gib"] = _lustre_addresses(cluster.storage.lustre)
    if cluster.storage.home:
        first["storage.home"] = _HOME_ADDRESSES
    if cluster.network.interface_endpoints:
        for service in endpoint_services(cluster).values():
            zone = cluster.network.endpoint_zones.get(service, zone_ids(cluster)[0])
            takers[zone]["network.interface_endpoints"] += 1
    # A new VPC has small subnets for the database and the control plane.
    if not isinstance(cluster.network, NewVpc):
        if isinstance(cluster, SlurmCluster) and cluster.accounting_database:
            distinct_zones = list(dict.fromkeys(zone_ids(cluster)))
            for zone in distinct_zones[:2]:
                takers[zone]["accounting_database"] = _DATABASE_ADDRESSES
        if isinstance(cluster, EksCluster) and not cluster.kubernetes.existing:
            for zone in control_plane_zones(cluster):
                takers[zone]["kubernetes"] = _CONTROL_PLANE_ADDRESSES
    for group in cluster.instance_groups:
        if isinstance(group, EksInstanceGroup) and group.max_instances:
            place = f"instance_groups[{group.name}].max_instances"
            num_nodes = max(group.num_instances, group.max_instances)
        else:
            place = f"instance_groups[{group.name}].num_instances"
            num_nodes = group.num_instances
        takers[zone_of(cluster, group)][place] += num_nodes * _node_addresses(group)
    return takers


def gib_per_server(lustre: LustreFileSystem) -> int:
    """Return the data in GiB that one server of the file system holds."""
    return _EFA_GIB_PER_SERVER[lustre.throughput_mbps_per_tib] if lustre.efa else _GIB_PER_SERVER


def _lustre_addresses(lustre: LustreFileSystem) -> int:
    """Return the number of addresses: one per data server and one per metadata server."""
    num_data_servers = ceil(lustre.capacity_gib / gib_per_server(lustre))
    if lustre.metadata_iops is None:
        num_metadata_servers = ceil(lustre.capacity_gib / _AUTOMATIC_GIB_PER_METADATA_SERVER)
    else:
        num_metadata_servers = ceil(lustre.metadata_iops / _IOPS_PER_METADATA_SERVER)
    return num_data_servers + num_metadata_servers


def _node_addresses(group: InstanceGroup) -> int:
    """Return the number of addresses: one per network card, which is 32 on a P5 (SageMaker AI developer
    guide, "Prerequisites for using SageMaker HyperPod").

    EFA-only interfaces have no address, so only the first card counts then. On EKS it also has the addresses
    of pods. Of several types, the one with the most addresses counts.
    """
    for_pods = POD_ADDRESSES if isinstance(group, EksInstanceGroup) else 0
    numbers = [
        _interfaces_of(instance, group)
        - (instance.num_network_cards - 1 if group.efa_only else 0)
        + for_pods
        for instance in known(group.types)
    ]
    return max(numbers, default=1)


def node_interfaces(group: InstanceGroup) -> int:
    """Return the most network interfaces of a node of the group."""
    return max((_interfaces_of(instance, group) for instance in known(group.types)), default=1)


def _interfaces_of(instance: InstanceType, group: InstanceGroup) -> int:
    """Return a node's network interfaces: one per network card, and on EKS additional ones for its pods."""
    if not isinstance(group, EksInstanceGroup):
        return instance.num_network_cards
    # Pods use the first card only, and one address of each of its interfaces is the node's.
    addresses_for_pods = instance.addresses_per_interface - 1
    on_first_card = ceil(POD_ADDRESSES / addresses_for_pods)
    return on_first_card + instance.num_network_cards - 1
