"""How a new VPC's addresses are divided: large private subnets from below, small ones from above.

Every subnet's range depends on its own position only, so a zone or a database that is added later moves none.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network

from config.cluster import NewVpc
from config.rules.subnets import NUM_SMALL_SUBNETS, SMALL_PREFIX


@dataclass(frozen=True)
class AddressPlan:
    private: tuple[IPv4Network, ...]
    """One per zone, in the file's order."""
    nat: IPv4Network
    database: tuple[IPv4Network, IPv4Network]
    """Of Slurm's database, or of EKS's control plane."""


def address_plan(network: NewVpc) -> AddressPlan:
    """Divide ``network.cidr``. That all fits is a rule of the cluster file."""
    vpc = IPv4Network(network.cidr)
    num_zones = len(network.availability_zone_ids)
    size_private = 2 ** (32 - network.private_prefix_length)
    size_small = 2 ** (32 - SMALL_PREFIX)
    assert num_zones * size_private + NUM_SMALL_SUBNETS * size_small <= vpc.num_addresses
    first, end = int(vpc.network_address), int(vpc.network_address) + vpc.num_addresses
    private = tuple(
        IPv4Network((first + i * size_private, network.private_prefix_length)) for i in range(num_zones)
    )
    nat, *database = (
        IPv4Network((end - (i + 1) * size_small, SMALL_PREFIX)) for i in range(NUM_SMALL_SUBNETS)
    )
    return AddressPlan(private=private, nat=nat, database=(database[0], database[1]))
