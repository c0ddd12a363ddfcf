"""Policies of CloudFormation's role: enough for every resource of the templates, and no more."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.cluster import Iam
from tests.stacks.synthesized import REPOSITORY, load, templates
from tools.stacks import execution_policy
from tools.stacks.execution_policy import MAX_POLICY_CHARACTERS, execution_policies

BOUNDARY = "arn:aws:iam::123456789012:policy/hpc-boundary"


def types_of(name: str) -> set[str]:
    stacks = templates(f"clusters/{name}.yaml").values()
    return {resource["Type"] for stack in stacks for resource in stack["Resources"].values()}


def statements(policies: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [statement for policy in policies for statement in policy["Statement"]]


@pytest.mark.parametrize("name", ["slurm", "slurm-p5", "slurm-trn1", "eks", "eks-p5", "eks-trn2"])
def test_policies_are_enough_and_no_more(name: str) -> None:
    policies = execution_policies(load(f"clusters/{name}.yaml"), types_of(name))
    assert all(
        len(json.dumps(policy, separators=(",", ":"))) <= MAX_POLICY_CHARACTERS
        for policy in policies
    )
    allowed = {action for statement in statements(policies) for action in statement["Action"]}
    assert {
        "sagemaker:CreateCluster",
        "fsx:CreateFileSystem",
        "ec2:CreateVpc",
        "iam:PassRole",
    } <= allowed
    assert ("eks:CreateCluster" in allowed) == name.startswith("eks")
    assert not {
        action for action in allowed if "*" in action or "User" in action.partition("Policy")[0]
    }
    assert {tuple(statement["Effect"]) for statement in statements(policies)} == {tuple("Allow")}


def test_roles_are_limited_to_the_cluster_and_keep_their_boundary() -> None:
    iam = Iam(permissions_boundary=BOUNDARY, role_path="/hpc/", role_name_prefix="team-")
    cluster = load("clusters/slurm.yaml").model_copy(update={"iam": iam})
    own = [
        statement
        for statement in statements(execution_policies(cluster, types_of("slurm")))
        if any(action.startswith("iam:") for action in statement["Action"])
    ]
    linked, limited, rest = own
    assert linked["Resource"] == "arn:aws:iam::*:role/aws-service-role/*"
    assert limited["Resource"] == rest["Resource"] == "arn:aws:iam::*:role/hpc/team-esm2-slurm-*"
    assert limited["Condition"] == {"StringEquals": {"iam:PermissionsBoundary": BOUNDARY}}
    assert {"iam:CreateRole", "iam:PutRolePolicy"} <= set(limited["Action"])
    assert not {"iam:CreateRole", "iam:DeleteRolePermissionsBoundary"} & set(rest["Action"])


@pytest.mark.parametrize("name", ["slurm", "eks"])
def test_documents_have_the_policies_of_the_default_clusters(name: str) -> None:
    for number, policy in enumerate(
        execution_policies(load(f"clusters/{name}.yaml"), types_of(name)), 1
    ):
        path = REPOSITORY / "docs" / "policies" / f"esm2-{name}-cloudformation-{number}.json"
        assert json.loads(path.read_text()) == policy, (
            f"renew {path.name} with the command of the page"
        )


def test_command_writes_the_files_and_says_what_to_type(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["execution_policy", "--out", str(tmp_path / "policies")])
    monkeypatch.setattr(execution_policy, "ASSEMBLY", tmp_path)
    with pytest.raises(ValueError, match="run `make synth` with this cluster file first"):
        execution_policy.main()
    for stack, template in templates("clusters/slurm.yaml").items():
        (tmp_path / f"{stack}.template.json").write_text(json.dumps(template))
    assert execution_policy.main() == 0
    *created, bootstrap = capsys.readouterr().out.splitlines()
    assert len(created) == len(list((tmp_path / "policies").iterdir()))
    assert bootstrap.startswith(
        'make bootstrap ARGS="--cloudformation-execution-policies arn:aws:iam::'
    )
