"""Which zones a network spans and who is in which, and the way out of it."""

from __future__ import annotations

from collections.abc import Iterator

from config.cluster import Cluster, NewVpc
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.violation import Violation
from config.rules.paths import group_path, repetitions
from config.zones import zone_ids, zone_of


def zones_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    is_new = isinstance(cluster.network, NewVpc)
    path, key = ("availability_zone_ids", "") if is_new else ("private_subnets", ".availability_zone_id")
    earlier, fix = "each zone has one subnet for the cluster", "remove it, or set another zone"
    yield from repetitions(f"network.{path}", zone_ids(cluster), earlier, fix, key=key)


def groups_lie_in_the_network(cluster: Cluster) -> Iterator[Violation]:
    zones = list(dict.fromkeys(zone_ids(cluster)))
    for group in cluster.instance_groups:
        zone_id = group.availability_zone_id
        if zone_id and zone_id not in zones:
            yield Violation(
                group_path(group, "availability_zone_id"),
                zone_id,
                f"the network has {', '.join(zones)}",
                "set one of these, or add the zone to the network",
            )


def accelerated_groups_are_beside_the_file_system(cluster: Cluster) -> Iterator[Violation]:
    """EC2 user guide, "EFA limitations": EFA traffic does not cross zones, to other nodes or to Lustre."""
    zones = zone_ids(cluster)
    for group in cluster.instance_groups:
        instance = INSTANCE_TYPES.get(group.instance_type)
        zone_id = zone_of(cluster, group)
        if instance and instance.accelerator and zone_id in zones and zone_id != zones[0]:
            yield Violation(
                group_path(group, "availability_zone_id"),
                zone_id,
                f"accelerated nodes share a zone with FSx, {zones[0]}, since EFA does not cross zones",
                f"set {zones[0]}, or put {zone_id} first in the network",
            )


def closed_network_has_endpoints(cluster: Cluster) -> Iterator[Violation]:
    network = cluster.network
    if isinstance(network, NewVpc) and network.internet == "none" and not network.interface_endpoints:
        yield Violation(
            "network.interface_endpoints",
            False,
            "without NAT nothing but endpoints leads to the AWS services that nodes call",
            "set true, or network.internet to nat",
        )


RULES = (
    zones_are_distinct,
    groups_lie_in_the_network,
    accelerated_groups_are_beside_the_file_system,
    closed_network_has_endpoints,
)
