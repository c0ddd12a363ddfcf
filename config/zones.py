"""Which availability zones a cluster uses, by id."""

from __future__ import annotations

from config.cluster import Cluster, InstanceGroup, NewVpc

ZONES_WITHOUT_CONTROL_PLANE = frozenset({"use1-az3", "usw1-az2", "cac1-az3"})
"""Where EKS puts no network interface of a control plane (EKS user guide, "View Amazon EKS networking
requirements for VPC and subnets")."""


def zone_ids(cluster: Cluster) -> list[str]:
    """The network's zones in the file's order; FSx and groups without a zone go to the first."""
    network = cluster.network
    if isinstance(network, NewVpc):
        return network.availability_zone_ids
    return [subnet.availability_zone_id for subnet in network.private_subnets]


def zone_of(cluster: Cluster, group: InstanceGroup) -> str:
    return group.availability_zone_id or zone_ids(cluster)[0]


def control_plane_zones(cluster: Cluster) -> list[str]:
    """The two zones of EKS's control plane, which wants no fewer: the network's first that it can be in.

    A new VPC has small subnets there for it alone: in those of the nodes, pods that take the last addresses
    would keep EKS from updating it (EKS best practices guide, "VPC and Subnet Considerations"). In an
    existing VPC it shares the private subnets, where its addresses are counted.
    """
    possible = [zone for zone in dict.fromkeys(zone_ids(cluster)) if zone not in ZONES_WITHOUT_CONTROL_PLANE]
    return possible[:2]
