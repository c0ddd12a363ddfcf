"""What the rules take for granted of the stacks is what the stacks do."""

from __future__ import annotations

from config.address_demand import NUM_ENDPOINTS
from config.cluster import SlurmCluster
from config.rules import subnets
from config.rules.tags import OUR_TAGS
from constructs import address_plan
from constructs.interface_endpoints import PROMETHEUS, SERVICES
from stacks.tags import tags_of
from tests.config.cluster_documents import document


def test_endpoints_take_as_many_addresses_as_there_are() -> None:
    assert len(SERVICES) == NUM_ENDPOINTS
    assert len(PROMETHEUS) == 1


def test_a_new_vpc_keeps_the_same_room() -> None:
    assert address_plan.NUM_SMALL == subnets.NUM_SMALL_SUBNETS
    assert address_plan.SMALL_PREFIX == subnets.SMALL_PREFIX


def test_our_tags_are_kept_from_users() -> None:
    cluster = SlurmCluster.model_validate(document("small"))
    assert set(tags_of(cluster)) <= set(OUR_TAGS)
