"""Deployments: refusals, the order of stacks, late log groups, and missing nodes."""

from __future__ import annotations

import sys
import time
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from config.cluster import Cluster, Iam
from tests.tools.accounts import cluster_description
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tests.tools.preflight.eks_accounts import shipped_eks
from tests.tools.stacks.deployed_stacks import DeployedStacks
from tools.stacks import deploy
from tools.stacks.deploy import first_to_deploy
from tools.stacks.diff import Pair

SLURM = shipped("slurm")
NETWORK, STORAGE, HYPERPOD = (
    f"esm2-slurm-slurm-{part}" for part in ("network", "storage", "hyperpod")
)
ADMIN = {"principal_arn": "arn:aws:iam::123456789012:role/platform", "level": "cluster_admin"}


def template(*, exports: tuple[str, ...] = (), imports: tuple[str, ...] = ()) -> dict[str, Any]:
    values = {name: {"Fn::ImportValue": name} for name in imports}
    return {
        "Resources": {"R": {"Type": "AWS::SNS::Topic", "Properties": values}},
        "Outputs": {f"O{name}": {"Value": "x", "Export": {"Name": name}} for name in exports},
    }


def storage_and(hyperpod: tuple[dict[str, Any], dict[str, Any]]) -> list[Pair]:
    """Return the stacks of a deployment in which storage stops to export b."""
    storage = Pair(STORAGE, template(exports=("a", "b")), template(exports=("a",)))
    return [storage, Pair(HYPERPOD, *hyperpod)]


def test_a_stack_that_stops_using_a_removed_value_comes_first() -> None:
    before = template(imports=("a", "b"))
    after = template(imports=("a",))
    assert first_to_deploy(SLURM, storage_and((before, after))) == ["SlurmHyperPodStack"]


def test_other_stacks_keep_their_order() -> None:
    unchanged = template(imports=("a",)), template(imports=("a",))
    still_uses = template(imports=("a", "b")), template(imports=("a", "b"))
    with_new_value = template(imports=("b",)), template(imports=("c",))
    for hyperpod in (unchanged, still_uses, with_new_value):
        assert first_to_deploy(SLURM, storage_and(hyperpod)) == []


def test_a_stack_without_a_section_has_to_be_deleted_first() -> None:
    left = template(imports=("b",))
    pairs = [
        *storage_and((template(), template()))[:1],
        Pair("esm2-slurm-slurm-observability", left, left),
    ]
    with pytest.raises(
        ValueError, match="delete-stack --stack-name esm2-slurm-slurm-observability"
    ):
        first_to_deploy(SLURM, pairs)


