"""List of what still bills when the nodes are gone."""

from __future__ import annotations

from typing import Any

import pytest

from stacks.remaining_costs import remaining_costs
from tests.stacks.synthesized import CLUSTER_FILES, load, resources, templates

BILLED = {
    "AWS::FSx::FileSystem": "FSx",
    "AWS::S3::Bucket": "S3 buckets",
    "AWS::ECR::Repository": "image repository",
    "AWS::APS::Workspace": "Prometheus workspace",
    "AWS::EC2::NatGateway": "NAT gateway",
    "AWS::RDS::DBInstance": "accounting database",
    "AWS::KMS::Key": "KMS key",
}


def billed(file: str) -> dict[str, dict[str, Any]]:
    stacks = templates(file)
    return stacks["SlurmNetworkStack"]["Resources"] | stacks["SlurmStorageStack"]["Resources"]


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_names_what_the_other_stacks_hold(file: str) -> None:
    said = ", ".join(remaining_costs(load(file)))
    types = {resource["Type"] for resource in billed(file).values()}
    for kind, words in BILLED.items():
        assert (words in said) == (kind in types), kind
    interfaces = [
        found
        for found in resources(
            templates(file)["SlurmNetworkStack"], "AWS::EC2::VPCEndpoint"
        ).values()
        if found["Properties"].get("VpcEndpointType") == "Interface"
    ]
    assert ("interface endpoints" in said) == bool(interfaces)
