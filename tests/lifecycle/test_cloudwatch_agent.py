"""The agent gets a configuration beside its own, and keeps running."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from config.reading.loader import load_cluster
from config.resource_names import ResourceNames
from node_setup.node import Node
from node_setup.steps import cloudwatch_agent
from tests.lifecycle.node import StandIns, node_of

# The agent's control script: appended files are copied, the status is a JSON.
_CONTROL = """#!/bin/bash
echo "ctl $*" >> "{calls}"
applied="{agent}/etc/amazon-cloudwatch-agent.d/file_cloudwatch-agent.json"
case "$2" in
    append-config) source="${{@: -1}}"; cp "${{source#file:}}" "$applied"
        {append} ;;
    remove-config) rm --force "$applied" ;;
    status) echo '{{"status": "{status}"}}' ;;
esac
"""


@pytest.fixture
def agent(tmp_path: Path, stand_ins: StandIns) -> Path:
    """The agent's folder, with the part of its configuration that ships HyperPod's logs."""
    stand_ins.command("scontrol", "echo 'SlurmctldLogFile = /var/log/slurm/ctl.log'")
    folder = tmp_path / "root/opt/aws/amazon-cloudwatch-agent"
    for name in ("bin", "etc/amazon-cloudwatch-agent.d"):
        (folder / name).mkdir(parents=True)
    others(folder, logs=["/var/log/provision/provisioning.log"])
    control(folder)
    return folder


def others(folder: Path, *, logs: list[str], namespace: str | None = None) -> None:
    """HyperPod's own configuration."""
    files = [{"file_path": path, "log_group_name": "g"} for path in logs]
    config: dict[str, Any] = {"logs": {"logs_collected": {"files": {"collect_list": files}}}}
    if namespace:
        config["metrics"] = {"namespace": namespace, "metrics_collected": {}}
    (folder / "etc/amazon-cloudwatch-agent.d/default").write_text(json.dumps(config))


def control(folder: Path, *, status: str = "running", append: str = "") -> None:
    path = folder / "bin/amazon-cloudwatch-agent-ctl"
    path.write_text(
        _CONTROL.format(calls=folder / "calls", agent=folder, status=status, append=append)
    )
    path.chmod(0o755)


def calls(agent: Path) -> list[str]:
    path = agent / "calls"
    return [line.split()[2] for line in path.read_text().splitlines()] if path.exists() else []


def apply(tmp_path: Path, group: str = "controller", *, switched_on: bool = True) -> Node:
    node = node_of(tmp_path, group, cloudwatch_agent=switched_on)
    cloudwatch_agent.apply(node)
    return node


def applied(agent: Path) -> dict[str, Any]:
    path = agent / "etc/amazon-cloudwatch-agent.d/file_cloudwatch-agent.json"
    document: dict[str, Any] = json.loads(path.read_text())
    return document


def test_logs_and_metrics_go_where_the_role_may_write(agent: Path, tmp_path: Path) -> None:
    node = apply(tmp_path)
    config = applied(agent)
    logs = config["logs"]["logs_collected"]["files"]["collect_list"]
    assert [log["file_path"] for log in logs] == ["/var/log/syslog", "/var/log/slurm/ctl.log"]
    cluster = load_cluster(Path("clusters/slurm.yaml"))
    assert cluster.name == node.settings.cluster_name
    assert {log["log_group_name"] for log in logs} == {ResourceNames(cluster).node_log_group}
    assert logs[1]["log_stream_name"] == "controller/ip-10-0-0-10/slurmctld"
    assert config["metrics"]["namespace"] == "/aws/sagemaker/Clusters"
    assert node.warnings == [] and "CloudWatch agent configured" in node.changes


def test_what_hyperpod_configured_stays(agent: Path, tmp_path: Path) -> None:
    before = (agent / "etc/amazon-cloudwatch-agent.d/default").read_text()
    apply(tmp_path)
    assert (agent / "etc/amazon-cloudwatch-agent.d/default").read_text() == before
    assert set(calls(agent)) == {"append-config", "status"}


def test_a_second_run_leaves_the_agent_alone(agent: Path, tmp_path: Path) -> None:
    apply(tmp_path)
    (agent / "calls").unlink()
    assert apply(tmp_path).changes == []
    assert calls(agent) == ["status"]


def test_a_workers_log_is_named_as_slurm_names_it(
    agent: Path, tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.command("scontrol", "echo 'SlurmdLogFile = /var/log/slurmd.%n.log'")
    apply(tmp_path, "workers")
    logs = applied(agent)["logs"]["logs_collected"]["files"]["collect_list"]
    assert logs[-1]["file_path"] == "/var/log/slurmd.ip-10-0-0-31.log"


def test_slurm_that_does_not_answer_leaves_the_usual_place(
    agent: Path, tmp_path: Path, stand_ins: StandIns
) -> None:
    stand_ins.command("scontrol", "exit 1")
    apply(tmp_path)
    logs = applied(agent)["logs"]["logs_collected"]["files"]["collect_list"]
    assert logs[-1]["file_path"] == "/var/log/slurm/slurmctld.log"


def test_metrics_are_left_out_where_the_agent_has_another_namespace(
    agent: Path, tmp_path: Path
) -> None:
    """It has one for all its files, and would not start with two: HyperPod's logs would end with it."""
    others(agent, logs=[], namespace="HyperPod")
    node = apply(tmp_path)
    assert "metrics" not in applied(agent)
    assert "the agent writes to namespace HyperPod already" in node.warnings[0]


def test_an_agent_that_stops_gets_its_own_configuration_back(agent: Path, tmp_path: Path) -> None:
    control(agent, status="stopped")
    warning = apply(tmp_path).warnings[0]
    assert "which was removed: it does not run after 90 s: its status is stop" in warning
    assert calls(agent)[-1] == "remove-config"
    assert not (agent / "etc/amazon-cloudwatch-agent.d/file_cloudwatch-agent.json").exists()
    control(agent)
    assert "CloudWatch agent configured" in apply(tmp_path).changes


def test_a_configuration_that_the_agent_refuses_is_taken_back(agent: Path, tmp_path: Path) -> None:
    control(agent, append="echo 'E! Invalid Json' >&2; exit 1")
    node = apply(tmp_path)
    assert "which was removed: E! Invalid Json" in node.warnings[0]
    assert "CloudWatch agent configured" not in node.changes
    assert calls(agent) == ["append-config", "remove-config"]


def test_an_image_without_the_agent_is_a_warning(tmp_path: Path) -> None:
    warning = apply(tmp_path).warnings[0]
    assert "this image has no agent" in warning and "node_setup.cloudwatch_agent: false" in warning
    assert apply(tmp_path, switched_on=False).warnings == []


def test_switched_off_the_agent_has_its_own_configuration_alone(
    agent: Path, tmp_path: Path
) -> None:
    apply(tmp_path)
    assert apply(tmp_path, switched_on=False).changes == [
        "CloudWatch agent: its own configuration alone"
    ]
    assert not (agent / "etc/amazon-cloudwatch-agent.d/file_cloudwatch-agent.json").exists()
    (agent / "calls").unlink()
    assert apply(tmp_path, switched_on=False).changes == [] == calls(agent)