class Deployment:
    """The tool with an account of the test's and a record of the CDK's commands."""

    def __init__(self, cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
        self.aws = AnsweringAws(cluster.region)
        self.commands: list[tuple[str, ...]] = []
        self.slept: list[float] = []
        self.status = 0
        self.aws.answer(
            "cloudformation", "GetTemplate", Refusal("ValidationError", "does not exist")
        )
        self.aws.answer(
            "cloudformation", "DescribeStacks", Refusal("ValidationError", "does not exist")
        )
        self.aws.answer("sagemaker", "DescribeCluster", Refusal("ResourceNotFound"))
        self.aws.answer("eks", "DescribeCluster", Refusal("ResourceNotFoundException"))
        self.aws.answer("sagemaker", "ListClusterOperations", {"ClusterOperationSummaries": []})
        self.aws.answer("sagemaker", "ListClusterEvents", {"Events": []})
        self.aws.answer("logs", "DescribeLogGroups", {"logGroups": []})
        monkeypatch.setattr(deploy, "load_cluster", lambda _: cluster)
        monkeypatch.setattr(deploy, "open_session", lambda region, profile: self.aws.session)
        monkeypatch.setattr(deploy, "deployed_and_new", lambda cluster, session: [])
        monkeypatch.setattr(deploy, "require_charts", lambda cluster: None)
        monkeypatch.setattr(deploy, "_cdk", self._cdk)
        # A clock of the module alone: threads of other tests read the real one.
        self.clock = SimpleNamespace(sleep=self.slept.append, monotonic=time.monotonic)
        monkeypatch.setattr(deploy, "time", self.clock)
        self._monkeypatch = monkeypatch

    def _cdk(self, *arguments: str) -> int:
        self.commands.append(arguments)
        return self.status

    def run(self, *arguments: str) -> int:
        self._monkeypatch.setattr(sys, "argv", ["deploy", *arguments])
        return deploy.main()

    def log_groups(self, *groups: dict[str, Any]) -> list[str]:
        """Set the account's log groups, and return the list of later deletions."""
        there = {group["logGroupName"]: group for group in groups}
        deleted = list[str]()

        def delete(parameters: Parameters) -> dict[str, Any]:
            deleted.append(parameters["logGroupName"])
            return {}

        def describe(parameters: Parameters) -> dict[str, Any]:
            return {"logGroups": [there[name] for name in there if len(deleted) < 2]}

        self.aws.answer("logs", "DeleteLogGroup", delete)
        self.aws.answer("logs", "DescribeLogGroups", describe)
        return deleted


def test_options_reach_the_cdk_and_its_status_comes_back(monkeypatch: pytest.MonkeyPatch) -> None:
    deployment = Deployment(SLURM, monkeypatch)
    assert deployment.run("deploy", "--all", "--require-approval", "never", "--no-rollback") == 0
    synth, deployed = deployment.commands
    assert synth == ("synth", "--quiet", "--context=cluster=clusters/slurm.yaml")
    assert deployed[:3] == ("--app", "cdk.out", "deploy")
    assert deployed[3:] == ("--all", "--require-approval", "never", "--no-rollback")
    deployment.status = 7
    assert deployment.run("deploy", "--all") == 7


@pytest.mark.parametrize(
    ("boundary", "options"),
    [
        (None, ()),
        ("arn:aws:iam::aws:policy/PowerUserAccess", ()),
        (
            "arn:aws:iam::123456789012:policy/platform/hpc-boundary",
            (
                "--custom-permissions-boundary=platform/hpc-boundary",
                "--apply-permissions-boundary-to-all-roles",
            ),
        ),
    ],
)
def test_bootstrap_gives_its_roles_the_boundary_of_the_file(
    boundary: str | None,
    options: tuple[str, ...],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    cluster = SLURM.model_copy(update={"iam": Iam(permissions_boundary=boundary)})
    deployment = Deployment(cluster, monkeypatch)
    assert deployment.run("bootstrap", "--cloudformation-execution-policies", "arn:p") == 0
    given = (*options, "--cloudformation-execution-policies", "arn:p")
    (command,) = deployment.commands
    assert command == ("bootstrap", "--context=cluster=clusters/slurm.yaml", *given)
    assert capsys.readouterr().out == f"cdk bootstrap {' '.join(given)}\n"


@pytest.mark.parametrize("access", [[], [ADMIN | {"level": "none"}]])
def test_a_cluster_without_users_is_refused(
    access: list[dict[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    cluster = shipped_eks("eks", kubernetes={"access": access})
    with pytest.raises(ValueError, match="gives no one access, so no one can use kubectl"):
        Deployment(cluster, monkeypatch).run("deploy", "--all")


def scaled_cluster(**properties: Any) -> dict[str, Any]:
    group = {"InstanceGroupName": "p5", "InstanceCount": 0}
    own = {"AutoScaling": {"Mode": "Enable"}, "InstanceGroups": [group], **properties}
    return {"Resources": {"Cluster": {"Type": "AWS::SageMaker::Cluster", "Properties": own}}}


@pytest.mark.parametrize(
    ("running", "changed", "arguments", "refused"),
    [
        (3, True, ("--all",), True),
        (3, True, ("EksHyperPodStack",), True),
        (0, True, ("--all",), False),
        (3, False, ("--all",), False),
        (3, True, ("EksStorageStack",), False),
        (3, True, ("--all", "--end-scaled-nodes"), False),
    ],
)
def test_nodes_that_karpenter_started_are_not_ended_by_an_update(
    running: int,
    changed: bool,
    arguments: tuple[str, ...],
    refused: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cluster = shipped_eks("eks", kubernetes={"access": [ADMIN]})
    deployment = Deployment(cluster, monkeypatch)
    group = {"InstanceGroupName": "p5", "CurrentCount": running, "TargetCount": running}
    described = cluster_description(cluster.name, [group])
    deployment.aws.answer("sagemaker", "DescribeCluster", described)
    deployment.aws.answer("sagemaker", "ListClusterEvents", {"Events": []})
    new = scaled_cluster(NodeRecovery="None") if changed else scaled_cluster()
    pairs = [Pair("esm2-eks-eks-hyperpod", scaled_cluster(), new)]
    monkeypatch.setattr(deploy, "deployed_and_new", lambda cluster, session: pairs)
    if refused:
        with pytest.raises(ValueError, match=r"Karpenter's groups p5 \(3 nodes\), and may end"):
            deployment.run("deploy", *arguments)
        assert [command[0] for command in deployment.commands] == ["synth"]
    else:
        deployment.run("deploy", *arguments)
        assert "--end-scaled-nodes" not in deployment.commands[-1]
        assert "deploy" in deployment.commands[-1]


@pytest.mark.parametrize(
    ("arguments", "refused"),
    [(("--all",), True), (("EksHyperPodStack",), True), (("EksStorageStack",), False)],
)
def test_moved_access_entries_are_refused_before_anything_is_deployed(
    arguments: tuple[str, ...], refused: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    roles = [f"arn:aws:iam::123456789012:role/{name}" for name in ("leaver", "ada", "ben")]

    def of(principals: list[str]) -> dict[str, Any]:
        return {
            "Resources": {
                f"Access{place}": {
                    "Type": "AWS::EKS::AccessEntry",
                    "Properties": {"PrincipalArn": principal},
                }
                for place, principal in enumerate(principals)
            }
        }

    stack = "esm2-eks-eks-hyperpod"
    deployment = Deployment(shipped_eks("eks", kubernetes={"access": [ADMIN]}), monkeypatch)
    DeployedStacks(deployment.aws, {stack: of(roles)})
    pairs = [Pair(stack, of(roles), of(roles[1:]))]
    monkeypatch.setattr(deploy, "deployed_and_new", lambda cluster, session: pairs)
    if refused:
        with pytest.raises(ValueError, match=f"would move access entries .*: {roles[1]}, "):
            deployment.run("deploy", *arguments)
        assert [command[0] for command in deployment.commands] == ["synth"]
    else:
        assert deployment.run("deploy", *arguments) == 0


def test_deletes_only_a_log_group_that_eks_created(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = shipped_eks("eks", kubernetes={"access": [ADMIN]})
    name = f"/aws/eks/{cluster.name}/cluster"
    for group, expected in (
        ({"logGroupName": name}, [name]),
        ({"logGroupName": name, "retentionInDays": 90}, []),
        ({"logGroupName": f"{name}-other"}, []),
    ):
        deployment = Deployment(cluster, monkeypatch)
        deleted = deployment.log_groups(group)
        assert deployment.run("deploy", "--all") == 0
        assert deleted == expected


def test_destroy_looks_twice_for_late_logs(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = shipped_eks("eks")
    deployment = Deployment(cluster, monkeypatch)
    deleted = deployment.log_groups({"logGroupName": f"/aws/eks/{cluster.name}/cluster"})
    assert deployment.run("destroy", "EksHyperPodStack", "--force") == 0
    assert len(deleted) == 2 and deployment.slept == [60]
    assert deployment.commands[0][-2:] == ("EksHyperPodStack", "--force")
    assert "which EKS created for late entries" in capsys.readouterr().out


@pytest.mark.parametrize("command", ["deploy", "destroy"])
def test_logs_and_users_of_an_existing_eks_cluster_are_its_owners(
    monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    cluster = shipped_eks("eks", kubernetes={"existing": "lab-eks"})
    deployment = Deployment(cluster, monkeypatch)
    deleted = deployment.log_groups({"logGroupName": "/aws/eks/lab-eks/cluster"})
    assert deployment.run(command, "EksHyperPodStack") == 0
    assert deleted == []


def test_waits_for_workers_and_reports_those_that_are_missing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    cluster = SLURM.model_copy(update={"wait": "workers", "wait_minutes": 5})
    deployment = Deployment(cluster, monkeypatch)
    counts = iter([0, 1, 2])

    def describe(parameters: Parameters) -> dict[str, Any]:
        return {
            "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
            "ClusterStatus": "InService",
            "InstanceGroups": [
                {"InstanceGroupName": "controller", "CurrentCount": 1, "TargetCount": 1},
                {"InstanceGroupName": "workers", "CurrentCount": next(counts), "TargetCount": 2},
            ],
        }

    deployment.aws.answer("sagemaker", "DescribeCluster", describe)
    assert deployment.run("deploy", "--all") == 0 and deployment.slept == [30, 30]
    said = capsys.readouterr().out
    assert "waiting for workers (1 of 2)" in said
    assert said.endswith("operations: none\nevents: none\n")

    counts = iter([1])
    event = {
        "EventId": "1",
        "ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl",
        "ClusterName": cluster.name,
        "ResourceType": "Instance",
        "EventTime": datetime(2026, 11, 25, 9, 0, tzinfo=UTC),
        "Description": "insufficient capacity",
    }
    deployment.aws.answer("sagemaker", "ListClusterEvents", {"Events": [event]})
    deployment.clock.monotonic = iter([0.0, 301.0]).__next__
    assert deployment.run("deploy", "--all") == 1
    said = capsys.readouterr()
    assert "workers     2       1" in said.out and "insufficient capacity" in said.out
    assert "missing nodes: workers (1 of 2)" in said.err


def test_missing_nodes_are_reported_without_a_wait(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    deployment = Deployment(SLURM, monkeypatch)
    groups = [{"InstanceGroupName": "workers", "CurrentCount": 0, "TargetCount": 2}]
    description = {"ClusterArn": "arn:x", "ClusterStatus": "InService", "InstanceGroups": groups}
    deployment.aws.answer("sagemaker", "DescribeCluster", description)
    assert deployment.run("deploy", "--all") == 0
    assert "missing nodes: workers (0 of 2)" in capsys.readouterr().err


def test_a_failed_deployment_as_json(monkeypatch: pytest.MonkeyPatch, run_json: RunJson) -> None:
    deployment = Deployment(SLURM, monkeypatch)
    deployment.status = 1
    name = HYPERPOD
    arn = f"arn:aws:cloudformation:us-west-2:123456789012:stack/{name}/1"
    time = datetime(2026, 11, 25, 9, 0, tzinfo=UTC)

    def describe(parameters: Parameters) -> dict[str, Any]:
        if parameters["StackName"] != name:
            raise Refusal("ValidationError", "does not exist")
        found = {"StackName": name, "StackStatus": "UPDATE_ROLLBACK_COMPLETE", "CreationTime": time}
        return {"Stacks": [found]}

    def event(logical_id: str, kind: str, status: str, reason: str) -> dict[str, Any]:
        is_stack = kind == "AWS::CloudFormation::Stack"
        return {
            "StackId": arn,
            "EventId": f"{logical_id}-{status}-{reason}",
            "StackName": name,
            "LogicalResourceId": logical_id,
            "PhysicalResourceId": arn if is_stack else "x",
            "ResourceType": kind,
            "Timestamp": time,
            "ResourceStatus": status,
            "ResourceStatusReason": reason,
        }

    events = [
        event(name, "AWS::CloudFormation::Stack", "UPDATE_ROLLBACK_COMPLETE", ""),
        event("Cluster", "AWS::SageMaker::Cluster", "UPDATE_FAILED", "no capacity"),
        event(name, "AWS::CloudFormation::Stack", "UPDATE_IN_PROGRESS", "User Initiated"),
        event("Role", "AWS::IAM::Role", "CREATE_FAILED", "of an earlier change"),
    ]
    deployment.aws.answer("cloudformation", "DescribeStacks", describe)
    deployment.aws.answer("cloudformation", "DescribeStackEvents", {"StackEvents": events})
    document = run_json(deploy.main, "deploy", "--all")
    assert document["exit_status"] == 1
    failure = {"logical_id": "Cluster", "type": "AWS::SageMaker::Cluster", "reason": "no capacity"}
    assert document["result"]["stacks"] == [
        {"name": name, "status": "UPDATE_ROLLBACK_COMPLETE", "failures": [failure]}
    ]
    assert "--json" not in deployment.commands[0]


def test_a_deployment_as_json(monkeypatch: pytest.MonkeyPatch, run_json: RunJson) -> None:
    deployment = Deployment(SLURM, monkeypatch)
    groups = [{"InstanceGroupName": "workers", "CurrentCount": 0, "TargetCount": 2}]
    description = {"ClusterArn": "arn:x", "ClusterStatus": "InService", "InstanceGroups": groups}
    deployment.aws.answer("sagemaker", "DescribeCluster", description)
    result = run_json(deploy.main, "deploy", "--all")["result"]
    assert result["groups"] == [{"name": "workers", "wanted": 2, "running": 0}]
    assert result["missing"] == ["workers (0 of 2)"] and result["events"] == []
