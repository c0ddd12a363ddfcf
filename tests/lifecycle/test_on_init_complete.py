"""What a new node does after the image's own set-up, and that it fails when it should."""

from __future__ import annotations

import configparser
from pathlib import Path

import pytest

from tests.lifecycle.node import Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


def sleeps(calls: list[str]) -> list[str]:
    return [call.removeprefix("sleep ") for call in calls if call.startswith("sleep ")]


def test_a_healthy_node_passes_at_once(node: Node) -> None:
    result = node.run("on_init_complete.sh")
    assert result.status == 0, result.output
    assert sleeps(result.calls) == []
    assert f"{node.lustre}: lustre, writable (try 1)" in result.output
    assert "instance credentials: root only" in result.output
    assert node.log == result.output
    assert list(node.lustre.iterdir()) == []


def test_it_can_be_run_again(node: Node) -> None:
    first = node.run("on_init_complete.sh")
    second = node.run("on_init_complete.sh")
    assert second.status == 0
    assert node.log == first.output + second.output


def test_a_mount_that_comes_late_is_waited_for(node: Node) -> None:
    count = node.root / "count"
    node.command("findmnt", f'echo >> "{count}"; [[ $(wc -l < "{count}") -lt 3 ]] || echo lustre')
    result = node.run("on_init_complete.sh")
    assert result.status == 0, result.output
    assert "writable (try 3)" in result.output
    assert sleeps(result.calls) == ["10", "10"]


def test_a_mount_that_never_comes_fails_the_node(node: Node) -> None:
    node.command("findmnt", "exit 1")
    result = node.run("on_init_complete.sh")
    assert result.status != 0
    # 30 tries, then the time in which the service ships the log.
    assert sleeps(result.calls) == ["10"] * 30 + ["60"]
    assert f"ERROR: {node.lustre} is no writable lustre mount after 30 tries" in node.log
    assert "failed; see" in node.log
    assert "done" not in node.log


def test_another_file_system_in_its_place_is_no_mount(node: Node) -> None:
    """What is written to the root volume looks well until the node is replaced."""
    node.command("findmnt", "echo ext4")
    assert node.run("on_init_complete.sh").status != 0


def test_a_file_system_that_loses_data_fails_the_node(node: Node) -> None:
    node.command("cat", "echo something else")
    result = node.run("on_init_complete.sh")
    assert result.status != 0
    assert "is no writable lustre mount" in result.output
    assert list(node.lustre.iterdir()) == []


def test_of_stacked_mounts_the_one_on_top_counts(node: Node) -> None:
    node.command("findmnt", r"printf 'autofs\nlustre\n'")
    assert node.run("on_init_complete.sh").status == 0
    node.command("findmnt", r"printf 'lustre\nautofs\n'")
    assert node.run("on_init_complete.sh").status != 0


def test_a_server_that_hangs_is_left_after_its_time(node: Node) -> None:
    """The first write ignores the request to end; the second one succeeds."""
    first = node.root / "first"
    hang = f'[[ -e "{first}" ]] || {{ touch "{first}"; trap "" TERM; exec tail --follow /dev/null; }}'
    node.command("sync", hang)
    # The script's bound, a hundredth as long.
    node.command(
        "timeout",
        '[[ "$1 $2" == "--signal=KILL 30" ]] || exit 125\nexec /usr/bin/timeout "$1" 0.3 "${@:3}"',
    )
    result = node.run("on_init_complete.sh")
    assert result.status == 0, result.output
    assert f"{node.lustre}: lustre, writable (try 2)" in result.output
    assert list(node.lustre.iterdir()) == []


def test_a_probe_that_cannot_be_removed_fails_no_node(node: Node) -> None:
    node.command("rm", "exit 1")
    result = node.run("on_init_complete.sh")
    assert result.status == 0, result.output
    assert "could not remove" in result.output


def test_a_server_that_refuses_to_write_fails_the_node(node: Node) -> None:
    node.command("sync", "exit 1")
    assert node.run("on_init_complete.sh").status != 0


def test_home_is_checked_where_there_is_one(node: Node, tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    node.settings(home=home)
    node.command("findmnt", f'[[ "$*" == *{home}* ]] && echo nfs4 || echo lustre')
    result = node.run("on_init_complete.sh")
    assert result.status == 0, result.output
    assert f"{home}: nfs4, writable (try 1)" in result.output


@pytest.mark.parametrize(("status", "why"), [(0, "an answer"), (22, "another error"), (127, "no curl")])
def test_credentials_that_users_may_reach_fail_the_node(node: Node, status: int, why: str) -> None:
    """Only a connection that is refused (7) or dropped (28) proves that the rules work."""
    node.command("runuser", f"exit {status}")
    result = node.run("on_init_complete.sh")
    assert result.status != 0, why
    assert f"curl ended with {status}, not 7 (refused) or 28 (no answer)" in result.output


@pytest.mark.parametrize("status", [7, 28])
def test_credentials_that_users_cannot_reach_pass(node: Node, status: int) -> None:
    node.command("runuser", f"exit {status}")
    assert node.run("on_init_complete.sh").status == 0


def test_the_check_asks_as_a_user_without_rights(node: Node) -> None:
    (call,) = (call for call in node.run("on_init_complete.sh").calls if call.startswith("runuser"))
    assert call.startswith("runuser --user nobody -- curl ")
    assert " --noproxy * " in call
    assert call.endswith(" http://169.254.169.254/")


def test_rules_are_a_service_that_starts_before_the_network(node: Node) -> None:
    result = node.run("on_init_complete.sh")
    systemctl = [call for call in result.calls if call.startswith("systemctl")]
    name = "block-instance-credentials.service"
    assert systemctl == ["systemctl daemon-reload", f"systemctl enable {name}", f"systemctl restart {name}"]
    unit = configparser.ConfigParser(strict=False)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read(node.root / "etc/systemd/system" / name)
    assert "network-pre.target" in unit["Unit"]["Before"]
    assert unit["Install"]["WantedBy"] == "multi-user.target"
    command = node.root / unit["Service"]["ExecStart"].lstrip("/")
    assert command.stat().st_mode & 0o777 == 0o755
    assert command.read_bytes() == (node.bundle / "block_instance_credentials.sh").read_bytes()


def test_a_service_that_does_not_start_fails_the_node(node: Node) -> None:
    node.command("systemctl", '[[ "$1" != restart ]]')
    result = node.run("on_init_complete.sh")
    assert result.status != 0
    assert "done" not in result.output
