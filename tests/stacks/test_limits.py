"""The largest cluster that a file may ask for still fits the services' limits."""

from __future__ import annotations

import json

import pytest

from config import rules
from config.slurm_cluster import SlurmCluster
from stacks.assembly_checks import MAX_TEMPLATE_BYTES
from tests.stacks.intrinsics import Evaluator
from tests.stacks.shapes import create_cluster_shape, violations
from tests.stacks.synthesized import only, resources
from tests.stacks.variants import EVERY_OPTION, EXISTING_VPC, LARGEST, VARIANTS, variant_templates

# CloudFormation's quotas: resources and outputs in a template.
MAX_RESOURCES = 500
MAX_OUTPUTS = 200
# IAM's quota for all inline policies of a role, white space not counted.
MAX_INLINE_POLICY_CHARACTERS = 10_240
REGIONS = {
    "every_option": EVERY_OPTION.region,
    "largest": LARGEST.region,
    "existing_vpc": EXISTING_VPC.region,
}


@pytest.mark.parametrize("name", VARIANTS)
def test_templates_stay_below_cloudformation_s_limits(name: str) -> None:
    for template in variant_templates(name).values():
        assert len(template["Resources"]) <= MAX_RESOURCES
        assert len(template.get("Outputs", {})) <= MAX_OUTPUTS
        assert len(json.dumps(template, indent=1).encode()) <= MAX_TEMPLATE_BYTES


@pytest.mark.parametrize("name", VARIANTS)
def test_cluster_stays_below_sagemaker_s_limits(name: str) -> None:
    stacks = variant_templates(name)
    cluster = Evaluator(stacks, REGIONS[name])(
        only(stacks["SlurmHyperPodStack"], "AWS::SageMaker::Cluster")
    )
    assert list(violations(create_cluster_shape(), cluster)) == []


@pytest.mark.parametrize(
    "cluster", [EVERY_OPTION, LARGEST, EXISTING_VPC], ids=lambda cluster: cluster.name
)
def test_a_file_may_ask_for_them(cluster: SlurmCluster) -> None:
    assert rules.violations(cluster) == []


def test_largest_is_as_large_as_allowed() -> None:
    assert len(LARGEST.instance_groups) == 100
    assert len(LARGEST.name) == 24
    assert max(len(group.name) for group in LARGEST.instance_groups) == 63


@pytest.mark.parametrize("name", VARIANTS)
def test_role_policies_stay_below_iam_s_limit(name: str) -> None:
    stacks = variant_templates(name)
    evaluate = Evaluator(stacks, REGIONS[name])
    for role in resources(stacks["SlurmHyperPodStack"], "AWS::IAM::Role").values():
        policies = evaluate(
            [policy["PolicyDocument"] for policy in role["Properties"].get("Policies", [])]
        )
        assert sum(len(json.dumps(policy, separators=(",", ":"))) for policy in policies) <= (
            MAX_INLINE_POLICY_CHARACTERS
        )


@pytest.mark.parametrize("name", VARIANTS)
def test_names_are_as_long_as_their_services_allow(name: str) -> None:
    stacks = variant_templates(name)
    evaluate = Evaluator(stacks, REGIONS[name])
    longest = {
        "AWS::ECR::Repository": ("SlurmStorageStack", "RepositoryName", 256),
        "AWS::SSM::Document": ("SlurmHyperPodStack", "Name", 128),
        "AWS::APS::Workspace": ("SlurmStorageStack", "Alias", 100),
    }
    for kind, (stack, key, limit) in longest.items():
        assert len(evaluate(only(stacks[stack], kind)[key])) <= limit
    for bucket in resources(stacks["SlurmStorageStack"], "AWS::S3::Bucket").values():
        assert len(evaluate(bucket["Properties"].get("BucketName", ""))) <= 63
