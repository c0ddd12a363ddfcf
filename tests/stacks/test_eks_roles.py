"""Permissions of nodes, pods and functions of an EKS cluster, statement by statement."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.resource_names import ResourceNames
from tests.stacks.eks_variants import (
    EKS_EVERY_OPTION,
    EKS_VARIANTS,
    eks_variant,
    eks_variant_templates,
)
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import EKS_FILES, Templates, load, resources, templates
from tests.stacks.test_instance_roles import EC2, EVERY_NODE, IN_VPC, WITH_KEY

CASES = (*EKS_FILES, *EKS_VARIANTS)
NAME = "esm2-eks-p5"
LOGS = f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:/aws/sagemaker/Clusters/{NAME}/*"
BUCKET = f"arn:aws:s3:::sagemaker-{NAME}-{ACCOUNT}-us-east-1"
EKS_CLUSTER = f"arn:aws:eks:us-east-1:{ACCOUNT}:cluster/KubernetesCluster0CA8310C"
HYPERPOD = f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:cluster/abcdefghij12"
PULL = ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"]

EKS_NODE = (
    EVERY_NODE
    | WITH_KEY
    | {
        "CreateLogGroups": ("logs:CreateLogGroup", LOGS, None),
        "WriteLogs": (EVERY_NODE["WriteLogs"][0], f"{LOGS}:log-stream:*", None),
        "ListArtifactBucket": ("s3:ListBucket", BUCKET, None),
        "ReadArtifacts": ("s3:GetObject", f"{BUCKET}/lifecycle/*", None),
        "GivePodsAddresses": (
            ["ec2:AssignPrivateIpAddresses", "ec2:UnassignPrivateIpAddresses"],
            f"{EC2}:network-interface/*",
            IN_VPC,
        ),
        "AttachInterfaces": (
            ["ec2:AttachNetworkInterface", "ec2:ModifyNetworkInterfaceAttribute"],
            [
                f"{EC2}:network-interface/*",
                "arn:aws:ec2:us-east-1:*:instance/*",
                f"{EC2}:security-group/sg-0123456789abcdef0",
            ],
            IN_VPC,
        ),
        "AttachInterfacesToNodes": (
            "sagemaker:AttachClusterNodeNetworkInterface",
            "arn:aws:sagemaker:us-east-1:123456789012:cluster/*",
            None,
        ),
        "DescribeInstances": (
            ["ec2:DescribeInstances", "ec2:DescribeInstanceTypes", "ec2:DescribeTags"],
            "*",
            None,
        ),
        "PullImagesOfAddons": (PULL, "arn:aws:ecr:*:*:repository/*", None),
        "GivePodsIdentities": ("eks-auth:AssumeRoleForPodIdentity", EKS_CLUSTER, None),
    }
)
PODS = {
    "WithoutNodesChartHealthAgentRole": {
        "CreateLogGroups": ("logs:CreateLogGroup", LOGS, None),
        "WriteLogs": (EVERY_NODE["WriteLogs"][0], f"{LOGS}:log-stream:*", None),
        "PutClusterMetrics": EVERY_NODE["PutClusterMetrics"],
    },
    "WithNodesLustreControllerRole": {
        "DescribeFileSystems": ("fsx:DescribeFileSystems", "*", None)
    },
    "WithNodesTrainingOperatorRole": {
        "DescribeNodes": ("sagemaker:DescribeClusterNode", HYPERPOD, None)
    },
    "WithNodesObservabilityRole": {
        "WriteMetrics": (
            "aps:RemoteWrite",
            f"arn:aws:aps:us-east-1:{ACCOUNT}:workspace/ws-0123",
            None,
        ),
        "WriteLogs": (
            [
                "logs:CreateLogGroup",
                "logs:CreateLogStream",
                "logs:DescribeLogStreams",
                "logs:PutLogEvents",
            ],
            LOGS,
            None,
        ),
    },
    "WithNodesTrainingMetricsRole": {
        "WriteMetrics": (
            "aps:RemoteWrite",
            f"arn:aws:aps:us-east-1:{ACCOUNT}:workspace/ws-0123",
            None,
        )
    },
}


def stacks_of(case: str) -> tuple[Templates, Any]:
    if case in EKS_FILES:
        return templates(case), load(case)
    return eks_variant_templates(case), eks_variant(case)


def roles(case: str) -> dict[str, dict[str, Any]]:
    """Properties of the roles of the cluster's stack, values evaluated, by logical id."""
    stacks, cluster = stacks_of(case)
    evaluate = Evaluator(stacks, cluster.region)
    return {
        name: {
            key: value if key == "ManagedPolicyArns" else evaluate(value)
            for key, value in role["Properties"].items()
        }
        for name, role in resources(stacks["EksHyperPodStack"], "AWS::IAM::Role").items()
    }


