"""Division of a new VPC's address range into subnets."""

from dataclasses import dataclass
from ipaddress import IPv4Network

from config.cluster import NewVpc

NUM_SMALL_SUBNETS = 3
"""Number of small subnets for which a new VPC reserves room: one for the NAT gateway, and two for Slurm's
database or the EKS control plane."""
SMALL_PREFIX = 28
"""Prefix of small subnets. The smallest subnet of a VPC has 16 addresses. A database needs three of them, and
a control plane six."""
QUARTER = 2
"""Bits by which the prefix of a quarter of a range is longer."""


@dataclass(frozen=True)
class AddressPlan:
    """Ranges of a VPC's subnets."""

    private: list[IPv4Network]
    """Large ranges, one per zone in the file's order. The first is the largest, or as large as the others."""
    nat: IPv4Network
    """Range of the NAT gateway."""
    small: list[IPv4Network]
    """Two ranges for Slurm's database or the EKS control plane."""


def private_prefixes(network: NewVpc) -> list[int]:
    """Return the prefix of each zone's private subnet, in the file's order.

    All zones have the prefix of the file, unless that is half of the VPC. Then the first zone, which has the
    file systems and most nodes, has that half. Each other zone has a quarter of its size.
    """
    first = network.private_prefix_length
    is_half = first == IPv4Network(network.cidr).prefixlen + 1
    others = first + QUARTER if is_half else first
    return [first] + [others] * (len(network.availability_zone_ids) - 1)


def plan_fits(network: NewVpc) -> bool:
    """Return whether all subnets fit into the VPC, and are as large as AWS requires."""
    prefixes = [*private_prefixes(network), *[SMALL_PREFIX] * NUM_SMALL_SUBNETS]
    needed = sum(2 ** (32 - prefix) for prefix in prefixes)
    return max(prefixes) <= SMALL_PREFIX and needed <= IPv4Network(network.cidr).num_addresses


def address_plan(network: NewVpc) -> AddressPlan:
    """Divide ``network.cidr`` into large private ranges from its start and small ones from its end.

    Each range depends only on its own position, so a zone or a database that is added later moves none. A
    rule of the cluster file verifies that all ranges fit.
    """
    assert plan_fits(network)
    vpc = IPv4Network(network.cidr)
    private: list[IPv4Network] = []
    start = vpc.network_address
    for prefix in private_prefixes(network):
        private.append(IPv4Network((start, prefix)))
        start = private[-1].broadcast_address + 1
    last_first = list(vpc.subnets(new_prefix=SMALL_PREFIX))[: -NUM_SMALL_SUBNETS - 1 : -1]
    return AddressPlan(private, nat=last_first[0], small=last_first[1:])
