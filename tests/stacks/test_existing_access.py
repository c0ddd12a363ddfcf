"""Templates of a cluster whose security groups and roles exist already: nothing changes them."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from config.resource_names import existing_roles
from tests.stacks.base_templates import strings_in
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import Templates, load, read_templates, resources, synthesize
from tests.stacks.test_shared_vpc import NETWORK, REGION
from tools.stacks.execution_policy import execution_policies

GROUPS = ["sg-0aaaaaaaaaaaaaaaa", "sg-0bbbbbbbbbbbbbbbb"]
ROLES = {"controller": "hpc-controller", "nodes": f"arn:aws:iam::{ACCOUNT}:role/hpc/nodes"}
PROXY = "http://proxy.example.com:3128"
CONTROL_PLANE, KARPENTER = "hpc-control-plane", "hpc-karpenter"
CHANGING = ("AWS::EC2::SecurityGroup", "AWS::IAM::")
"""Beginnings of types whose resources can change a security group or a role."""


def cluster(scheduler: str) -> Any:
    file = load(f"clusters/{scheduler}.yaml").model_dump(mode="json", exclude_unset=True)
    network = NETWORK | {"security_group_ids": GROUPS, "interface_endpoints": False}
    network["proxy"] = {"url": PROXY}
    changes: dict[str, Any] = {"network": network, "instance_groups": file["instance_groups"]}
    for group in changes["instance_groups"]:
        group["execution_role"] = ROLES.get(group["name"], ROLES["nodes"])
    if scheduler == "slurm":
        changes |= {"mlflow": {"kind": "app"}, "accounting_database": {}}
    else:
        changes |= {"autoscaling": "karpenter", "autoscaling_role": KARPENTER}
        changes |= {"kubernetes": {**file.get("kubernetes", {}), "role": CONTROL_PLANE}}
    return load(f"clusters/{scheduler}.yaml", **changes)


@cache
def stacks(scheduler: str) -> Templates:
    return read_templates(synthesize(cluster(scheduler)))


def hyperpod(scheduler: str) -> dict[str, Any]:
    (found,) = resources(
        stacks(scheduler)[f"{scheduler.capitalize()}HyperPodStack"], "AWS::SageMaker::Cluster"
    ).values()
    evaluated: dict[str, Any] = Evaluator(stacks(scheduler), REGION)(found["Properties"])
    return evaluated


@pytest.mark.parametrize("scheduler", ["slurm", "eks"])
def test_nodes_have_the_groups_and_roles_of_the_file(scheduler: str) -> None:
    properties = hyperpod(scheduler)
    assert properties["VpcConfig"]["SecurityGroupIds"] == GROUPS
    roles = {
        group["InstanceGroupName"]: group["ExecutionRole"] for group in properties["InstanceGroups"]
    }
    first = f"arn:aws:iam::{ACCOUNT}:role/{ROLES['controller']}"
    assert roles == {name: first if name == "controller" else ROLES["nodes"] for name in roles}
    systems = [
        system
        for template in stacks(scheduler).values()
        for system in resources(template, "AWS::FSx::FileSystem").values()
    ]
    assert [system["Properties"]["SecurityGroupIds"] for system in systems] == [GROUPS]


@pytest.mark.parametrize("scheduler", ["slurm", "eks"])
def test_no_resource_changes_a_group_or_a_role(scheduler: str) -> None:
    """A template changes what exists only by naming it in such a resource.

    The exceptions are sources of rules of other groups, and trust policies of other roles.
    """
    names = [*GROUPS, ROLES["controller"], ROLES["nodes"], CONTROL_PLANE, KARPENTER]
    allowed = {"SourceSecurityGroupId", "AssumeRolePolicyDocument"}
    found = []
    for template in stacks(scheduler).values():
        for logical_id, resource in template["Resources"].items():
            if not resource["Type"].startswith(CHANGING):
                continue
            rest = {
                key: value
                for key, value in resource.get("Properties", {}).items()
                if key not in allowed
            }
            found += [
                (logical_id, text) for text in strings_in(rest) for name in names if text == name
            ]
    assert found == []


def test_jobs_of_workers_with_an_existing_role_log_runs() -> None:
    evaluate = Evaluator(stacks("slurm"), REGION)
    (jobs,) = (
        role["Properties"]
        for role in resources(stacks("slurm")["SlurmHyperPodStack"], "AWS::IAM::Role").values()
        if "MLflow" in role["Properties"].get("Description", "")
    )
    (statement,) = evaluate(jobs["AssumeRolePolicyDocument"])["Statement"]
    assert statement["Principal"] == {"AWS": ROLES["nodes"]}


def test_no_roles_of_nodes_control_plane_and_karpenter_are_created() -> None:
    described = [
        role["Properties"].get("Description", "")
        for scheduler in ("slurm", "eks")
        for template in stacks(scheduler).values()
        for role in resources(template, "AWS::IAM::Role").values()
    ]
    assert not [text for text in described if "Role of HyperPod" in text or "Karpenter" in text]
    eks = stacks("eks")["EksHyperPodStack"]
    (control_plane,) = resources(eks, "AWS::EKS::Cluster").values()
    evaluate = Evaluator(stacks("eks"), REGION)
    arn = f"arn:aws:iam::{ACCOUNT}:role/{CONTROL_PLANE}"
    assert evaluate(control_plane["Properties"]["RoleArn"]) == arn
    assert hyperpod("eks")["ClusterRole"] == f"arn:aws:iam::{ACCOUNT}:role/{KARPENTER}"


def test_cloudformation_may_only_pass_the_roles() -> None:
    checked = cluster("eks")
    statements = [
        statement
        for policy in execution_policies(checked, ["AWS::IAM::Role", "AWS::SageMaker::Cluster"])
        for statement in policy["Statement"]
    ]
    arns = {
        role if role.startswith("arn:") else f"arn:aws:iam::*:role/{role}"
        for role in existing_roles(checked).values()
    }
    actions = {
        action
        for statement in statements
        if isinstance(statement["Resource"], list) and set(statement["Resource"]) & arns
        for action in statement["Action"]
    }
    assert actions == {"iam:GetRole", "iam:PassRole"}
