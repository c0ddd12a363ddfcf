"""Preflight checks of existing security groups and roles."""

from __future__ import annotations

import json
from typing import Any

import pytest

from config.cluster import Cluster
from config.resource_names import existing_roles
from config.slurm_cluster import SlurmCluster
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped, shipped_eks, with_group
from tests.tools.preflight.test_existing_vpc import NETWORK, Vpc
from tools.preflight.existing_access import check_roles, check_security_groups
from tools.preflight.finding import Finding
from tools.preflight.read_only_aws import ReadOnlyAws

GROUP = "sg-0123456789abcdef0"
ROLE = "hpc-node"
ALL = {"IpProtocol": "-1"}
TO_ITSELF = ALL | {"UserIdGroupPairs": [{"GroupId": GROUP}]}
ANYWHERE = ALL | {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
GOOD_GROUP = {
    "VpcId": NETWORK["vpc_id"],
    "IpPermissions": [TO_ITSELF],
    "IpPermissionsEgress": [TO_ITSELF, ANYWHERE],
}


def guest_cluster() -> SlurmCluster:
    """A cluster with an existing security group, and an existing role of its workers."""
    checked = shipped("slurm", network=NETWORK | {"security_group_ids": [GROUP]})
    return with_group(checked, "workers", execution_role=ROLE)


def guest_account() -> AnsweringAws:
    """An account with both."""
    aws = Vpc().account(guest_cluster())
    aws.answer("ec2", "DescribeSecurityGroups", {"SecurityGroups": [GOOD_GROUP]})
    aws.answer("iam", "GetRole", role(ROLE, "sagemaker.amazonaws.com"))
    aws.answer("iam", "SimulatePrincipalPolicy", {"EvaluationResults": []})
    return aws


def security_group_findings(answer: Any, **group: Any) -> list[Finding]:
    checked = shipped("slurm", network=NETWORK | {"security_group_ids": [GROUP]})
    for name in ("controller", "workers"):
        checked = with_group(checked, name, **group)
    aws = AnsweringAws(checked.region)
    aws.answer("ec2", "DescribeSecurityGroups", answer)
    return list(check_security_groups(ReadOnlyAws(aws.session), checked))


@pytest.mark.parametrize(
    ("change", "levels", "message"),
    [
        ({}, ["OK"], "admits all traffic between its members"),
        ({"VpcId": "vpc-other"}, ["FAIL", "OK"], "is in vpc-other"),
        ({"IpPermissionsEgress": [ANYWHERE]}, ["FAIL"], "EFA needs rules"),
        ({"IpPermissions": []}, ["FAIL"], "EFA needs rules"),
        ({"IpPermissionsEgress": []}, ["FAIL", "WARN"], "some addresses only"),
    ],
)
def test_groups_admit_what_efa_needs(
    change: dict[str, Any], levels: list[str], message: str
) -> None:
    found = security_group_findings({"SecurityGroups": [GOOD_GROUP | change]})
    assert [one.level for one in found] == levels
    assert any(message in one.message for one in found)


def test_nodes_without_efa_need_one_group_of_members() -> None:
    closed = GOOD_GROUP | {"IpPermissions": [], "IpPermissionsEgress": [ANYWHERE]}
    (found,) = security_group_findings({"SecurityGroups": [closed]}, instance_type="ml.g5.xlarge")
    assert found.level == "FAIL" and "authorize-security-group-ingress" in found.action
    missing = security_group_findings(Refusal("InvalidGroup.NotFound"))
    assert [one.level for one in missing] == ["FAIL"]


def trust(service: str) -> dict[str, Any]:
    statement = {"Effect": "Allow", "Action": "sts:AssumeRole", "Principal": {"Service": service}}
    return {"Version": "2012-10-17", "Statement": [statement]}


def role(name: str, service: str, path: str = "/") -> dict[str, Any]:
    return {
        "Role": {
            "Path": path,
            "RoleName": name,
            "RoleId": "AROA0123456789ABCDEF",
            "Arn": f"arn:aws:iam::{ACCOUNT}:role{path}{name}",
            "CreateDate": "2026-01-01",
            "AssumeRolePolicyDocument": json.dumps(trust(service)),
        }
    }


def role_findings(answer: Any, denied: str, cluster: Cluster) -> list[Finding]:
    aws = AnsweringAws(cluster.region)
    aws.answer("sts", "GetCallerIdentity", {"Account": ACCOUNT})
    aws.answer("iam", "GetRole", answer)

    def simulate(parameters: Parameters) -> dict[str, Any]:
        return {
            "EvaluationResults": [
                {
                    "EvalActionName": action,
                    "EvalDecision": "implicitDeny" if action == denied else "allowed",
                }
                for action in parameters["ActionNames"]
            ]
        }

    aws.answer("iam", "SimulatePrincipalPolicy", simulate)
    return list(check_roles(ReadOnlyAws(aws.session), cluster))


@pytest.mark.parametrize(
    ("named", "answer", "denied", "level", "message"),
    [
        (ROLE, role(ROLE, "sagemaker.amazonaws.com"), "", "OK", "exists"),
        (ROLE, Refusal("NoSuchEntity"), "", "FAIL", "does not exist"),
        (ROLE, role(ROLE, "ec2.amazonaws.com"), "", "FAIL", "does not name sagemaker"),
        (ROLE, role(ROLE, "sagemaker.amazonaws.com", "/hpc/"), "", "FAIL", "role/hpc/hpc-node"),
        (
            ROLE,
            role(ROLE, "sagemaker.amazonaws.com"),
            "s3:GetObject",
            "FAIL",
            "may not use s3:GetObject",
        ),
        (f"arn:aws:iam::210987654321:role/{ROLE}", {}, "", "FAIL", "is of account 210987654321"),
    ],
)
def test_a_role_of_nodes_is_ready(
    named: str, answer: Any, denied: str, level: str, message: str
) -> None:
    checked = with_group(shipped("slurm", network=NETWORK), "workers", execution_role=named)
    found = role_findings(answer, denied, checked)
    assert [(one.level, message in one.message) for one in found] == [(level, True)]


def test_roles_of_eks_are_assumed_by_their_services() -> None:
    checked = shipped_eks("eks").model_copy(update={"autoscaling_role": "karpenter"})
    assert existing_roles(checked) == {"autoscaling_role": "karpenter"}
    answer = role("karpenter", "hyperpod.sagemaker.amazonaws.com")
    found = role_findings(answer, "", checked)
    assert [one.level for one in found] == ["OK"]
