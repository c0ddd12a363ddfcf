"""Region, what must lie in it, and names that its services do not accept."""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Iterator

from config.cluster import Cluster, NewVpc
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.violation import Violation
from config.rules.paths import group_path


def region_is_supported(cluster: Cluster) -> Iterator[Violation]:
    """Another region is another place and price: none is proposed but where one letter is wrong."""
    if cluster.region in ZONE_ID_PREFIXES:
        return
    area = [region for region in ZONE_ID_PREFIXES if region[:3] == cluster.region[:3]]
    slips = [region for region in area if _one_letter_apart(region, cluster.region)]
    near = difflib.get_close_matches(cluster.region, area, n=3)
    yield Violation(
        "region",
        cluster.region,
        f"HyperPod is deployed in {', '.join(ZONE_ID_PREFIXES)}",
        f"set {slips[0]}"
        if len(slips) == 1
        else f"choose one of these; the most alike are {', '.join(near)}"
        if near
        else "choose one of these",
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
                f"set one of them, as {prefix}-az1",
            )


def key_lies_in_the_region(cluster: Cluster) -> Iterator[Violation]:
    kms = cluster.storage.kms
    # arn:aws:kms:<region>:<account>:key/<id>
    if kms.startswith("arn:") and kms.split(":")[3] != cluster.region:
        yield Violation(
            "storage.kms",
            kms,
            f"a key encrypts in its own region only, and the cluster is in {cluster.region}",
            f"set the ARN of a key in {cluster.region}, or create",
        )


def _one_letter_apart(one: str, other: str) -> bool:
    """Whether a letter that is changed, missing or too much makes the one of the other."""
    same = itertools.takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False))
    start = sum(1 for _ in same)
    return (
        one[start + 1 :] == other[start + 1 :]
        or one[start:] == other[start + 1 :]
        or one[start + 1 :] == other[start:]
    )


def _zones(cluster: Cluster) -> Iterator[tuple[str, str]]:
    network = cluster.network
    if isinstance(network, NewVpc):
        for index, zone_id in enumerate(network.availability_zone_ids):
            yield f"network.availability_zone_ids[{index}]", zone_id
    else:
        for index, subnet in enumerate(network.private_subnets):
            yield f"network.private_subnets[{index}].availability_zone_id", subnet.availability_zone_id
    for group in cluster.instance_groups:
        if group.availability_zone_id:
            yield group_path(group, "availability_zone_id"), group.availability_zone_id


def name_is_not_reserved(cluster: Cluster) -> Iterator[Violation]:
    """The cluster has an SSM document of its name; SSM's CreateDocument reserves these beginnings."""
    for prefix in ("aws", "amazon", "amzn"):
        if cluster.name.startswith(prefix):
            yield Violation(
                "name",
                cluster.name,
                "AWS keeps names that begin with aws, amazon or amzn to itself",
                "set a name with another beginning, as esm2",
            )


RULES = (region_is_supported, zones_lie_in_the_region, key_lies_in_the_region, name_is_not_reserved)
