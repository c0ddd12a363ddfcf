"""What EKS's control plane asks of the network, and from where it may be reached."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Network

from config.eks_cluster import EksCluster
from config.reading.violation import Violation
from config.rules.ranges import parsed
from config.zones import ZONES_WITHOUT_CONTROL_PLANE, control_plane_zones, zone_ids

_PATH = "kubernetes.public_access_cidrs"
# A range for examples (RFC 5737), which are taken for what they are.
_EXAMPLE = "203.0.113.0/24"


def control_plane_has_two_zones(cluster: EksCluster) -> Iterator[Violation]:
    zones = list(dict.fromkeys(zone_ids(cluster)))
    if len(control_plane_zones(cluster)) < 2:
        without = [zone for zone in zones if zone in ZONES_WITHOUT_CONTROL_PLANE]
        yield Violation(
            "network",
            f"zones {', '.join(zones)}" if len(zones) > 1 else f"{zones[0]} only",
            "EKS's control plane needs two zones"
            + (f", and is never in {', '.join(sorted(ZONES_WITHOUT_CONTROL_PLANE))}" if without else ""),
            "add a zone to the network; nodes stay in the first",
        )


def public_endpoint_has_ranges(cluster: EksCluster) -> Iterator[Violation]:
    """Without ranges EKS opens it to the whole internet."""
    kubernetes = cluster.kubernetes
    if kubernetes.endpoint == "public_and_private" and not kubernetes.public_access_cidrs:
        yield Violation(
            _PATH,
            None,
            "a public endpoint is for given ranges only",
            f"set those you come from, as [{_EXAMPLE}], or kubernetes.endpoint to private",
        )
    if kubernetes.endpoint == "private" and kubernetes.public_access_cidrs:
        yield Violation(
            _PATH,
            kubernetes.public_access_cidrs,
            "a private endpoint is reached from the VPC alone",
            "remove them, or set kubernetes.endpoint to public_and_private",
        )


def public_ranges_are_public(cluster: EksCluster) -> Iterator[Violation]:
    """EKS takes no reserved ranges, and those of the VPC reach the endpoint anyway."""
    for index, cidr in enumerate(cluster.kubernetes.public_access_cidrs):
        path, network = f"{_PATH}[{index}]", parsed(cidr, strict=False)
        if network is None:
            yield Violation(
                path,
                cidr,
                "an IPv4 range with numbers up to 255 and a prefix up to /32 is allowed",
                f"set one, as {_EXAMPLE}",
            )
        elif network == IPv4Network("0.0.0.0/0"):
            yield Violation(
                path,
                cidr,
                "it is the whole internet, from which anyone may try to reach the API server",
                f"set the ranges that you come from, as {_EXAMPLE}",
            )
        elif str(network) != cidr:
            yield Violation(path, cidr, "a range begins at its first address", f"set {network}")
        elif not network.is_global and not network.subnet_of(IPv4Network(_EXAMPLE)):
            yield Violation(
                path,
                cidr,
                "a public range is allowed; private ones reach the endpoint by the VPC or not at all",
                "set the public range that you come from, or remove it",
            )


def log_kinds_are_distinct(cluster: EksCluster) -> Iterator[Violation]:
    kinds = cluster.kubernetes.control_plane_logs
    if len(set(kinds)) < len(kinds):
        yield Violation(
            "kubernetes.control_plane_logs", kinds, "each kind is listed once", "remove the repetition"
        )


RULES = (
    control_plane_has_two_zones,
    public_endpoint_has_ranges,
    public_ranges_are_public,
    log_kinds_are_distinct,
)
