from __future__ import annotations

from ipaddress import IPv4Network
from itertools import combinations, islice

import pytest

from config.address_plan import AddressPlan, address_plan
from config.cluster import NewVpc
from config.rules.network import new_subnets_fit, subnets_hold_the_addresses
from config.slurm_cluster import SlurmCluster
from tests.config.cluster_documents import document
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


@pytest.mark.parametrize("num_zones", [2, 3])
def test_half_of_the_vpc_is_the_first_zones_and_moves_nothing(num_zones: int) -> None:
    """One zone of /17 was the most before, and stays in its place when others come."""
    found = plan(num_zones, private_prefix_length=17)
    others = [IPv4Network("10.0.128.0/19"), IPv4Network("10.0.160.0/19")]
    assert found.private == [IPv4Network("10.0.0.0/17"), *others[: num_zones - 1]]
    assert plan(1, private_prefix_length=17).private == found.private[:1]
    assert found.nat == plan(1, private_prefix_length=17).nat


@pytest.mark.parametrize("length", range(16, 27))
def test_subnets_of_deployed_clusters_stay(length: int) -> None:
    """Former plan: one range after the other, all of one size."""
    for prefix in range(17, 27):
        for num_zones in (1, 2, 3):
            needed = num_zones * 2 ** (32 - prefix) + 3 * 16
            if prefix <= length or needed > 2 ** (32 - length):
                continue
            cidr = f"10.0.0.0/{length}"
            former = list(islice(IPv4Network(cidr).subnets(new_prefix=prefix), num_zones))
            assert plan(num_zones, cidr, prefix).private == former


def test_a_thousand_p5_nodes_fit_into_a_new_vpc() -> None:
    """With one setting that the message names; above 1,000, one message has the most and a way on."""

    def said(num_nodes: int, prefix: int) -> list[str]:
        changes = {
            "instance_groups[p5].num_instances": num_nodes,
            "network.private_prefix_length": prefix,
            "network.availability_zone_ids": ["use1-az6", "use1-az4"],
        }
        cluster = SlurmCluster.model_validate(document("p5", changes))
        found = [*new_subnets_fit(cluster), *subnets_hold_the_addresses(cluster)]
        return [violation.fix for violation in found]

    assert said(500, 18) == []
    [fix] = said(1000, 18)
    assert fix.startswith("set 17, or reduce ")
    assert said(1000, 17) == []
    [fix] = said(1500, 17)
    assert fix == (
        "reduce instance_groups[p5].num_instances to at most 1023, or use vpc: existing with a subnet of /16"
    )
    assert said(1023, 17) == []


def test_a_zone_added_at_the_end_moves_nothing() -> None:
    one = plan(1)
    two = plan(2)
    three = plan(3)

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
