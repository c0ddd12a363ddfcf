"""make replace and make move on EKS: the real kubectl cordons nodes of a stand-in of the API server."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Parameters
from tests.tools.kubernetes_api import Objects
from tests.tools.nodes.slurm_nodes import node, running_cluster
from tools.nodes import actions

SYSTEM, FIRST, SECOND = node("system", 1), node("workers", 1), node("workers", 2)
IDS = [FIRST["InstanceId"], SECOND["InstanceId"]]
TYPE = FIRST["InstanceType"]
ARN = f"arn:aws:sagemaker:us-west-2:{ACCOUNT}:cluster"


def cluster_of(name: str, *groups: str, **changes: Any) -> dict[str, Any]:
    """DescribeCluster's answer for an EKS cluster with continuous provisioning."""
    return {
        "ClusterArn": f"{ARN}/{'abc123def456' if name == 'esm2-eks' else 'fed654cba321'}",
        "ClusterName": name,
        "ClusterStatus": "InService",
        "InstanceGroups": [{"InstanceGroupName": found, "InstanceType": TYPE} for found in groups],
        "Orchestrator": {"Eks": {"ClusterArn": f"arn:aws:eks:us-west-2:{ACCOUNT}:cluster/{name}"}},
        "NodeProvisioningMode": "Continuous",
        **changes,
    }


@pytest.fixture
def objects(server: tuple[Objects, Path]) -> Objects:
    """Both workers have joined, and a pod of a job runs on the first."""
    found, _ = server
    for node_id in IDS:
        found.add("nodes", "", f"hyperpod-{node_id}", spec={})
    owners = {
        "esm2-pod-0": "HyperPodPyTorchJob",
        "node-exporter": "DaemonSet",
    }
    for name, kind in owners.items():
        found.add(
            "pods",
            "hyperpod-ns-proteins",
            name,
            metadata={"ownerReferences": [{"kind": kind, "name": "owner"}]},
            spec={"nodeName": f"hyperpod-{IDS[0]}"},
            status={"phase": "Running"},
        )
    return found


@pytest.fixture
def clusters(monkeypatch: pytest.MonkeyPatch) -> dict[str, dict[str, Any]]:
    return {
        "esm2-eks": cluster_of("esm2-eks", "system", "workers", "spare"),
        "other": cluster_of("other", "workers"),
    }


