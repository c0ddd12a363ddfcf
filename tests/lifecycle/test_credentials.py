"""Credentials of the instance: the rules as a service, and the proof that a user does not get through."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.steps import credentials
from tests.lifecycle.node import SCRIPTS, StandIns, node_of

UNIT = "block-instance-credentials.service"


@pytest.fixture
def commands(stand_ins: StandIns) -> StandIns:
    stand_ins.command("systemctl")
    stand_ins.command("runuser", "exit 7")
    return stand_ins


def test_rules_are_a_service_that_starts_before_the_network(
    tmp_path: Path, commands: StandIns
) -> None:
    node = node_of(tmp_path)
    credentials.block(node)
    systemctl = [call for call in commands.calls if call.startswith("systemctl")]
    assert systemctl == [
        "systemctl daemon-reload",
        f"systemctl enable --quiet {UNIT}",
        f"systemctl restart {UNIT}",
    ]
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(node.host.path(f"/etc/systemd/system/{UNIT}"))
    assert "network-pre.target" in unit["Unit"]["Before"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    command = node.host.path(unit["Service"]["ExecStart"])
    assert command.stat().st_mode & 0o777 == 0o755
    assert command.read_bytes() == (SCRIPTS / "block_instance_credentials.sh").read_bytes()


def test_the_second_time_nothing_changes_and_flushed_rules_come_back(
    tmp_path: Path, commands: StandIns
) -> None:
    node = node_of(tmp_path)
    credentials.block(node)
    commands.forget_calls()
    node.changes = []
    credentials.block(node)
    assert node.changes == []
    assert f"systemctl restart {UNIT}" in commands.calls
    assert "systemctl daemon-reload" not in commands.calls


@pytest.mark.parametrize("status", [7, 28])
def test_a_user_who_is_refused_or_not_answered_is_the_proof(
    tmp_path: Path, commands: StandIns, status: int
) -> None:
    commands.command("runuser", f"exit {status}")
    credentials.block(node_of(tmp_path))
    (call,) = (call for call in commands.calls if call.startswith("runuser"))
    assert call.startswith("runuser --user nobody -- curl ")
    assert " --noproxy * " in call
    assert call.endswith(" http://169.254.169.254/")


@pytest.mark.parametrize(
    ("status", "why"), [(0, "an answer"), (22, "another error"), (127, "no curl")]
)
def test_anything_else_is_none(tmp_path: Path, commands: StandIns, status: int, why: str) -> None:
    commands.command("runuser", f"exit {status}")
    with pytest.raises(
        SetupError, match=rf"curl ended with {status}, not 7 \(refused\) or 28 \(no answer\)"
    ):
        credentials.block(node_of(tmp_path))


def test_a_service_that_does_not_start_is_an_error(tmp_path: Path, commands: StandIns) -> None:
    commands.command("systemctl", '[[ "$1" != restart ]]')
    with pytest.raises(SetupError, match="systemctl restart"):
        credentials.block(node_of(tmp_path))