def trusted_service(role: dict[str, Any]) -> str:
    service: str = role["AssumeRolePolicyDocument"]["Statement"][0]["Principal"]["Service"]
    return service


def statements(role: dict[str, Any]) -> dict[str, tuple[Any, Any, Any]]:
    (policy,) = role["Policies"]
    found = policy["PolicyDocument"]["Statement"]
    assert all(statement["Effect"] == "Allow" for statement in found)
    return {
        statement["Sid"]: (statement["Action"], statement["Resource"], statement.get("Condition"))
        for statement in found
    }


def test_statements_of_nodes_are_exactly_these() -> None:
    (role,) = (
        role
        for role in roles("clusters/eks-p5.yaml").values()
        if trusted_service(role) == "sagemaker.amazonaws.com"
    )
    assert "ManagedPolicyArns" not in role
    assert statements(role) == EKS_NODE


def test_statements_of_pods_are_exactly_these() -> None:
    found = {
        name: role
        for name, role in roles("clusters/eks-p5.yaml").items()
        if trusted_service(role) == "pods.eks.amazonaws.com"
        # Of jobs that log to MLflow: test_managed_mlflow.py.
        and not name.startswith("WithNodesMlflow")
    }
    assert {name[:-8]: statements(role) for name, role in found.items()} == PODS
    assert not any("ManagedPolicyArns" in role for role in found.values())


@pytest.mark.parametrize("case", CASES)
def test_pods_of_no_other_cluster_are_let_in(case: str) -> None:
    _, cluster = stacks_of(case)
    arn = f"arn:aws:eks:{cluster.region}:{ACCOUNT}:cluster/KubernetesCluster0CA8310C"
    found = [
        role for role in roles(case).values() if trusted_service(role) == "pods.eks.amazonaws.com"
    ]
    assert found
    for role in found:
        trusts = role["AssumeRolePolicyDocument"]["Statement"]
        assert [trust["Action"] for trust in trusts] == [["sts:AssumeRole", "sts:TagSession"]]
        for trust in trusts:
            assert trust["Condition"] == {
                "StringEquals": {"aws:SourceAccount": ACCOUNT},
                "ArnEquals": {"aws:SourceArn": arn},
            }


@pytest.mark.parametrize("case", CASES)
def test_the_control_plane_s_role_serves_its_own_cluster_alone(case: str) -> None:
    _, cluster = stacks_of(case)
    (role,) = (
        role for role in roles(case).values() if trusted_service(role) == "eks.amazonaws.com"
    )
    (trust,) = role["AssumeRolePolicyDocument"]["Statement"]
    name = ResourceNames(cluster).kubernetes_cluster
    arn = f"arn:aws:eks:{cluster.region}:{ACCOUNT}:cluster/{name}"
    assert trust["Condition"] == {
        "StringEquals": {"aws:SourceAccount": ACCOUNT},
        "ArnEquals": {"aws:SourceArn": arn},
    }


