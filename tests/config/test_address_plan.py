from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations

import pytest

from config.address_plan import AddressPlan, address_plan
from config.cluster import NewVpc
from config.rules.network import new_subnets_fit
from tests.stacks.base_templates import cluster_of

ZONES = ["use1-az6", "use1-az4", "use1-az2"]


def plan(num_zones: int, cidr: str = "10.0.0.0/16", private_prefix_length: int = 18) -> AddressPlan:
    return address_plan(
        NewVpc(
            cidr=cidr,
            availability_zone_ids=ZONES[:num_zones],
            private_prefix_length=private_prefix_length,
        )
    )


@pytest.mark.parametrize(
    ("num_zones", "cidr", "prefix"),
    [
        (1, "10.0.0.0/16", 17),
        (3, "10.0.0.0/16", 18),
        (2, "172.20.0.0/20", 22),
        (3, "10.9.0.0/16", 26),
        (1, "192.168.4.0/24", 25),
        (3, "10.0.0.0/24", 26),  # 192 + 48 of 256: the tightest that fits
    ],
)
def test_subnets_lie_in_the_vpc_and_apart(num_zones: int, cidr: str, prefix: int) -> None:
    found = plan(num_zones, cidr, prefix)

    subnets = [*found.private, found.nat, *found.small]
    assert all(subnet.subnet_of(IPv4Network(cidr)) for subnet in subnets)
    assert not any(one.overlaps(other) for one, other in combinations(subnets, 2))
    assert [subnet.prefixlen for subnet in subnets] == [prefix] * num_zones + [28] * 3


def test_a_zone_added_at_the_end_moves_nothing() -> None:
    one, two, three = plan(1), plan(2), plan(3)

    assert three.private[:2] == two.private
    assert two.private[:1] == one.private
    assert one.nat == two.nat == three.nat
    assert one.small == two.small == three.small


def test_the_default_is_what_the_file_says() -> None:
    """18 holds 16,379 addresses: 16,384 less the five that AWS keeps."""
    [private] = plan(1).private

    assert private == IPv4Network("10.0.0.0/18")
    assert private.num_addresses - 5 == 16_379


@pytest.mark.parametrize("num_zones", [1, 2, 3])
@pytest.mark.parametrize("cidr", ["10.0.0.0/16", "10.0.0.0/20", "10.0.0.0/24", "10.0.0.0/26"])
def test_what_the_rules_let_through_fits_and_nothing_more_would(num_zones: int, cidr: str) -> None:
    """The rule and the plan count the small subnets alike."""
    for prefix in range(17, 27):
        cluster = cluster_of(
            network={
                "vpc": "new",
                "cidr": cidr,
                "availability_zone_ids": ZONES[:num_zones],
                "private_prefix_length": prefix,
            }
        )
        if list(new_subnets_fit(cluster)):
            with pytest.raises(AssertionError):
                plan(num_zones, cidr, prefix)
        else:
            assert plan(num_zones, cidr, prefix).nat.subnet_of(IPv4Network(cidr))
