"""make apply-lifecycle: the controller, then login nodes, by sessions that run their commands here."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from config.node_settings import node_settings_text
from tests.stacks.synthesized import assembly, read_templates
from tests.tools.accounts import STARTED
from tests.tools.answering_aws import ACCOUNT, AnsweringAws, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tests.tools.nodes.node_sessions import NodeSessions
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tools.nodes import apply_lifecycle

HASH = "0123456789abcdef"
SOURCE = f"s3://sagemaker-esm2-p5-123456789012-us-east-1/lifecycle/{HASH}"
P5 = shipped("slurm-p5")
GROUPS = {group.role: group.name for group in P5.instance_groups}
CONTROLLER = GROUPS["controller"]
LOGIN = GROUPS["login"]
NODES = [node(CONTROLLER, 1), node(LOGIN, 1), node(LOGIN, 2), node(GROUPS["worker"], 1)]
FAKE_APPLY = """
import os, sys
print("apply:", *sys.argv[1:], "in", os.path.basename(os.getcwd()))
sys.exit({status})
"""
FAKE_SETUP = 'echo "setup, seconds to ship the log: $SECONDS_TO_SHIP_LOG"; exit {status}'


def stack(**changes: Any) -> dict[str, Any]:
    outputs = [{"OutputKey": "LifecycleSourceS3Uri", "OutputValue": SOURCE}]
    described = {
        "StackName": f"{P5.name}-slurm-hyperpod",
        "StackId": f"arn:aws:cloudformation:us-east-1:{ACCOUNT}:stack/x/0a1b",
        "CreationTime": STARTED,
        "StackStatus": "UPDATE_COMPLETE",
        "Outputs": outputs,
    }
    return {"Stacks": [described | changes]}


class Account:
    """A running cluster with a login group; its nodes fetch scripts that say how they were called."""

    def __init__(self, folder: Path) -> None:
        groups = [group(name, "Compute", 1) for name in GROUPS.values() if name != CONTROLLER]
        self.groups = [group(CONTROLLER, "Controller", 1), *groups]
        self.sessions = NodeSessions(folder / "aws")
        self.upload()
        self.set_nodes(NODES)

    def set_nodes(self, nodes: list[dict[str, Any]]) -> None:
        self.aws: AnsweringAws = running_cluster(P5.name, self.groups, nodes)
        self.aws.answer("cloudformation", "DescribeStacks", stack())

    def upload(self, *, controller: int = 0, login: int = 0) -> None:
        files = {"apply_to_cluster.py": FAKE_APPLY.format(status=controller)}
        self.sessions.upload(HASH, files | {"on_init_complete.sh": FAKE_SETUP.format(status=login)})


@pytest.fixture
def account(tmp_path: Path) -> Account:
    return Account(tmp_path)


Run = Callable[..., int]


@pytest.fixture
def run(account: Account, monkeypatch: pytest.MonkeyPatch) -> Run:
    def command(*arguments: str) -> int:
        monkeypatch.setattr(
            apply_lifecycle, "open_session", lambda region, profile: account.aws.session
        )
        monkeypatch.setattr(
            sys, "argv", ["apply", "--cluster", "clusters/slurm-p5.yaml", *arguments]
        )
        monkeypatch.setenv("PATH", account.sessions.path)
        return apply_lifecycle.main()

    return command


def targets(account: Account) -> list[str]:
    return [target.partition("_")[2].partition("-i-")[0] for target in account.sessions.sessions()]


def test_the_controller_is_first_and_login_nodes_follow(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run() == 0
    assert targets(account) == [CONTROLLER, LOGIN, LOGIN]
    output = capsys.readouterr().out
    assert f"{CONTROLLER}-1: apply: --source {SOURCE} in {HASH}\n" in output
    for number in (1, 2):
        assert f"{LOGIN}-{number}: setup, seconds to ship the log: 0\n" in output
    assert "session-script-ended" not in output and "SessionId" not in output


def test_options_reach_the_controller(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run("--nodes", "ip-10-0-0-31", "--wait-minutes", "90") == 0
    assert f"--source {SOURCE} --nodes ip-10-0-0-31 --wait-minutes 90 in" in capsys.readouterr().out


def test_a_controller_that_fails_stops_all(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    account.upload(controller=1)
    assert run() == 1
    assert targets(account) == [CONTROLLER]
    assert (
        f"NOT DONE: {CONTROLLER}-1, so that nothing ran on other nodes" in capsys.readouterr().err
    )


def test_undone_nodes_as_json(
    account: Account, run_json: RunJson, monkeypatch: pytest.MonkeyPatch
) -> None:
    account.upload(controller=apply_lifecycle.WORKERS_UNDONE)
    monkeypatch.setattr(
        apply_lifecycle, "open_session", lambda region, profile: account.aws.session
    )
    monkeypatch.setenv("PATH", account.sessions.path)
    document = run_json(apply_lifecycle.main, "--cluster", "clusters/slurm-p5.yaml")
    assert document["exit_status"] == 1
    assert document["result"] == {"source": SOURCE, "undone": ["some workers, see above"]}


def test_workers_that_fail_leave_login_nodes_their_turn(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    account.upload(controller=apply_lifecycle.WORKERS_UNDONE)
    assert run() == 1
    assert targets(account) == [CONTROLLER, LOGIN, LOGIN]
    assert capsys.readouterr().err.endswith("NOT DONE: some workers, see above\n")


def test_login_nodes_that_fail_or_are_away_are_named(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    account.upload(login=1)
    account.set_nodes([NODES[0], NODES[1], node(LOGIN, 2, status="Pending", message="being made")])
    assert run() == 1
    errors = capsys.readouterr().err
    assert (
        f"NOT DONE: {LOGIN}-1, see above\nNOT DONE: {LOGIN}-2: it is Pending being made\n" in errors
    )


def test_a_session_that_breaks_is_no_success(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    account.sessions.set("breaks")
    assert run() == 1
    errors = capsys.readouterr().err
    assert "the session ended before the script; the script may still be running" in errors
    assert f"{apply_lifecycle.LOG} on it has the result for it and the workers" in errors
    assert targets(account) == [CONTROLLER]


def test_without_a_session_nothing_is_begun(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    account.sessions.set("refuses")
    assert run() == 1
    errors = capsys.readouterr().err
    assert (
        f"{CONTROLLER}-1: no session could be started: An error occurred (TargetNotConnected)"
        in errors
    )
    assert errors.endswith(f"NOT DONE: {CONTROLLER}-1, so that nothing ran on other nodes\n")


def test_scripts_that_cannot_be_fetched(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    (tmp_path / "aws" / "bucket" / HASH).rename(tmp_path / "elsewhere")
    assert run() == 1
    assert f"ERROR: the scripts could not be fetched from {SOURCE}." in capsys.readouterr().out


def test_other_scripts_in_this_checkout_are_warned_of(
    account: Account, run: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    run()
    assert (
        f"note: the deployed scripts are applied, {SOURCE}. The scripts or the cluster file here differ"
        in (capsys.readouterr().err)
    )
    here = apply_lifecycle.checkout_hash(P5)
    source = SOURCE.replace(HASH, here)
    account.aws.answer(
        "cloudformation",
        "DescribeStacks",
        stack(Outputs=[{"OutputKey": "LifecycleSourceS3Uri", "OutputValue": source}]),
    )
    run()
    assert "note:" not in capsys.readouterr().err


def test_the_hash_is_the_one_that_a_deployment_uploads_under() -> None:
    template = read_templates(assembly("clusters/slurm-p5.yaml"))["SlurmHyperPodStack"]
    value = str(template["Outputs"]["LifecycleSourceS3Uri"]["Value"])
    assert f"/lifecycle/{apply_lifecycle.checkout_hash(P5)}'" in value
    other = P5.model_copy(update={"prometheus": not P5.prometheus})
    assert node_settings_text(other) != node_settings_text(P5)
    assert apply_lifecycle.checkout_hash(other) != apply_lifecycle.checkout_hash(P5)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (
            Refusal("ValidationError", "Stack with id x does not exist"),
            "there is no stack esm2-p5-slurm-hyperpod",
        ),
        (
            stack(Outputs=[], StackStatus="CREATE_IN_PROGRESS"),
            "is CREATE_IN_PROGRESS and has no output LifecycleSourceS3Uri; wait for its end",
        ),
    ],
)
def test_without_a_deployment_it_says_what_to_do(
    account: Account, run: Run, answer: Any, message: str
) -> None:
    account.aws.answer("cloudformation", "DescribeStacks", answer)
    with pytest.raises(ValueError, match=message):
        run()
    assert not account.sessions.sessions()
