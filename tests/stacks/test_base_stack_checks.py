"""What AWS, cdk-nag and cfn-lint would say of the network and storage stacks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from aws_cdk import App, Stack, Validations
from aws_cdk import aws_s3 as s3
from cdk_nag import AwsSolutionsChecks
from cfnlint.api import ManualArgs, lint

from config.rules import violations
from tests.stacks.base_templates import KINDS, add_base_stacks, clusters, new_app, templates

BUCKET_POLICY_BYTES, KEY_POLICY_BYTES, ENDPOINT_POLICY_BYTES = 20_480, 32_768, 20_480
RULES_PER_GROUP = 60


@pytest.mark.parametrize("name", ["closed", "existing", "destroyed"])
def test_cfn_lint_has_nothing_to_say(name: str) -> None:
    """What is shipped goes through its command line, in test_static_checks."""
    region = clusters()[name].region
    for kind in KINDS:
        found = lint(json.dumps(templates()[name, kind].body), config=ManualArgs(regions=[region]))
        assert [str(match) for match in found] == []


def test_cfn_lint_would_have_something_to_say() -> None:
    body = json.loads(json.dumps(templates()["slurm", "network"].body))
    (name,) = templates()["slurm", "network"].resources("AWS::EC2::VPC")
    body["Resources"][name]["Properties"]["CidrBlok"] = "10.0.0.0/16"

    assert lint(json.dumps(body), config=ManualArgs(regions=["us-west-2"]))


def synthesize_with_nag(app: App) -> None:
    """Raises RuntimeError when a finding is not acknowledged."""
    Validations.of(app).add_plugins(AwsSolutionsChecks(app, verbose=True))
    app.synth()


def test_cdk_nag_has_nothing_to_say() -> None:
    app = new_app()
    for name, cluster in clusters().items():
        add_base_stacks(app, name, cluster)

    synthesize_with_nag(app)


def test_cdk_nag_would_have_something_to_say() -> None:
    app = new_app()
    s3.Bucket(Stack(app, "Open"), "Bucket")

    with pytest.raises(RuntimeError, match="Validation"):
        synthesize_with_nag(app)


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
