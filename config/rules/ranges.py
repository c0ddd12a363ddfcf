"""Rules for address ranges of the VPC and its subnets."""

from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network

from config.cluster import Cluster, ExistingVpc, NewVpc
from config.reading.violation import Violation
from config.rules.rule import CommonRule

# /16 is the largest prefix, /28 the smallest (VPC user guide, "VPC CIDR blocks" and "Subnet CIDR blocks").
LARGEST_PREFIX, SMALLEST_PREFIX = 16, 28
# Ranges of RFC 1918 and RFC 6598, which the VPC user guide recommends or allows for private use.
_PRIVATE = tuple(map(IPv4Network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10")))
# Range of Docker's bridge on every node. Containers cannot reach other addresses in this range. The VPC user
# guide warns about it under "VPC CIDR blocks".
_DOCKER = IPv4Network("172.17.0.0/16")


def parsed(cidr: str, *, strict: bool = True) -> IPv4Network | None:
    """Return the range, or None if it is invalid; ``strict`` requires it to begin at its first address."""
    try:
        return IPv4Network(cidr, strict=strict)
    except ValueError:
        return None


def ranges_are_valid(cluster: Cluster) -> Iterator[Violation]:
    for path, cidr in _ranges(cluster):
        wrong, network = partial(Violation, path, cidr), parsed(cidr, strict=False)
        if network is None:
            yield wrong(
                "an IPv4 range with numbers up to 255 and a prefix up to /32 is allowed",
                "set one, for example 10.0.0.0/16",
            )
        elif not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
            yield wrong(
                f"AWS allows prefixes from /{LARGEST_PREFIX} to /{SMALLEST_PREFIX}",
                f"set {network.network_address}/"
                f"{LARGEST_PREFIX if network.prefixlen < LARGEST_PREFIX else SMALLEST_PREFIX}",
            )
        elif str(network) != cidr:
            yield wrong("a range begins at its first address", f"set {network}")


def _is_public(cluster: Cluster) -> bool:
    vpc = parsed(cluster.network.cidr)
    return vpc is not None and not any(vpc.subnet_of(block) for block in _PRIVATE)


def ranges_leave_docker_alone(cluster: Cluster) -> Iterator[Violation]:
    for path, cidr in _ranges(cluster):
        if path == "network.cidr" and isinstance(cluster.network, ExistingVpc):
            continue  # only the nodes' subnets matter
        network = parsed(cidr)
        if network and network.overlaps(_DOCKER):
            yield Violation(
                path,
                cidr,
                f"Docker on the nodes uses {_DOCKER} itself",
                "set another range, for example 10.0.0.0/16",
            )


def _ranges(cluster: Cluster) -> Iterator[tuple[str, str]]:
    yield "network.cidr", cluster.network.cidr
    if isinstance(cluster.network, ExistingVpc):
        for index, subnet in enumerate(cluster.network.private_subnets):
            yield f"network.private_subnets[{index}].cidr", subnet.cidr


RULES = (
    ranges_are_valid,
    CommonRule(
        "network.cidr",
        lambda cluster: isinstance(cluster.network, NewVpc) and _is_public(cluster),
        f"a range inside {', '.join(map(str, _PRIVATE))} is allowed",
        "set one, for example 10.0.0.0/16",
    ),
    ranges_leave_docker_alone,
)