def test_the_function_of_task_governance_creates_no_administrator() -> None:
    (role,) = (
        role
        for name, role in roles("clusters/eks-p5.yaml").items()
        if name.startswith("WithNodesTaskGovernanceFunctionRole")
    )
    entries = f"arn:aws:eks:us-east-1:{ACCOUNT}:access-entry/{NAME}/*"
    policies = "arn:aws:eks::aws:cluster-access-policy/AmazonSage?akerHyper?od*"
    found = statements(role)
    assert found["LetSageMakerIn"] == (
        ["eks:AssociateAccessPolicy", "eks:DisassociateAccessPolicy"],
        entries,
        {"ArnLike": {"eks:policyArn": policies}},
    )
    actions, resources_, _ = found["GovernTasks"]
    assert all(action.startswith("sagemaker:") and "*" not in action for action in actions)
    assert resources_ == [
        HYPERPOD,
        f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:cluster-scheduler-config/*",
        f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:compute-quota/*",
    ]


def test_interfaces_of_this_cluster_s_pods_alone_may_be_deleted() -> None:
    (role,) = (
        role
        for name, role in roles("clusters/eks-p5.yaml").items()
        if name.startswith("PodInterfacesFunctionRole")
    )
    assert statements(role)["DeletePodsInterfaces"] == (
        "ec2:DeleteNetworkInterface",
        f"{EC2}:network-interface/*",
        {"StringEquals": {"aws:ResourceTag/cluster.k8s.amazonaws.com/name": NAME}},
    )


def test_container_insights_writes_to_its_groups_alone() -> None:
    name = EKS_EVERY_OPTION.name
    (role,) = (
        role
        for key, role in roles("eks_every_option").items()
        if key.startswith("WithNodesContainerInsights")
    )
    found = statements(role)
    stack = eks_variant_templates("eks_every_option")["EksHyperPodStack"]
    groups = {
        logical_id: group["Properties"]["LogGroupName"]
        for logical_id, group in resources(stack, "AWS::Logs::LogGroup").items()
        if logical_id.startswith("WithNodesContainerInsights")
    }
    assert found["WriteLogs"][1] == [
        f"arn:aws:logs:us-east-1:{ACCOUNT}:log-group:{logical_id}:*" for logical_id in groups
    ]
    assert found["PutMetrics"][2] == {"StringEquals": {"cloudwatch:namespace": "ContainerInsights"}}
    assert set(groups.values()) == {
        f"/aws/containerinsights/{name}/{kind}"
        for kind in ("application", "dataplane", "host", "performance")
    }


def test_karpenter_may_scale_this_account_s_clusters() -> None:
    (role,) = (
        role
        for role in roles("eks_every_option").values()
        if trusted_service(role) == "hyperpod.sagemaker.amazonaws.com"
    )
    assert list(statements(role)) == ["ScaleClusters", "GrantVolumesTheKey", "DescribeKeyOfVolumes"]
    assert statements(role)["ScaleClusters"] == (
        ["sagemaker:BatchAddClusterNodes", "sagemaker:BatchDeleteClusterNodes"],
        f"arn:aws:sagemaker:us-east-1:{ACCOUNT}:cluster/*",
        None,
    )


@pytest.mark.parametrize("case", CASES)
def test_no_role_may_do_everything(case: str) -> None:
    text = json.dumps([role.get("Policies", []) for role in roles(case).values()])
    assert '"Action": "*"' not in text
    for service in ("iam", "s3", "ec2", "eks", "sagemaker", "kms"):
        assert f'"{service}:*"' not in text


@pytest.mark.parametrize("case", CASES)
def test_policies_stay_below_iam_s_limit(case: str) -> None:
    """10,240 characters for all inline policies of a role, white space not counted."""
    for role in roles(case).values():
        size = sum(
            len(json.dumps(policy["PolicyDocument"], separators=(",", ":")))
            for policy in role.get("Policies", [])
        )
        assert size <= 10_240
