"""Rules for address ranges of the VPC and its subnets, and for the addresses that they hold."""

from collections import Counter
from collections.abc import Iterator
from functools import partial
from ipaddress import IPv4Network
from itertools import combinations
from typing import Literal

from config.address_demand import RESERVED_ADDRESSES, address_takers
from config.address_plan import NUM_SMALL_SUBNETS, plan_fits, private_prefixes
from config.cluster import Cluster, ExistingVpc, NewVpc, zone_ids
from config.facts.endpoint_services import endpoint_services
from config.reading.violation import Violation
from config.rules.rule import CommonRule

LARGEST_PREFIX = 16
"""Prefix of the largest VPC or subnet (VPC user guide, "VPC CIDR blocks" and "Subnet CIDR blocks")."""
SMALLEST_PREFIX = 28
"""Prefix of the smallest VPC or subnet, from the same pages."""
_PRIVATE = (
    IPv4Network("10.0.0.0/8"),
    IPv4Network("172.16.0.0/12"),
    IPv4Network("192.168.0.0/16"),
    IPv4Network("100.64.0.0/10"),
)
"""Ranges of RFC 1918 and RFC 6598, which the VPC user guide recommends or allows for private use."""
_DOCKER = IPv4Network("172.17.0.0/16")
"""Range of Docker's bridge on every node. Containers cannot reach other addresses in this range. The VPC user
guide warns about it under "VPC CIDR blocks"."""


def parsed(cidr: str, *, strict: bool = True) -> IPv4Network | None:
    """Return the range, or None if it is invalid; ``strict`` requires it to begin at its first address."""
    try:
        return IPv4Network(cidr, strict=strict)
    except ValueError:
        return None


def ranges_are_valid(cluster: Cluster) -> Iterator[Violation]:
    for path, cidr in _ranges(cluster):
        wrong = partial(Violation, path, cidr)
        network = parsed(cidr, strict=False)
        if network is None:
            yield wrong(
                "an IPv4 range with numbers up to 255 and a prefix up to /32 is allowed",
                "set one, for example 10.0.0.0/16",
            )
        elif not LARGEST_PREFIX <= network.prefixlen <= SMALLEST_PREFIX:
            nearest = LARGEST_PREFIX if network.prefixlen < LARGEST_PREFIX else SMALLEST_PREFIX
            yield wrong(
                f"AWS allows prefixes from /{LARGEST_PREFIX} to /{SMALLEST_PREFIX}",
                f"set {network.network_address}/{nearest}",
            )
        elif str(network) != cidr:
            yield wrong("a range begins at its first address", f"set {network}")


def _is_public(cidr: str) -> bool:
    vpc = parsed(cidr)
    return vpc is not None and not any(vpc.subnet_of(block) for block in _PRIVATE)


_VPC_RANGES = ("network.cidr", "network.other_cidrs")


def ranges_leave_docker_alone(cluster: Cluster) -> Iterator[Violation]:
    for path, cidr in _ranges(cluster):
        if path.startswith(_VPC_RANGES) and isinstance(cluster.network, ExistingVpc):
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
    """Yield the path and the value of each address range of the network."""
    yield "network.cidr", cluster.network.cidr
    if isinstance(cluster.network, ExistingVpc):
        for index, cidr in enumerate(cluster.network.other_cidrs):
            yield f"network.other_cidrs[{index}]", cidr
        for index, subnet in enumerate(cluster.network.private_subnets):
            yield f"network.private_subnets[{index}].cidr", subnet.cidr


# Bounds of private_prefix_length.
_LARGEST_PRIVATE_PREFIX = 17
_SMALLEST_PRIVATE_PREFIX = 26


def _with_prefix(network: NewVpc, prefix: int) -> NewVpc:
    return network.model_copy(update={"private_prefix_length": prefix})


def _fitting_prefixes(network: NewVpc) -> list[int]:
    """Return the prefixes with which the subnets fit into the VPC, the largest subnets first."""
    prefixes = range(_LARGEST_PRIVATE_PREFIX, _SMALLEST_PRIVATE_PREFIX + 1)
    return [prefix for prefix in prefixes if plan_fits(_with_prefix(network, prefix))]


