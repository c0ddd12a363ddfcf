"""Diagrams are drawn from templates: what is in them, and that the committed ones are of today's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.golden.normalised import GOLDEN
from tools import diagrams
from tools.diagram_dot import dot
from tools.template_graph import TemplateGraph, Templates

CLUSTERS = [Path(file).stem for file in diagrams.CLUSTERS]


def golden(cluster: str) -> Templates:
    """The expected templates, which are synthesized and compared elsewhere."""
    return {path.stem: json.loads(path.read_text()) for path in (GOLDEN / cluster).glob("*.json")}


@pytest.mark.parametrize("cluster", CLUSTERS)
def test_the_committed_pictures_are_of_todays_templates(cluster: str) -> None:
    assert (diagrams.FOLDER / f"{cluster}.svg").read_text() == diagrams.svg(golden(cluster)), (
        "make diagrams draws them again"
    )


def test_there_are_no_others() -> None:
    assert sorted(path.name for path in diagrams.FOLDER.iterdir()) == sorted(f"{c}.svg" for c in CLUSTERS)


def role(trusted: Any, resource: Any = None) -> dict[str, Any]:
    statements = [{"Action": "*", "Resource": resource}] if resource else []
    return {
        "Type": "AWS::IAM::Role",
        "Properties": {
            "AssumeRolePolicyDocument": {"Statement": [{"Principal": {"AWS": trusted}}]},
            "Policies": [{"PolicyDocument": {"Statement": statements}}],
        },
    }


def arn(name: str) -> dict[str, list[str]]:
    return {"Fn::GetAtt": [name, "Arn"]}


def group(name: str, role_name: str, **more: Any) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "InstanceCount": 2,
        "InstanceType": "ml.g5.8xlarge",
        "ExecutionRole": arn(role_name),
        **more,
    }


@pytest.fixture
def templates() -> dict[str, Any]:
    """A cluster of two groups; what one of them reaches, it reaches by a role that its own takes on."""
    account = {"Ref": "AWS::AccountId"}
    bucket_name = {"Fn::Join": ["", ["sagemaker-small-", account, "-us-west-2"]]}
    uri = {"Fn::Join": ["", ["s3://sagemaker-small-", account, "-us-west-2/scripts"]]}
    exports = {
        "A": {"Value": {"Ref": "Metrics"}, "Export": {"Name": "metrics"}},
        "B": {"Value": {"Ref": "Subnet"}, "Export": {"Name": "subnet"}},
    }
    return {
        "SlurmNetworkStack": {
            "Resources": {
                "Vpc": {"Type": "AWS::EC2::VPC", "Properties": {"CidrBlock": "10.0.0.0/16"}},
                "Subnet": {"Type": "AWS::EC2::Subnet", "Properties": {"AvailabilityZoneId": "usw2-az1"}},
            },
            "Outputs": {"B": exports["B"]},
        },
        "SlurmStorageStack": {
            "Resources": {
                "Metrics": {"Type": "AWS::APS::Workspace"},
                "Scripts": {
                    "Type": "AWS::S3::Bucket",
                    "Properties": {"BucketName": bucket_name},
                    "Metadata": {"aws:cdk:path": "SlurmStorageStack/Artifacts/Resource"},
                },
            },
            "Outputs": {"A": exports["A"]},
        },
        "SlurmHyperPodStack": {
            "Resources": {
                "Plain": role("nobody"),
                "Own": role("nobody"),
                "Taken": role(arn("Own"), {"Fn::ImportValue": "metrics"}),
                "Cluster": {
                    "Type": "AWS::SageMaker::Cluster",
                    "Properties": {
                        "ClusterName": "small",
                        "VpcConfig": {"Subnets": [{"Fn::ImportValue": "subnet"}]},
                        "InstanceGroups": [
                            group("head", "Plain", LifeCycleConfig={"SourceS3Uri": uri}),
                            group("workers", "Own", LifeCycleConfig={"SourceS3Uri": uri}),
                        ],
                    },
                },
            }
        },
    }


def arrows(templates: Templates) -> list[str]:
    return [line.strip() for line in dot(TemplateGraph(templates)).splitlines() if " -> " in line]


def test_arrows_begin_where_the_role_is_and_those_of_all_groups_at_the_box(templates: dict[str, Any]) -> None:
    assert arrows(templates) == [
        'n_SlurmHyperPodStack_group_head -> n_SlurmStorageStack_Scripts [label="reads", ltail=cluster_box0]',
        'n_SlurmHyperPodStack_group_workers -> n_SlurmStorageStack_Metrics [label="metrics"]',
    ]


def test_what_has_a_subnet_lies_in_the_vpc(templates: dict[str, Any]) -> None:
    text = dot(TemplateGraph(templates))
    vpc = text[text.index("subgraph cluster_vpc") : text.index("\n  }", text.index("subgraph cluster_vpc"))]
    assert '"VPC 10.0.0.0/16 in usw2-az1"' in vpc and '"HyperPod cluster small"' in vpc
    assert "2 ml.g5.8xlarge" in vpc
    assert "Managed Prometheus" in text and "Managed Prometheus" not in vpc


def test_a_permission_that_is_gone_takes_its_arrow_along(templates: dict[str, Any]) -> None:
    templates["SlurmHyperPodStack"]["Resources"]["Taken"] = role("nobody", {"Fn::ImportValue": "metrics"})
    assert not [arrow for arrow in arrows(templates) if "Metrics" in arrow]


def test_names_cannot_break_the_picture(templates: dict[str, Any]) -> None:
    cluster = templates["SlurmHyperPodStack"]["Resources"]["Cluster"]["Properties"]
    cluster["InstanceGroups"][0]["InstanceType"] = "<b> & </b>"
    assert "&lt;b&gt; &amp; &lt;/b&gt;" in diagrams.svg(templates)


def test_without_graphviz_it_is_said_how_to_get_it(
    templates: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(diagrams, "RENDERER", tmp_path / "missing.mjs")
    with pytest.raises(ValueError, match="make diagrams"):
        diagrams.svg(templates)
