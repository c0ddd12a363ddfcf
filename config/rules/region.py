"""Rules for the region, its zones, and names that its services reject."""

import difflib
import itertools
from collections.abc import Iterator

from config.cluster import Cluster, InstanceGroup, NewVpc, zone_ids, zone_of
from config.facts.instance_catalogue import known
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.violation import Violation
from config.rules.rule import (
    CommonGroupRule,
    CommonRule,
    group_path,
    has_closed_network,
    repetitions,
)


def region_is_supported(cluster: Cluster) -> Iterator[Violation]:
    """Suggest one region only if a single letter is wrong, because each has a different place and price."""
    if cluster.region in ZONE_ID_PREFIXES:
        return
    area = [region for region in ZONE_ID_PREFIXES if region[:3] == cluster.region[:3]]
    slips = [region for region in area if _one_letter_apart(region, cluster.region)]
    near = difflib.get_close_matches(cluster.region, area, n=3)
    if len(slips) == 1:
        fix = f"set {slips[0]}"
    elif near:
        fix = f"choose one of these; the most similar are {', '.join(near)}"
    else:
        fix = "choose one of these"
    yield Violation(
        "region", cluster.region, f"HyperPod is available in {', '.join(ZONE_ID_PREFIXES)}", fix
    )


def zones_lie_in_the_region(cluster: Cluster) -> Iterator[Violation]:
    prefix = ZONE_ID_PREFIXES.get(cluster.region)
    if prefix is None:
        return
    for path, zone_id in _zones(cluster):
        if not zone_id.startswith(f"{prefix}-"):
            yield Violation(
                path,
                zone_id,
                f"zone ids of {cluster.region} begin with {prefix}-",
                f"set one of them, such as {prefix}-az1",
            )


def _one_letter_apart(one: str, other: str) -> bool:
    """Return whether one changed, missing or additional letter turns one text into the other."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    start = sum(1 for _ in same)
    return (
        one[start + 1 :] == other[start + 1 :]
        or one[start:] == other[start + 1 :]
        or one[start + 1 :] == other[start:]
    )


def _zones(cluster: Cluster) -> Iterator[tuple[str, str]]:
    """Yield the path and the id of each zone in the file."""
    network = cluster.network
    if isinstance(network, NewVpc):
        for index, zone_id in enumerate(network.availability_zone_ids):
            yield f"network.availability_zone_ids[{index}]", zone_id
    else:
        for index, subnet in enumerate(network.private_subnets):
            yield (
                f"network.private_subnets[{index}].availability_zone_id",
                subnet.availability_zone_id,
            )
    for group in cluster.instance_groups:
        if group.availability_zone_id:
            yield group_path(group, "availability_zone_id"), group.availability_zone_id


def zones_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    if isinstance(cluster.network, NewVpc):
        path = "network.availability_zone_ids"
        key = ""
    else:
        path = "network.private_subnets"
        key = ".availability_zone_id"
    earlier = "each zone has one subnet for the cluster"
    fix = "remove it, or set another zone"
    yield from repetitions(path, zone_ids(cluster), earlier, fix, key=key)


def groups_that_share_jobs_are_in_one_zone(cluster: Cluster) -> Iterator[Violation]:
    """Require one zone for groups with EFA that a job may span.

    EFA's traffic does not cross zones (EC2 user guide, "EFA limitations"). Jobs span the groups of a Slurm
    partition, and on EKS those of an instance type.
    """
    first: dict[str, InstanceGroup] = {}
    for group in cluster.instance_groups:
        if not any(instance.num_efa for instance in known(group.types)) or not group.runs_jobs:
            continue
        partition = getattr(group, "partition", None)
        pool = partition or group.types_text
        earlier = first.setdefault(pool, group)
        zone_id = zone_of(cluster, group)
        if zone_id == zone_of(cluster, earlier) or zone_id not in zone_ids(cluster):
            continue
        shared = f"partition {partition}" if partition else group.types_text
        yield Violation(
            group_path(group, "availability_zone_id"),
            zone_id,
            f"jobs of {shared} may span {earlier.name} and {group.name}, and EFA does not cross zones",
            f"set {zone_of(cluster, earlier)}, or "
            + ("give the group its own partition" if partition else "use another instance type"),
        )


def lustre_over_efa_is_in_the_zone(cluster: Cluster) -> Iterator[Violation]:
    """Require the file system's zone for accelerated nodes that reach it over EFA.

    EFA does not cross zones. Other nodes read less, and mount over TCP.
    """
    if not (cluster.storage.lustre and cluster.storage.lustre.efa):
        return
    zones = zone_ids(cluster)
    for group in cluster.instance_groups:
        over_efa = [
            instance
            for instance in known(group.types)
            if instance.accelerator and instance.lustre_efa
        ]
        zone_id = zone_of(cluster, group)
        if over_efa and zone_id in zones and zone_id != zones[0]:
            yield Violation(
                group_path(group, "availability_zone_id"),
                zone_id,
                f"storage.lustre.efa requires nodes in the zone of FSx, {zones[0]}: EFA does not cross zones",
                f"set {zones[0]}, put {zone_id} first in the network, or set storage.lustre.efa to false",
            )


RULES = (
    region_is_supported,
    # Zone ids are of one region, so EC2 would find no such zone (EC2 user guide, "AZ IDs").
    zones_lie_in_the_region,
    # The services would answer with an invalid key only after the network is built.
    CommonRule(
        "storage.kms",
        # arn:aws:kms:<region>:<account>:key/<id>
        lambda cluster: ":" in (kms := cluster.storage.kms) and kms.split(":")[3] != cluster.region,
        "a key encrypts in its own region only, and the cluster is in {cluster.region}",
        "set the ARN of a key in {cluster.region}, or create",
    ),
    # The cluster has an SSM document with its name, and SSM's CreateDocument reserves these prefixes.
    CommonRule(
        "name",
        lambda cluster: cluster.name.startswith(("aws", "amazon", "amzn")),
        "AWS reserves names that begin with aws, amazon or amzn",
        "set a name with another prefix, such as esm2",
    ),
    # RDS and EKS count zones, and two subnets of one zone would look like two.
    zones_are_distinct,
    # Nodes start in subnets, and that zone would have none for them.
    CommonGroupRule(
        "availability_zone_id",
        lambda cluster, group: zone_of(cluster, group) not in zone_ids(cluster),
        lambda cluster, _: f"the network has {', '.join(dict.fromkeys(zone_ids(cluster)))}",
        "set one of these, or add the zone to the network",
    ),
    # NCCL would fall back to TCP or hang, at the price of the fast network.
    groups_that_share_jobs_are_in_one_zone,
    # Those mounts would fail on LNet, and the nodes would not finish their setup.
    lustre_over_efa_is_in_the_zone,
    # The setup of nodes reads S3, and HyperPod's agent would not report the node.
    CommonRule(
        "network.interface_endpoints",
        lambda cluster: has_closed_network(cluster) and not cluster.network.interface_endpoints,
        "without NAT, nodes reach AWS services only through endpoints",
        "set true, or network.internet to nat",
    ),
)
