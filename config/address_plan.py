"""Division of a new VPC's address range into subnets."""

from dataclasses import dataclass
from ipaddress import IPv4Network
from itertools import islice

from config.cluster import NewVpc

NUM_SMALL_SUBNETS = 3
"""Number of small subnets for which a new VPC reserves room: one for the NAT gateway, and two for Slurm's
database or the EKS control plane."""
SMALL_PREFIX = 28
"""Prefix of small subnets. The smallest subnet of a VPC has 16 addresses. A database needs three of them, and
a control plane six."""


@dataclass(frozen=True)
class AddressPlan:
    """Ranges of a VPC's subnets."""

    private: list[IPv4Network]
    """Large ranges, one per zone in the file's order."""
    nat: IPv4Network
    """Range of the NAT gateway."""
    small: list[IPv4Network]
    """Two ranges for Slurm's database or the EKS control plane."""


def address_plan(network: NewVpc) -> AddressPlan:
    """Divide ``network.cidr`` into large private ranges from its start and small ones from its end.

    Each range depends only on its own position, so a zone or a database that is added later moves none. A
    rule of the cluster file verifies that all ranges fit.
    """
    vpc = IPv4Network(network.cidr)
    num_zones = len(network.availability_zone_ids)
    prefix = network.private_prefix_length
    needed = num_zones * 2 ** (32 - prefix) + NUM_SMALL_SUBNETS * 2 ** (32 - SMALL_PREFIX)
    assert needed <= vpc.num_addresses
    private = list(islice(vpc.subnets(new_prefix=prefix), num_zones))
    last_first = list(vpc.subnets(new_prefix=SMALL_PREFIX))[: -NUM_SMALL_SUBNETS - 1 : -1]
    return AddressPlan(private, nat=last_first[0], small=last_first[1:])
