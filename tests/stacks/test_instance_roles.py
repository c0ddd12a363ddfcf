"""Permissions of nodes, statement by statement."""

from __future__ import annotations

from typing import Any

import pytest

from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import CLUSTER_FILES, load, resources, templates
from tests.stacks.variants import variant_templates

EC2 = f"arn:aws:ec2:us-east-1:{ACCOUNT}"
IN_VPC = {"ArnEqualsIfExists": {"ec2:Vpc": f"{EC2}:vpc/vpc-0123456789abcdef0"}}
# The cluster has two, which the evaluation of references calls the same.
SUBNETS = [f"{EC2}:subnet/subnet-0123456789abcdef0"] * 2
KEY = f"arn:aws:kms:us-east-1:{ACCOUNT}:key/1234abcd-12ab-34cd-56ef-1234567890ab"
VIA_SAGEMAKER = {"kms:ViaService": "sagemaker.us-east-1.amazonaws.com"}
LOGS = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/aws/sagemaker/Clusters/esm2-p5/*"
BUCKET = f"arn:aws:s3:::sagemaker-esm2-p5-{ACCOUNT}-us-east-1"
SECRET = f"arn:aws:secretsmanager:us-east-1:{ACCOUNT}:secret:accounting-AbCdEf"

EVERY_NODE = {
    "CreateLogGroups": ("logs:CreateLogGroup", LOGS, None),
    "WriteLogs": (
        ["logs:CreateLogStream", "logs:DescribeLogStreams", "logs:PutLogEvents"],
        f"{LOGS}:log-stream:*",
        None,
    ),
    "PutClusterMetrics": (
        "cloudwatch:PutMetricData",
        "*",
        {"StringEquals": {"cloudwatch:namespace": "/aws/sagemaker/Clusters"}},
    ),
    "OpenSessions": (
        [
            "ssmmessages:CreateControlChannel",
            "ssmmessages:CreateDataChannel",
            "ssmmessages:OpenControlChannel",
            "ssmmessages:OpenDataChannel",
        ],
        "*",
        None,
    ),
    "DescribeFileSystems": ("fsx:DescribeFileSystems", "*", None),
    "CreateInterfaces": (
        "ec2:CreateNetworkInterface",
        [
            f"{EC2}:network-interface/*",
            *SUBNETS,
            f"{EC2}:security-group/sg-0123456789abcdef0",
        ],
        None,
    ),
    "ManageInterfaces": (
        ["ec2:CreateNetworkInterfacePermission", "ec2:DeleteNetworkInterface"],
        f"{EC2}:network-interface/*",
        {"ArnEqualsIfExists": {"ec2:Subnet": SUBNETS}},
    ),
    "DeleteInterfacePermissions": ("ec2:DeleteNetworkInterfacePermission", "*", IN_VPC),
    "DetachInterfaces": (
        "ec2:DetachNetworkInterface",
        [f"{EC2}:network-interface/*", "arn:aws:ec2:us-east-1:*:instance/*"],
        IN_VPC,
    ),
    "TagInterfaces": ("ec2:CreateTags", f"{EC2}:network-interface/*", IN_VPC),
    "DescribeNetwork": (
        [
            "ec2:DescribeDhcpOptions",
            "ec2:DescribeNetworkInterfaces",
            "ec2:DescribeSecurityGroups",
            "ec2:DescribeSubnets",
            "ec2:DescribeVpcs",
        ],
        "*",
        None,
    ),
    "ListArtifactBucket": ("s3:ListBucket", BUCKET, None),
    "ReadArtifacts": ("s3:GetObject", [f"{BUCKET}/lifecycle/*", f"{BUCKET}/workloads/*"], None),
    "LogInToRegistry": ("ecr:GetAuthorizationToken", "*", None),
    "PullImages": (
        ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
        f"arn:aws:ecr:us-east-1:{ACCOUNT}:repository/TrainingImageRepositoryA4686A09",
        None,
    ),
}
WITH_KEY = {
    "Decrypt": ("kms:Decrypt", KEY, None),
    "GrantVolumesTheKey": (
        "kms:CreateGrant",
        KEY,
        {"Bool": {"kms:GrantIsForAWSResource": "true"}, "StringEquals": VIA_SAGEMAKER},
    ),
    "DescribeKeyOfVolumes": ("kms:DescribeKey", KEY, {"StringEquals": VIA_SAGEMAKER}),
}
CONTROLLER_ONLY = {
    "ReadDatabaseSecret": ("secretsmanager:GetSecretValue", SECRET, None),
    "WriteMetrics": ("aps:RemoteWrite", f"arn:aws:aps:us-east-1:{ACCOUNT}:workspace/ws-0123", None),
}


def node_roles(file: str) -> dict[str, dict[str, Any]]:
    """Properties of the roles that instance groups run with, values evaluated, by construct id."""
    stacks = templates(file)
    evaluate = Evaluator(stacks, load(file).region)
    return {
        name: evaluate(role["Properties"])
        for name, role in resources(stacks["SlurmHyperPodStack"], "AWS::IAM::Role").items()
        if role["Properties"]["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]
        == {"Service": "sagemaker.amazonaws.com"}
    }


def statements(role: dict[str, Any]) -> list[dict[str, Any]]:
    (policy,) = role["Policies"]
    found: list[dict[str, Any]] = policy["PolicyDocument"]["Statement"]
    return found


@pytest.mark.parametrize("node_type", ["Controller", "Login", "Worker"])
def test_statements_are_exactly_these(node_type: str) -> None:
    (role,) = (
        role
        for name, role in node_roles("clusters/slurm-p5.yaml").items()
        if name.startswith(node_type)
    )
    assert "ManagedPolicyArns" not in role
    expected = EVERY_NODE | WITH_KEY | (CONTROLLER_ONLY if node_type == "Controller" else {})
    found = {
        statement.pop("Sid"): (
            statement.pop("Action"),
            statement.pop("Resource"),
            statement.pop("Condition", None),
        )
        for statement in statements(role)
        if statement.pop("Effect") == "Allow"
    }
    assert found == expected


def test_without_key_database_and_metrics_their_statements_are_gone() -> None:
    """The default cluster has neither a key nor a database; its one difference is the metrics workspace."""
    for name, role in node_roles("clusters/slurm.yaml").items():
        found = {statement["Sid"] for statement in statements(role)}
        assert found == set(EVERY_NODE) | (
            {"WriteMetrics"} if name.startswith("Controller") else set()
        )


def test_mirrored_downloads_and_no_other_prefix_may_be_read_too() -> None:
    """CloudWatch's agent needs no statement, because log group and namespace are those of the service."""
    stacks = variant_templates("every_option")
    evaluate = Evaluator(stacks, "us-east-1")
    bucket = f"arn:aws:s3:::sagemaker-every-option-{ACCOUNT}-us-east-1"
    roles = [
        evaluate(role["Properties"])
        for name, role in resources(stacks["SlurmHyperPodStack"], "AWS::IAM::Role").items()
        if name.startswith(("Controller", "Login", "Worker"))
    ]
    assert len(roles) == 3
    # What Studio asks of the controller has tests of its own.
    only_controller = {*CONTROLLER_ONLY, "KeyOfQueues", "AnswerStudio", "AcknowledgeToStudio"}
    only_controller |= {"PublishSlurm", "PublishKeyOfSlurm"}
    for role in roles:
        named = {statement["Sid"]: statement for statement in statements(role)}
        assert named.keys() - only_controller == EVERY_NODE.keys() | WITH_KEY.keys() | {
            "ReadRollbackAlarms"
        }
        assert named["ReadArtifacts"]["Resource"] == [
            f"{bucket}/{prefix}/*" for prefix in ("lifecycle", "workloads", "downloads")
        ]


def test_there_is_a_role_for_each_node_type_and_no_more() -> None:
    assert len(node_roles("clusters/slurm-p5.yaml")) == 3
    assert len(node_roles("clusters/slurm.yaml")) == 2


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_no_other_account_s_service_can_use_a_role(file: str) -> None:
    for role in node_roles(file).values():
        (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
        assert trust == {
            "Effect": "Allow",
            "Action": "sts:AssumeRole",
            "Principal": {"Service": "sagemaker.amazonaws.com"},
            "Condition": {"StringEqualsIfExists": {"aws:SourceAccount": ACCOUNT}},
        }


@pytest.mark.parametrize("file", CLUSTER_FILES)
def test_nothing_but_the_role_itself_grants_it_something(file: str) -> None:
    """A policy beside the role would be one that nodes can start without."""
    roles = set(node_roles(file))
    for stack in templates(file).values():
        for kind in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy", "AWS::IAM::RolePolicy"):
            for policy in resources(stack, kind).values():
                attached = [role.get("Ref") for role in policy["Properties"]["Roles"]]
                assert roles.isdisjoint(attached)


def test_interfaces_are_made_and_deleted_in_every_subnet_of_the_cluster_and_nowhere_else() -> None:
    stack = variant_templates("existing_vpc")["SlurmHyperPodStack"]
    for name, role in resources(stack, "AWS::IAM::Role").items():
        if not name.startswith(("Controller", "Login", "Worker")):
            continue
        for policy in role["Properties"]["Policies"]:
            named = {s["Sid"]: s for s in policy["PolicyDocument"]["Statement"]}
            made_in = [
                text
                for text in map(str, named["CreateInterfaces"]["Resource"])
                if ":subnet/" in text
            ]
            assert len(made_in) == len(set(made_in)) == 6
            deleted_in = named["ManageInterfaces"]["Condition"]["ArnEqualsIfExists"]["ec2:Subnet"]
            assert list(map(str, deleted_in)) == made_in
