"""Run of the steps: their order, the log, the exit status, and messages of failures."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest

from tests.lifecycle.node import Bundle, resource_config, settings_document

STEPS = """
from node_setup.failure import SetupError
from node_setup.step import Step

def first(node):
    node.install("/etc/first", f"{node.facts.group} {node.facts.hardware.instance_type}")

def second(node):
    %s

STEPS = (
    Step("first", first),
    Step("workers-only", lambda node: node.changed("never"), roles=("worker",)),
    Step("switched-off", lambda node: node.changed("never"), switched_on=lambda settings: settings.metrics),
    Step("second", second),
    Step("third", lambda node: node.warn("the third is slow")),
)
"""


def bundle(folder: Path, second: str = "pass") -> Bundle:
    return Bundle(folder, STEPS % second)


def state(node: Bundle) -> dict[str, Any]:
    document: dict[str, Any] = json.loads((node.root / "var/lib/node-setup/state.json").read_text())
    return document


def test_steps_of_the_role_run_in_order(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    result = node.run()
    assert result.status == 0, result.output
    assert (node.root / "etc/first").read_text() == "login ml.m5.4xlarge"
    for line in (
        "esm2-slurm: login ip-node (10.0.0.20) of group login",
        "step 1/3 first: ok, 1 change, ",
        "step 2/3 second: ok, 0 changes, ",
        "WARNING: the third is slow",
        "done: 3 steps, 1 changes, 1 warnings",
    ):
        assert line in result.output
    assert "never" not in result.output
    assert node.log == result.output
    assert node.stand_ins.calls == ["hostname --all-ip-addresses", "hostname --short"]


def test_a_second_run_changes_nothing_and_adds_to_the_log(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    first = node.run()
    second = node.run()
    assert "done: 3 steps, 0 changes" in second.output
    assert node.log == first.output + second.output


def test_the_outcome_is_kept_for_people(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    node.run()
    kept = state(node)
    assert (kept["bundle"], kept["group"], kept["role"]) == ("bundle", "login", "login")
    assert kept["failed_step"] is None
    assert [step["name"] for step in kept["steps"]] == ["first", "second", "third"]
    assert kept["steps"][0]["changes"] == ["/etc/first"]
    assert kept["steps"][2]["warnings"] == ["the third is slow"]


def test_a_failed_step_is_named_with_what_to_do(tmp_path: Path) -> None:
    node = bundle(tmp_path, 'raise SetupError("the disk is full", "empty it")')
    result = node.run()
    assert result.status == 1
    assert "ERROR: step second failed: the disk is full. What to do: empty it" in result.output
    assert "step 3/3" not in result.output
    assert "on_init_complete: failed;" in node.log
    # The time in which the service ships the log.
    assert node.stand_ins.calls[-1] == "sleep 60"
    assert state(node)["failed_step"] == "second"
    assert state(node)["steps"][-1]["error"] == "the disk is full. What to do: empty it"


def test_a_fault_of_the_script_itself_fails_the_node_with_its_traceback(tmp_path: Path) -> None:
    node = bundle(tmp_path, "{}['nothing']")
    result = node.run()
    assert result.status == 1
    assert (
        "ERROR: step second failed: KeyError: 'nothing'. What to do: report the lines above"
        in result.output
    )
    assert "Traceback (most recent call last)" in node.log


def test_what_is_made_is_open_to_users_whatever_the_shell_is_set_to(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    before = os.umask(0o077)
    try:
        node.run()
    finally:
        os.umask(before)
    assert (node.root / "etc").stat().st_mode & 0o777 == 0o755


def test_a_full_disk_says_where_to_look(tmp_path: Path) -> None:
    node = bundle(tmp_path, 'raise OSError(28, "No space left on device", "/etc/x")')
    assert (
        "No space left on device: '/etc/x'. What to do: see `df --human-readable`"
        in node.run().output
    )


def test_platform_files_of_another_shape_fail_the_node_by_name(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    node.write_resource_config(json.dumps({**resource_config(), "SlurmConfig": ["10.0.0.10"]}))
    result = node.run()
    assert result.status == 1
    assert "Traceback (most recent call last)" in node.log
    assert (
        "ERROR: step facts failed: AttributeError: 'list' object has no attribute 'get'"
        in result.output
    )


def test_after_the_repair_the_same_run_succeeds(tmp_path: Path) -> None:
    node = bundle(tmp_path, 'node.host.run("false")')
    assert node.run().status == 1
    node.stand_ins.command("false")
    assert node.run().status == 0
    assert state(node)["failed_step"] is None


def test_a_command_that_fails_is_shown_with_what_it_said(tmp_path: Path) -> None:
    node = bundle(tmp_path, 'node.host.run("grep", "--no-such")')
    assert (
        "ERROR: step second failed: `grep --no-such` ended with 2: grep: unrecognized option"
        in node.run().output
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"metrics": "yes"}, "settings.json: metrics: got 'yes'; expected bool"),
        ({"surprise": 1}, "settings.json: the file: got ["),
        ({"downloads": "ftp"}, "downloads: got 'ftp'; expected 'internet' or 'artifact_bucket'"),
        ({"groups": [{"name": "a", "gid": "1"}]}, "groups[0].gid: got '1'; expected int"),
    ],
)
def test_settings_of_another_version_are_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    node = bundle(tmp_path)
    (node.folder / "settings.json").write_text(json.dumps(settings_document(**change)))
    result = node.run()
    assert result.status == 1
    assert "ERROR: step facts failed: " in result.output
    assert message in result.output
    assert "upload scripts and settings together" in result.output


@pytest.mark.parametrize(("text", "why"), [("{", "is not JSON"), (None, "cannot be read")])
def test_settings_that_are_not_there_are_refused(
    tmp_path: Path, text: str | None, why: str
) -> None:
    node = bundle(tmp_path)
    path = node.folder / "deployment.json"
    path.unlink() if text is None else path.write_text(text)
    result = node.run()
    assert result.status == 1
    assert "deployment.json" in result.output and why in result.output


def test_a_run_beside_another_waits_and_reports_the_lock(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    lock = node.root / "run/node-setup.lock"
    lock.parent.mkdir()
    with lock.open("w") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        result = node.run()
    assert result.status == 1
    assert (
        "another run of this script still holds /run/node-setup.lock after 1800 s" in result.output
    )
    assert node.run().status == 0
    assert lock.stat().st_mode & 0o777 == 0o600, "users who can read it can hold it"


def test_a_terminal_that_is_lost_fails_no_node(tmp_path: Path) -> None:
    node = bundle(tmp_path)
    with Path("/dev/full").open("w") as terminal:
        assert node.run(stdout=terminal).status == 0
    assert "done: 3 steps" in node.log


def test_nothing_is_left_in_the_bundle(tmp_path: Path) -> None:
    """Compiled files would change what the next one reads there."""
    node = bundle(tmp_path)
    before = sorted(node.folder.rglob("*"))
    node.run()
    assert sorted(node.folder.rglob("*")) == before
