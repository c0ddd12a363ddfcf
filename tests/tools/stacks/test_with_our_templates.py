"""The tools on the templates that this repository really makes."""

from __future__ import annotations

import json
from collections.abc import Callable
from copy import deepcopy
from typing import Any

import pytest

from config import resource_names
from config.resource_names import construct_ids, stack_names, wanted_stacks
from tests.stacks.synthesized import STACKS, Templates, assembly, only, resources, templates
from tests.tools.accounts import OTHER_ZONE
from tests.tools.answering_aws import ACCOUNT
from tests.tools.cluster_files import shipped
from tools.stacks.diff import Pair, find_precious_losses
from tools.stacks.replacements import KEPT
from tools.stacks.stack_contents import StackResource
from tools.stacks.teardown_plan import HOLDING, bill_of, deletion_of

NETWORK, STORAGE, HYPERPOD = STACKS
FILES = {"slurm": "clusters/slurm.yaml", "slurm-p5": "clusters/slurm-p5.yaml"}


@pytest.fixture(params=FILES)
def name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def plain(value: Any, region: str) -> str:
    """A name with the account and region that a deployment would put in."""
    if isinstance(value, str):
        return value
    parts = value["Fn::Join"][1]
    known = {"AWS::AccountId": ACCOUNT, "AWS::Region": region}
    return "".join(part if isinstance(part, str) else known[part["Ref"]] for part in parts)


def test_stack_names(name: str) -> None:
    cluster = shipped(name)
    manifest = json.loads((assembly(FILES[name]) / "manifest.json").read_text())
    made = {
        construct_id: artifact["properties"]["stackName"]
        for construct_id, artifact in manifest["artifacts"].items()
        if artifact["type"] == "aws:cloudformation:stack"
    }
    ids = construct_ids(cluster)
    names = stack_names(cluster)
    assert made == dict(
        zip(wanted_stacks(cluster, ids), wanted_stacks(cluster, names), strict=True)
    )


def test_resource_names(name: str) -> None:
    cluster = shipped(name)
    made = templates(FILES[name])
    buckets = resources(made[STORAGE], "AWS::S3::Bucket").values()
    named = [
        bucket["Properties"]["BucketName"]
        for bucket in buckets
        if "BucketName" in bucket["Properties"]
    ]
    assert [plain(n, cluster.region) for n in named] == [
        resource_names.artifact_bucket(cluster, ACCOUNT)
    ]
    assert (
        only(made[HYPERPOD], "AWS::SSM::Document")["Name"]
        == resource_names.ResourceNames(cluster).shell_document
    )
    repository = only(made[STORAGE], "AWS::ECR::Repository")
    assert repository["RepositoryName"] == resource_names.ResourceNames(cluster).image_repository
    logs = {
        group["Properties"].get("LogGroupName")
        for stack in (STORAGE, HYPERPOD)
        for group in resources(made[stack], "AWS::Logs::LogGroup").values()
    }
    assert resource_names.ResourceNames(cluster).lustre_log_group in logs
    assert resource_names.ResourceNames(cluster).metrics_log_group in logs


def losses(name: str, change: Callable[[Templates], None]) -> set[tuple[str, str]]:
    """Types and kinds of what a change of the templates loses."""
    old = templates(FILES[name])
    new = deepcopy(old)
    change(new)
    pairs = [Pair(stack, old[stack], new[stack]) for stack in STACKS]
    found = find_precious_losses(pairs, region=shipped(name).region)
    return {(p.loss.resource_type, p.loss.kind) for p in found if p.is_certain}


def test_a_private_subnet_that_moves_takes_the_file_system_and_the_cluster_with_it() -> None:
    def move(stacks: Templates) -> None:
        for subnet in resources(stacks[NETWORK], "AWS::EC2::Subnet").values():
            subnet["Properties"]["AvailabilityZoneId"] = OTHER_ZONE["us-west-2"]

    assert losses("slurm", move) == {
        ("AWS::FSx::FileSystem", "is replaced"),
        ("AWS::SageMaker::Cluster", "is replaced"),
    }


def test_a_key_that_is_replaced_takes_all_that_it_encrypts() -> None:
    def other_key(stacks: Templates) -> None:
        for key in resources(stacks[STORAGE], "AWS::KMS::Key").values():
            key["Type"] = "AWS::KMS::ReplicaKey"

    assert {
        ("AWS::KMS::Key", "is replaced"),
        ("AWS::FSx::FileSystem", "is replaced"),
        ("AWS::RDS::DBInstance", "is replaced"),
    } <= losses("slurm-p5", other_key)


def test_more_workers_and_new_scripts_lose_nothing(name: str) -> None:
    def scale(stacks: Templates) -> None:
        for group in only(stacks[HYPERPOD], "AWS::SageMaker::Cluster")["InstanceGroups"]:
            group["InstanceCount"] += 1
            group["LifeCycleConfig"]["SourceS3Uri"] = (
                "s3://sagemaker-other/lifecycle/0123456789abcdef/"
            )

    assert losses(name, scale) == set()


def test_everything_that_is_kept_and_costs_has_a_price_and_a_way_to_delete_it(name: str) -> None:
    kept = {
        resource["Type"]: StackResource(
            logical_id, resource["Type"], "id-0123", "Retain", resource["Properties"]
        )
        for stack in templates(FILES[name]).values()
        for logical_id, resource in stack["Resources"].items()
        if resource.get("DeletionPolicy") in KEPT
    }
    free = {
        "AWS::S3::BucketPolicy",
        "AWS::FSx::DataRepositoryAssociation",
        "AWS::RDS::DBSubnetGroup",
        "AWS::RDS::DBParameterGroup",
        "AWS::EC2::SecurityGroup",
    }
    assert {kind for kind, resource in kept.items() if not bill_of(resource)} <= free
    assert all(deletion_of(resource) for resource in kept.values() if bill_of(resource))
    assert "AWS::FSx::FileSystem" in HOLDING & set(kept)