@pytest.fixture
def aws(clusters: dict[str, dict[str, Any]], monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = running_cluster("esm2-eks", [], [SYSTEM, FIRST, SECOND])
    aws.answer("sagemaker", "DescribeCluster", lambda asked: clusters[asked["ClusterName"]])
    monkeypatch.setattr(actions, "open_session", lambda region, profile: aws.session)
    return aws


Run = Callable[..., int]


@pytest.fixture
def run(
    server: tuple[Objects, Path],
    objects: Objects,
    aws: AnsweringAws,
    monkeypatch: pytest.MonkeyPatch,
) -> Run:
    def command(action: str, *arguments: str) -> int:
        options = ["--cluster", "clusters/eks.yaml", "--kubeconfig", str(server[1]), "--yes"]
        monkeypatch.setattr(sys, "argv", ["actions", action, *arguments, *options])
        return actions.main()

    return command


def cordoned(objects: Objects) -> list[str]:
    return [
        found["metadata"]["name"]
        for found in objects.of("nodes")
        if found["spec"].get("unschedulable")
    ]


def accept_moves(aws: AnsweringAws, failed: str = "") -> list[Parameters]:
    """Let the service accept all moves but that of one node, and return the list of later requests."""
    requests: list[Parameters] = []

    def answer(parameters: Parameters) -> dict[str, Any]:
        requests.append(parameters)
        moved = [node_id for node_id in parameters["NodeIds"] if node_id != failed]
        failure = {"NodeId": failed, "Code": "InvalidNodeStatus", "Message": "has a volume"}
        return {"Successful": moved} | ({"Failed": [failure]} if failed else {})

    aws.answer("sagemaker", "MoveClusterNodes", answer)
    return requests


def test_a_replaced_node_is_cordoned_and_its_pods_are_named(
    aws: AnsweringAws, objects: Objects, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Parameters] = []

    def replace(parameters: Parameters) -> dict[str, Any]:
        requests.append(parameters)
        assert cordoned(objects) == [f"hyperpod-{IDS[0]}"]
        return {"Successful": parameters["NodeIds"]}

    aws.answer("sagemaker", "BatchReplaceClusterNodes", replace)
    assert run("replace", f"hyperpod-{IDS[0]}", "--now") == 0
    assert requests == [{"ClusterName": "esm2-eks", "NodeIds": IDS[:1]}]
    said = capsys.readouterr().out
    assert "  pod esm2-pod-0 in hyperpod-ns-proteins, on workers-1\n" in said
    assert "node-exporter" not in said and "Their operator starts pods elsewhere" in said


def test_nodes_are_uncordoned_on_request(objects: Objects, run: Run) -> None:
    for found in objects.of("nodes"):
        found["spec"]["unschedulable"] = True
    assert run("reboot", "workers-1", "--resume") == 0
    assert cordoned(objects) == [f"hyperpod-{IDS[1]}"]


def test_nodes_move_to_another_group_and_those_that_stay_take_pods(
    aws: AnsweringAws, objects: Objects, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = accept_moves(aws, failed=IDS[1])
    assert run("move", "workers-1", "workers-2", "--to", "spare", "--now") == 1
    (request,) = requests
    assert request == {
        "SourceClusterArn": f"{ARN}/abc123def456",
        "SourceInstanceGroupName": "workers",
        "TargetClusterArn": f"{ARN}/abc123def456",
        "TargetInstanceGroupName": "spare",
        "NodeIds": IDS,
    }
    said = capsys.readouterr()
    assert f"NOT DONE: workers-2 ({IDS[1]}): InvalidNodeStatus: has a volume" in said.err
    assert "lower num_instances of workers by 1, and raise it for spare of esm2-eks" in said.out
    assert cordoned(objects) == [f"hyperpod-{IDS[0]}"]


def test_a_node_moves_to_another_cluster(
    aws: AnsweringAws, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    requests = accept_moves(aws)
    assert run("move", "workers-2", "--to", "other/workers") == 0
    assert requests[0]["TargetClusterArn"] == f"{ARN}/fed654cba321"
    assert requests[0]["TargetInstanceGroupName"] == "workers"
    assert "--resume" not in capsys.readouterr().out


@pytest.mark.parametrize(
    ("to", "changes", "message"),
    [
        ("spares", {}, "TO: esm2-eks has no group spares; its groups are spare, system, workers"),
        ("workers", {}, "TO: the nodes are in group workers already; name another group"),
        ("spare", {"NodeProvisioningMode": None}, "TO: esm2-eks has no continuous provisioning"),
        (
            "spare",
            {"ClusterStatus": "Updating"},
            "esm2-eks is Updating; wait until it is InService",
        ),
        ("spare", {"Orchestrator": {"Slurm": {}}}, "TO: esm2-eks runs Slurm; nodes move between"),
    ],
)
def test_moves_that_the_service_would_refuse(
    to: str,
    changes: dict[str, Any],
    message: str,
    clusters: dict[str, dict[str, Any]],
    objects: Objects,
    run: Run,
) -> None:
    described = clusters["esm2-eks"] | changes
    clusters["esm2-eks"] = {key: value for key, value in described.items() if value is not None}
    with pytest.raises(ValueError, match=message):
        run("move", "workers-1", "--to", to)
    assert cordoned(objects) == []


def test_moves_of_other_types_and_of_two_groups(
    clusters: dict[str, dict[str, Any]], run: Run
) -> None:
    clusters["esm2-eks"]["InstanceGroups"][2]["InstanceType"] = "ml.p5.48xlarge"
    with pytest.raises(ValueError, match=r"workers-1 is ml\.g5\.8xlarge, and group spare has ml\."):
        run("move", "workers-1", "--to", "spare")
    with pytest.raises(ValueError, match="NODE: the nodes are in the groups system, workers"):
        run("move", "workers-1", "system-1", "--to", "spare")
    with pytest.raises(ValueError, match=r"TO: got ''; .*; add TO=<group>"):
        run("move", "workers-1")
