"""What the rules take for granted of the stacks is what the stacks do."""

from __future__ import annotations

import json
from pathlib import Path

from config.address_demand import NUM_ENDPOINTS
from config.cluster import SlurmCluster
from config.rules import subnets
from config.rules.tags import MAX_TAGS, OUR_TAGS
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


def test_users_leave_room_for_our_tags() -> None:
    """The shipped files have no tags of their own, so the templates show ours and the CDK's."""
    templates = [json.loads(path.read_text()) for path in Path("tests/golden").glob("*/*.json")]
    numbers = [
        len(resource.get("Properties", {}).get("Tags", ()))
        for template in templates
        for resource in template["Resources"].values()
    ]
    assert 0 < max(numbers) <= 50 - MAX_TAGS