def new_subnets_fit(cluster: Cluster) -> Iterator[Violation]:
    network = cluster.network
    if not isinstance(network, NewVpc) or parsed(network.cidr) is None:
        return
    if plan_fits(network):
        return
    subnets = ", ".join(
        f"{number} of /{prefix}" for prefix, number in Counter(private_prefixes(network)).items()
    )
    fitting = _fitting_prefixes(network)
    yield Violation(
        "network.private_prefix_length",
        network.private_prefix_length,
        f"the private subnets, {subnets}, and {NUM_SMALL_SUBNETS} small ones do not fit into {network.cidr}",
        f"set {fitting[0]}, or a larger network.cidr" if fitting else "set a larger network.cidr",
    )


def subnets_hold_the_addresses(cluster: Cluster) -> Iterator[Violation]:
    network = cluster.network
    takers = address_takers(cluster)
    if isinstance(network, NewVpc):
        if parsed(network.cidr) is not None:
            yield from _new_subnets_hold(cluster, network, takers)
        return
    for index, subnet in enumerate(network.private_subnets):
        path = f"network.private_subnets[{index}].cidr"
        cidr = parsed(subnet.cidr)
        taken = takers.pop(subnet.availability_zone_id, Counter())
        if cidr and _needed(taken) > cidr.num_addresses:
            allowed = _too_small(subnet.availability_zone_id, taken, cidr.num_addresses)
            fix = _fix(taken, "use a subnet of /{}", LARGEST_PREFIX)
            yield Violation(path, subnet.cidr, allowed, fix)


def _new_subnets_hold(
    cluster: Cluster, network: NewVpc, takers: dict[str, Counter[str]]
) -> Iterator[Violation]:
    """Report the zone that lacks the most addresses, with a prefix that holds all or the most nodes."""

    def sizes(prefix: int) -> dict[str, int]:
        prefixes = private_prefixes(_with_prefix(network, prefix))
        # A zone that is listed twice is refused elsewhere.
        return dict(zip(zone_ids(cluster), map(_size, prefixes), strict=True))

    def missing(prefix: int) -> dict[str, int]:
        return {zone: _needed(takers[zone]) - size for zone, size in sizes(prefix).items()}

    got = network.private_prefix_length
    lacks = missing(got)
    zone_id = max(lacks, key=lambda zone: lacks[zone])
    if lacks[zone_id] <= 0:
        return
    taken = takers[zone_id]
    allowed = _too_small(zone_id, taken, sizes(got)[zone_id])
    [(place, num_addresses)] = taken.most_common(1)
    fitting = _fitting_prefixes(network) or [got]
    holding = [prefix for prefix in fitting if max(missing(prefix).values()) <= 0]
    if holding:
        fix = f"set {holding[-1]}, or reduce {place}, which takes {num_addresses}"
    else:
        best = max(fitting, key=lambda prefix: sizes(prefix)[zone_id])
        fix = _most_that_fit(cluster, taken, sizes(best)[zone_id], "" if best == got else best)
    yield Violation("network.private_prefix_length", got, allowed, fix)


def _most_that_fit(
    cluster: Cluster, taken: Counter[str], size: int, prefix: int | Literal[""]
) -> str:
    """Return a fix for a zone whose addresses no subnet of this VPC holds: the most nodes, or another VPC.

    Args:
        cluster: cluster file.
        taken: addresses needed in the zone, by the place in the file that needs them.
        size: addresses of the zone's largest subnet.
        prefix: value of private_prefix_length with that subnet, if it differs from the file's.
    """
    [(place, num_addresses)] = taken.most_common(1)
    fix = f"reduce {place}, which takes {num_addresses}"
    places = {
        f"instance_groups[{group.name}].{field}": getattr(group, field, 0)
        for group in cluster.instance_groups
        for field in ("num_instances", "max_instances")
    }
    if num_nodes := places.get(place):
        per_node = num_addresses // num_nodes
        most = (size - (_needed(taken) - num_addresses)) // per_node
        if most > 0:
            setting = f" and set private_prefix_length: {prefix}" if prefix else ""
            fix = f"reduce {place} to at most {most}{setting}"
    if _needed(taken) <= _size(LARGEST_PREFIX):
        fix += f", or use vpc: existing with a subnet of /{_prefix_for(taken)}"
    return fix


