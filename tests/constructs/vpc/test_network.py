"""Interface of the network for other stacks."""

from __future__ import annotations

import pytest
from aws_cdk import Stack

from constructs.vpc.network import Network
from tests.stacks.base_templates import DATABASE, EXISTING_VPC, cluster_of
from tests.stacks.synthesized import new_app


@pytest.fixture(scope="module")
def new() -> Network:
    return Network(
        Stack(new_app(), "New"), "Network", cluster=cluster_of(accounting_database=DATABASE)
    )


@pytest.fixture(scope="module")
def existing() -> Network:
    cluster = cluster_of(network=EXISTING_VPC, accounting_database=DATABASE)
    return Network(Stack(new_app(), "Existing"), "Network", cluster=cluster)


def test_the_first_zone_is_the_default(new: Network, existing: Network) -> None:
    assert new.subnet(None) is new.subnet("use1-az6")
    assert existing.subnet(None) is existing.subnet("use1-az6")


def test_zones_of_an_existing_vpc_have_the_subnets_that_the_file_gives(existing: Network) -> None:
    assert existing.subnet("use1-az6").subnet_id == "subnet-0123456789abcde00"
    assert existing.subnet("use1-az4").subnet_id == "subnet-0123456789abcde01"
    assert existing.vpc.vpc_id == "vpc-0123456789abcdef0"
    assert existing.vpc.vpc_cidr_block == "172.16.0.0/16"


def test_a_database_has_two_zones(new: Network, existing: Network) -> None:
    assert len(new.database_subnets) == 2
    assert not {id(subnet) for subnet in new.database_subnets} & {id(new.subnet(None))}
    # No others are known in a VPC that is there already.
    assert [subnet.subnet_id for subnet in existing.database_subnets] == [
        "subnet-0123456789abcde00",
        "subnet-0123456789abcde01",
    ]


def test_without_a_database_there_are_no_subnets_for_it() -> None:
    network = Network(Stack(new_app(), "None"), "Network", cluster=cluster_of())

    assert network.database_subnets == []
