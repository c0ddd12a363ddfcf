"""make replace, reboot, health-check and move: jobs first, then the service's answer for each node."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.json_documents import RunJson
from tests.tools.nodes.node_sessions import NodeSessions
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tools.nodes import actions

NODES = [node("controller", 1), node("workers", 1), node("workers", 2)]
GROUPS = [group("controller", "Controller", 1), group("workers", "Compute", 2)]
FIRST, SECOND = NODES[1]["InstanceId"], NODES[2]["InstanceId"]
FIRST_HOST, SECOND_HOST = (
    found["PrivateDnsHostname"].partition(".")[0] for found in (NODES[1], NODES[2])
)
SCONTROL = """#!/bin/bash
cd {folder}
case "$*" in
*"show node "*)
    node="${{*: -1}}"
    [[ -e "unknown-$node" ]] && {{ echo "Node $node not found"; exit 1; }}
    echo "NodeName=$node Arch=x86_64 State=$(cat "state-$node" 2>/dev/null || echo IDLE) ThreadsPerCore=2"
    ;;
update*)
    echo "$*" >>updates
    node="${{2#NodeName=}}"
    state="${{3#State=}}"
    if [[ "$state" == RESUME ]]; then echo IDLE; else echo "IDLE+$state"; fi >"state-$node"
    ;;
esac
"""
SQUEUE = """#!/bin/bash
cd {folder}
[[ -e down ]] && {{ echo "slurm_load_jobs error: Unable to contact slurm controller"; exit 1; }}
node="${{2#--nodelist=}}"
while read -r number user; do
    echo "${{3#--format=}}" | sed "s/%i/$number/; s/%u/$user/; s/%M/5:00/; s/%l/1-00:00:00/; s/%j/esm2/"
done < <(cat "jobs-$node" 2>/dev/null)
"""


class Slurm:
    """Slurm's programs on the head node, with states and jobs in files."""

    def __init__(self, folder: Path) -> None:
        self.sessions = NodeSessions(folder / "aws")
        self.folder = folder / "slurm"
        self.folder.mkdir()
        for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE)):
            program = self.sessions.folder / "bin" / name
            program.write_text(text.format(folder=self.folder))
            program.chmod(0o755)

    def write(self, name: str, text: str = "") -> None:
        (self.folder / name).write_text(text)

    @property
    def updates(self) -> list[str]:
        """States that were set, as ``update NodeName=... State=... Reason=...``."""
        path = self.folder / "updates"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    found = Slurm(tmp_path)
    monkeypatch.setenv("PATH", found.sessions.path)
    return found


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = running_cluster("esm2-slurm", GROUPS, NODES)
    monkeypatch.setattr(actions, "open_session", lambda region, profile: aws.session)
    return aws


class Answers:
    """Requests of an operation, which the service accepts except for the nodes with a failure."""

    def __init__(self, aws: AnsweringAws, operation: str, *, code: str = "ErrorCode") -> None:
        self.requests: list[Parameters] = []
        self.failures: dict[str, str] = {}
        self._code = code
        aws.answer("sagemaker", operation, self._answer)

    def _answer(self, parameters: Parameters) -> dict[str, Any]:
        self.requests.append(parameters)
        ids = parameters["NodeIds"]
        failed = [
            {"NodeId": node_id, self._code: self.failures[node_id], "Message": "try later"}
            for node_id in ids
            if node_id in self.failures
        ]
        successful = [node_id for node_id in ids if node_id not in self.failures]
        lists = {"Successful": successful, "Failed": failed}
        return {name: found for name, found in lists.items() if found}


Run = Callable[..., int]


