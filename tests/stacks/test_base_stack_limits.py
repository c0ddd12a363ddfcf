"""AWS's limits on the size of policies and security groups of the network and storage stacks."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.rules import violations
from tests.stacks.base_templates import KINDS, clusters, templates

BUCKET_POLICY_BYTES = 20_480
KEY_POLICY_BYTES = 32_768
ENDPOINT_POLICY_BYTES = 20_480
RULES_PER_GROUP = 60


def size(document: Any) -> int:
    return len(json.dumps(document, separators=(",", ":")))


@pytest.mark.parametrize("name", ["largest", "slurm-p5", "closed"])
def test_quotas_of_policies_and_groups_are_far_away(name: str) -> None:
    for kind in KINDS:
        template = templates()[name, kind]
        for policy in template.properties("AWS::S3::BucketPolicy"):
            assert size(policy["PolicyDocument"]) < BUCKET_POLICY_BYTES / 2
        for key in template.properties("AWS::KMS::Key"):
            assert size(key["KeyPolicy"]) < KEY_POLICY_BYTES / 2
        for endpoint in template.properties("AWS::EC2::VPCEndpoint"):
            assert size(endpoint.get("PolicyDocument", {})) < ENDPOINT_POLICY_BYTES / 2
        for group in template.properties("AWS::EC2::SecurityGroup"):
            assert len(group.get("SecurityGroupEgress", [])) < RULES_PER_GROUP / 2


@pytest.mark.parametrize("name", list(clusters()))
def test_these_clusters_are_ones_that_a_file_may_ask_for(name: str) -> None:
    assert violations(clusters()[name]) == []