def existing_subnets_are_distinct(cluster: Cluster) -> Iterator[Violation]:
    """Refuse overlaps. `make preflight` compares the ranges with the VPC's, which may have 50 of them."""
    if not isinstance(cluster.network, ExistingVpc):
        return
    subnets = list(enumerate(cluster.network.private_subnets))
    for (_, one), (index, other) in combinations(subnets, 2):
        path = f"network.private_subnets[{index}]"
        first = parsed(one.cidr)
        second = parsed(other.cidr)
        if one.subnet_id == other.subnet_id:
            yield Violation(
                f"{path}.subnet_id", other.subnet_id, "it is already listed", "remove it"
            )
        elif first and second and first.overlaps(second):
            yield Violation(
                f"{path}.cidr",
                other.cidr,
                f"it overlaps with {one.cidr} of {one.subnet_id}",
                "set the range that `aws ec2 describe-subnets` prints",
            )


def endpoint_zones_are_known(cluster: Cluster) -> Iterator[Violation]:
    services = list(endpoint_services(cluster).values())
    zones = zone_ids(cluster)
    for service, zone in cluster.network.endpoint_zones.items():
        path = f"network.endpoint_zones[{service}]"
        if service not in services:
            allowed = f"the cluster has no such endpoint; it has {', '.join(sorted(services))}"
            yield Violation(path, zone, allowed, "set one of these, or remove it")
        elif zone not in zones:
            fix = "set one of these, or add the zone to the network"
            yield Violation(path, zone, f"the network has {', '.join(zones)}", fix)


def _size(prefix: int) -> int:
    return 2 ** (32 - prefix)


def _needed(taken: Counter[str]) -> int:
    return taken.total() + RESERVED_ADDRESSES


def _prefix_for(taken: Counter[str]) -> int:
    """Return the prefix of the smallest subnet that holds the addresses."""
    return 32 - (_needed(taken) - 1).bit_length()


def _too_small(zone_id: str, taken: Counter[str], size: int) -> str:
    return (
        f"nodes, file systems and endpoints in {zone_id} need {_needed(taken)} addresses"
        f" including the {RESERVED_ADDRESSES} that AWS reserves, and its subnet has {size}"
    )


def _fix(taken: Counter[str], larger: str, largest_prefix: int) -> str:
    """Return a fix: a prefix that holds the addresses, if one is allowed, and the largest use to reduce.

    Args:
        taken: addresses needed in the zone, by the place in the file that needs them.
        larger: advice to use a larger subnet; its prefix replaces ``{}``.
        largest_prefix: prefix of the largest subnet that is allowed.
    """
    prefix = _prefix_for(taken)
    [(place, num_addresses)] = taken.most_common(1)
    less = f"reduce {place}, which takes {num_addresses}"
    if prefix < largest_prefix:
        return less
    return f"{larger.format(prefix)}, or {less}"


RULES = (
    # EC2 refuses such ranges (VPC user guide, "VPC CIDR blocks" and "Subnet CIDR blocks").
    ranges_are_valid,
    # Public addresses inside the VPC would hide the machines on the internet that own them.
    CommonRule(
        "network.cidr",
        lambda cluster: isinstance(cluster.network, NewVpc) and _is_public(cluster.network.cidr),
        f"a range inside {', '.join(map(str, _PRIVATE))} is allowed",
        "set one, for example 10.0.0.0/16",
    ),
    # Containers would not reach nodes in that range, because the bridge takes their packets.
    ranges_leave_docker_alone,
    # CloudFormation would fail at the last subnet, because EC2 refuses overlaps.
    new_subnets_fit,
    # The last nodes would not start: EC2 answers InsufficientFreeAddressesInSubnet.
    subnets_hold_the_addresses,
    existing_subnets_are_distinct,
    # An entry that applies to nothing is a misspelt service, whose endpoint then fails.
    endpoint_zones_are_known,
)
