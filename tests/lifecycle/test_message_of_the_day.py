"""Users see the node's state at login; a broken state does not block logins."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from node_setup.node import Node
from node_setup.step import STATE, StepResult, write_state
from node_setup.steps import message_of_the_day
from tests.lifecycle.node import StandIns, node_of


@pytest.fixture
def node(tmp_path: Path, stand_ins: StandIns) -> Node:
    return node_of(tmp_path, "login", workload_code=True)


def shown(node: Node) -> str:
    script = node.host.path("/etc/update-motd.d/99-cluster")
    done = subprocess.run([str(script)], capture_output=True, text=True, timeout=30, env={})
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def result(name: str, warnings: tuple[str, ...] = (), error: str | None = None) -> StepResult:
    return StepResult(name=name, seconds=0.1, changes=(), warnings=warnings, error=error)


def test_it_says_what_the_node_is_and_where_things_are(node: Node) -> None:
    message_of_the_day.install(node)
    write_state(
        node.host, bundle="b", group="login", role="login", results=[result("one"), result("two")]
    )
    text = shown(node)
    assert "esm2-slurm: login of group login\n  Setup: 2 steps, finished 20" in text
    assert "/fsx (fast; outlives nodes), homes in /fsx/home" in text
    assert "/fsx/workloads/current" in text
    assert "sbatch --partition=gpu <script>" in text
    assert "Warnings" not in text


def test_it_shows_a_failure_with_its_remedy_and_all_warnings(node: Node) -> None:
    message_of_the_day.install(node)
    results = [
        result("storage", warnings=("containers stay", "second")),
        result("mount", error='"/fsx" is gone. What to do: look'),
    ]
    write_state(node.host, bundle="b", group="login", role="login", results=results)
    text = shown(node)
    assert "Setup FAILED" in text
    assert 'in step mount: "/fsx" is gone. What to do: look' in text
    assert "/var/log/provision/provisioning.log" in text
    assert "storage: containers stay\n" in text and "storage: second\n" in text


@pytest.mark.parametrize(
    "state", [None, "", "{", "[]", "{}", '{"steps": 3}', '{"steps": [{}]}', "null"]
)
def test_reports_a_missing_or_broken_state(node: Node, state: str | None) -> None:
    message_of_the_day.install(node)
    path = node.host.path(STATE)
    path.parent.mkdir(parents=True)
    if state is not None:
        path.write_text(state)
    text = shown(node)
    assert "Setup: no result in" in text and "Jobs:" in text


def test_it_is_installed_once_and_runs(node: Node) -> None:
    message_of_the_day.install(node)
    assert node.changes == ["/etc/update-motd.d/99-cluster", "/etc/profile.d/cluster-message.sh"]
    node.changes = []
    message_of_the_day.install(node)
    assert node.changes == []


@pytest.mark.parametrize(
    ("environment", "terminal", "is_shown"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"SSH_CONNECTION": "10.0.0.1 1 10.0.0.2 22"}, True, False),
        ({"SUDO_USER": "ubuntu"}, True, False),
        ({"SLURM_JOB_ID": "7"}, True, False),
    ],
)
def test_login_shells_without_pam_show_it(
    node: Node, environment: dict[str, str], terminal: bool, is_shown: bool
) -> None:
    """Sessions of Systems Manager; ssh shows it already, and programs that read the output want none."""
    message_of_the_day.install(node)
    profile = node.host.path("/etc/profile.d/cluster-message.sh").read_text()
    profile = profile.replace("/etc/", f"{node.host.path('/etc')}/").replace(
        "-t 1", str(terminal).lower()
    )
    profile = profile.replace("[ true ]", "true").replace("[ false ]", "false")
    done = subprocess.run(
        ["/bin/sh", "-eu", "-c", profile],
        capture_output=True,
        text=True,
        timeout=30,
        env=environment,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert ("esm2-slurm: login" in done.stdout) == is_shown


def test_texts_that_python_would_read_otherwise_stay_as_they_are(
    tmp_path: Path, stand_ins: StandIns
) -> None:
    node = node_of(tmp_path, "login", cluster_name='a\\"b\\n"""c')
    message_of_the_day.install(node)
    assert 'a\\"b\\n"""c: login' in shown(node)


@pytest.mark.parametrize(
    ("body", "why"), [("echo 00-header", "00-header"), ("echo no folder >&2; exit 1", "no folder")]
)
def test_a_system_that_would_not_run_it_is_a_warning(
    node: Node, stand_ins: StandIns, body: str, why: str
) -> None:
    stand_ins.command("run-parts", body)
    message_of_the_day.install(node)
    assert f"log-ins do not show /etc/update-motd.d/99-cluster: {why}; run it" in node.warnings[0]