@pytest.fixture
def run(slurm: Slurm, aws: AnsweringAws, monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(action: str, *arguments: str) -> int:
        words = ["actions", action, *arguments, "--cluster", "clusters/slurm.yaml"]
        monkeypatch.setattr(sys, "argv", words)
        return actions.main()

    return command


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """Time of the command alone, which passes only while it sleeps."""
    slept: list[float] = []
    monkeypatch.setattr(
        actions, "time", SimpleNamespace(sleep=slept.append, monotonic=lambda: sum(slept))
    )
    return slept


@pytest.mark.parametrize("name", ["workers-1", FIRST, FIRST_HOST])
def test_a_node_is_replaced_after_it_is_drained(
    name: str,
    aws: AnsweringAws,
    slurm: Slurm,
    run: Run,
    capsys: pytest.CaptureFixture[str],
) -> None:
    replaced = Answers(aws, "BatchReplaceClusterNodes")
    assert run("replace", name, "--yes") == 0
    assert replaced.requests == [{"ClusterName": "esm2-slurm", "NodeIds": [FIRST]}]
    assert slurm.updates == [f"update NodeName={FIRST_HOST} State=DRAIN Reason=make replace"]
    said = capsys.readouterr().out
    assert "Both volumes are lost" in said and "No jobs run there now." in said
    assert f"workers-1 ({FIRST}): replace has begun" in said


def test_all_failures_are_shown_and_refused_nodes_take_jobs_again(
    aws: AnsweringAws, slurm: Slurm, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rebooted = Answers(aws, "BatchRebootClusterNodes")
    rebooted.failures = {FIRST: "InstanceIdInUse", SECOND: "InvalidInstanceStatus"}
    assert run("reboot", "workers-1", "workers-2", "--yes") == 1
    errors = capsys.readouterr().err.splitlines()
    assert errors == [
        f"NOT DONE: workers-1 ({FIRST}): InstanceIdInUse: try later",
        f"NOT DONE: workers-2 ({SECOND}): InvalidInstanceStatus: try later",
    ]
    assert slurm.updates[2:] == [
        f"update NodeName={host} State=RESUME" for host in (FIRST_HOST, SECOND_HOST)
    ]


def test_accepted_and_refused_nodes_as_json(
    aws: AnsweringAws, slurm: Slurm, run_json: RunJson
) -> None:
    rebooted = Answers(aws, "BatchRebootClusterNodes")
    rebooted.failures = {FIRST: "InstanceIdInUse"}
    words = ("reboot", "workers-1", "workers-2", "--cluster", "clusters/slurm.yaml", "--yes")
    document = run_json(actions.main, *words)
    assert document["command"] == "reboot" and document["exit_status"] == 1
    assert document["result"]["nodes"] == [
        {"name": "workers-1", "instance_id": FIRST, "failure": "InstanceIdInUse: try later"},
        {"name": "workers-2", "instance_id": SECOND, "failure": None},
    ]
    assert document["result"]["jobs"] == []


def test_a_node_that_was_drained_before_stays_so(aws: AnsweringAws, slurm: Slurm, run: Run) -> None:
    rebooted = Answers(aws, "BatchRebootClusterNodes")
    rebooted.failures = {FIRST: "InstanceIdInUse"}
    slurm.write(f"state-{FIRST_HOST}", "IDLE+DRAIN")
    assert run("reboot", "workers-1", "--yes") == 1
    assert slurm.updates == []


def test_a_refused_request_undoes_the_drain(aws: AnsweringAws, slurm: Slurm, run: Run) -> None:
    aws.answer("sagemaker", "BatchRebootClusterNodes", Refusal("AccessDeniedException"))
    with pytest.raises(Exception, match="AccessDeniedException"):
        run("reboot", "workers-1", "--yes")
    assert slurm.updates[-1] == f"update NodeName={FIRST_HOST} State=RESUME"


@pytest.mark.parametrize("wrong", ["-1", "nan", "inf", "ten"])
def test_a_wait_has_a_length(wrong: str, run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        run("reboot", "workers-1", "--yes", f"--wait-minutes={wrong}")
    assert f"--wait-minutes: got {wrong}; expected a number from 0" in capsys.readouterr().err


def test_running_jobs_are_waited_for(
    aws: AnsweringAws,
    slurm: Slurm,
    run: Run,
    clock: list[float],
    capsys: pytest.CaptureFixture[str],
) -> None:
    rebooted = Answers(aws, "BatchRebootClusterNodes")
    slurm.write(f"jobs-{FIRST_HOST}", "12 ada\n")
    assert run("reboot", "workers-1", "--yes", "--wait-minutes", "1") == 1
    said = capsys.readouterr()
    job = f"  job 12 of ada on {FIRST_HOST}, running for 5:00 of 1-00:00:00: esm2\n"
    assert job in said.out and "The command waits up to 1 minutes" in said.out
    assert "Slurm requeues jobs unless they forbid it" in said.out
    assert "take no new jobs" in said.err and not rebooted.requests
    assert clock == [30, 30]
    assert slurm.updates == [f"update NodeName={FIRST_HOST} State=DRAIN Reason=make reboot"]
    assert run("reboot", "workers-1", "--yes", "--now") == 0
    assert rebooted.requests and len(clock) == 2


def test_nodes_take_jobs_again_on_request(slurm: Slurm, run: Run) -> None:
    assert run("reboot", "workers-1", "--resume") == 0
    assert slurm.updates == [f"update NodeName={FIRST_HOST} State=RESUME"]


def test_a_node_that_never_joined_can_be_replaced(
    aws: AnsweringAws, slurm: Slurm, run: Run
) -> None:
    replaced = Answers(aws, "BatchReplaceClusterNodes")
    slurm.write(f"unknown-{FIRST_HOST}")
    assert run("replace", "workers-1", "--yes") == 0
    assert replaced.requests and slurm.updates == []


def test_the_controller_is_rebooted_without_a_session(
    aws: AnsweringAws, slurm: Slurm, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    rebooted = Answers(aws, "BatchRebootClusterNodes")
    assert run("reboot", "controller-1", "--yes") == 0
    assert rebooted.requests
    assert not (slurm.sessions.folder / "calls").exists(), "the aws command has not run"
    said = capsys.readouterr().out
    assert "no job starts until it is back" in said and "--resume" not in said


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["replace", "controller-1"], "controller-1 is the controller, which the service does not"),
        (["replace"], "NODE: name the node, as NODE=<group>-<n>"),
        (["replace", "workers"], "NODE: workers has 2 nodes; name each: workers-1 workers-2"),
        (["replace", "workers-9"], "no node workers-9 in cluster esm2-slurm"),
        (["reboot", "workers-1"], "there is no terminal to confirm in; use a terminal, or --yes"),
        (["reboot", "workers-1", "--to", "x"], "and only make move; omit TO for make reboot"),
        (["move", "workers-1", "--to", "x"], "esm2-slurm runs Slurm: the service moves nodes"),
        (["reboot", "controller-1", "--resume"], "--resume: no jobs run on controller-1"),
    ],
)
def test_mistakes_change_nothing(
    arguments: list[str], message: str, slurm: Slurm, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(ValueError, match=message):
        run(*arguments)
    assert slurm.updates == []


def test_anything_but_yes_changes_nothing(
    slurm: Slurm, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = SimpleNamespace(isatty=lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    monkeypatch.setattr("builtins.input", lambda text: "y")
    with pytest.raises(ValueError, match="got 'y', expected yes; nothing was changed"):
        run("reboot", "workers-1")
    assert slurm.updates == []


def test_slurm_that_does_not_answer_is_named(slurm: Slurm, run: Run) -> None:
    slurm.write("down")
    with pytest.raises(ValueError, match=r"controller-1: .*Unable to contact slurm controller"):
        run("reboot", "workers-1", "--yes")


def test_health_checks_of_groups_are_one_request(
    aws: AnsweringAws, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Parameters] = []

    def start(parameters: Parameters) -> dict[str, Any]:
        requests.append(parameters)
        return {"ClusterArn": "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"}

    aws.answer("sagemaker", "StartClusterHealthCheck", start)
    arguments = ("workers-1", "workers-2", "--checks", "InstanceStress", "--yes")
    assert run("health-check", *arguments) == 0
    (configuration,) = requests[0]["DeepHealthCheckConfigurations"]
    assert configuration == {
        "InstanceGroupName": "workers",
        "InstanceIds": [FIRST, SECOND],
        "DeepHealthChecks": ["InstanceStress"],
    }
    said = capsys.readouterr().out
    assert f'make health-check NODE="{FIRST} {SECOND}" ARGS=--resume' in said


def test_health_checks_need_accelerators(aws: AnsweringAws, run: Run) -> None:
    plain = NODES[1] | {"InstanceType": "ml.m5.large"}
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": [NODES[0], plain]})
    with pytest.raises(ValueError, match=r"workers-1 is ml\.m5\.large, without accelerators"):
        run("health-check", "workers-1", "--yes")
