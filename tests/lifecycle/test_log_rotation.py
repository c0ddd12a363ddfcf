"""Logs without rotation fill the root volume; logrotate ignores logs that two files name."""

from __future__ import annotations

import getpass
import shutil
from pathlib import Path

import pytest

from node_setup.host import Host
from node_setup.node import Node
from node_setup.steps import log_rotation
from tests.lifecycle.node import StandIns, node_of

CONFIG = """cat <<'END'
Configuration data as of 2026-11-21T15:00:00
SLURM_CONF              = /opt/slurm/etc/slurm.conf
SlurmctldLogFile        = /var/log/slurm/slurmctld.log
SlurmdLogFile           = /var/log/slurm/slurmd.%n.log
SlurmdParameters        = (null)
END"""
FILE = "/etc/logrotate.d/cluster-logs"


def node_with(folder: Path, stand_ins: StandIns, group: str) -> Node:
    stand_ins.command("scontrol", CONFIG)
    stand_ins.command("logrotate")
    return node_of(folder, group)


@pytest.fixture
def controller(tmp_path: Path, stand_ins: StandIns) -> Node:
    node = node_with(tmp_path, stand_ins, "controller")
    write(
        node.host,
        "/opt/slurm/etc/slurmdbd.conf",
        "#LogFile=/no\nlogfile = /var/log/slurm/slurmdbd.log\n",
    )
    return node


@pytest.fixture
def worker(tmp_path: Path, stand_ins: StandIns) -> Node:
    return node_with(tmp_path, stand_ins, "workers")


def write(host: Host, path: str, text: str) -> None:
    file = host.path(path)
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(text)


def sections(node: Node) -> dict[str, str]:
    """Path to what stands between its braces."""
    parts = node.host.path(FILE).read_text().split("}\n")
    return {
        head.strip(): body
        for head, _, body in (part.partition(" {") for part in parts if part.strip())
    }


def test_a_controllers_logs_are_rotated_and_reopened(controller: Node) -> None:
    log_rotation.install(controller)
    found = sections(controller)
    assert list(found) == [
        "/var/log/provision/provisioning.log",
        "/var/log/slurm/slurmctld.log",
        "/var/log/slurm/slurmdbd.log",
    ]
    assert "pkill --signal USR2 --exact slurmctld || true" in found["/var/log/slurm/slurmctld.log"]
    assert "pkill --signal USR2 --exact slurmdbd || true" in found["/var/log/slurm/slurmdbd.log"]
    assert "postrotate" not in found["/var/log/provision/provisioning.log"]
    controller.changes = []
    log_rotation.install(controller)
    assert controller.changes == []


def test_a_workers_log_is_slurmds_under_any_name(worker: Node) -> None:
    log_rotation.install(worker)
    assert list(sections(worker)) == [
        "/var/log/provision/provisioning.log",
        "/var/log/slurm/slurmd.*.log",
    ]


@pytest.mark.parametrize(
    "image",
    [
        "/var/log/slurm/slurmctld.log {\n weekly\n}\n",
        '"/var/log/slurm/*.log"{\n}\n',
        "/var/log/slurm/slurmctl*\n{}\n",
    ],
)
def test_what_the_image_rotates_is_left_to_it(controller: Node, image: str) -> None:
    write(controller.host, "/etc/logrotate.d/slurm", image)
    log_rotation.install(controller)
    assert "/var/log/slurm/slurmctld.log" not in sections(controller)


@pytest.mark.parametrize(
    "line", ["# /var/log/slurm/slurmctld.log", "/var/log/*.log { }", "/var/log/*/*/*.log"]
)
def test_a_comment_and_a_pattern_of_other_folders_rotate_nothing(
    controller: Node, line: str
) -> None:
    write(controller.host, "/etc/logrotate.d/slurm", f"{line}\n")
    log_rotation.install(controller)
    assert "/var/log/slurm/slurmctld.log" in sections(controller)


def test_our_file_goes_when_the_image_rotates_all(worker: Node) -> None:
    log_rotation.install(worker)
    write(worker.host, "/etc/logrotate.d/all", "/var/log/provision/*.log /var/log/slurm/* { }\n")
    log_rotation.install(worker)
    assert not worker.host.path(FILE).exists()


def test_logs_that_go_to_syslog_are_left_to_the_system(worker: Node, stand_ins: StandIns) -> None:
    stand_ins.command("scontrol", "echo 'SlurmdLogFile           = (null)'")
    log_rotation.install(worker)
    assert list(sections(worker)) == ["/var/log/provision/provisioning.log"]


def test_a_controller_without_accounting_has_no_log_of_it(controller: Node) -> None:
    controller.host.path("/opt/slurm/etc/slurmdbd.conf").unlink()
    log_rotation.install(controller)
    assert "/var/log/slurm/slurmdbd.log" not in sections(controller)


def test_a_slurm_that_does_not_answer_leaves_the_set_ups_log(
    worker: Node, stand_ins: StandIns
) -> None:
    stand_ins.command("scontrol", "echo 'Unable to contact slurm controller' >&2; exit 1")
    log_rotation.install(worker)
    assert list(sections(worker)) == ["/var/log/provision/provisioning.log"]


def test_logrotate_becomes_the_owner_of_a_log_in_a_folder_that_others_write_to(
    controller: Node,
) -> None:
    """logrotate refuses as root: "parent directory has insecure permissions"."""
    folder = controller.host.path("/var/log/slurm")
    folder.mkdir(parents=True)
    folder.chmod(0o775)
    (folder / "slurmdbd.log").touch()
    log_rotation.install(controller)
    found = sections(controller)
    user = f"su {getpass.getuser()} {folder.group()}\n"
    assert (
        user in found["/var/log/slurm/slurmctld.log"]
        and user in found["/var/log/slurm/slurmdbd.log"]
    )
    assert "su " not in found["/var/log/provision/provisioning.log"]
    folder.chmod(0o755)
    log_rotation.install(controller)
    assert "su " not in sections(controller)["/var/log/slurm/slurmctld.log"]


@pytest.mark.parametrize("body", ["exit 1", "echo 'error: /etc/x:1 duplicate log entry' >&2"])
def test_a_file_that_logrotate_refuses_does_not_stay(
    worker: Node, stand_ins: StandIns, body: str
) -> None:
    stand_ins.command("logrotate", body)
    log_rotation.install(worker)
    assert (
        "logrotate does not accept /etc/logrotate.d/cluster-logs, which was removed"
        in worker.warnings[0]
    )
    assert not worker.host.path(FILE).exists()


def test_warns_of_a_node_without_logrotate(
    worker: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    log_rotation.install(worker)
    assert "no logrotate on this node" in worker.warnings[0]


@pytest.mark.skipif(not shutil.which("logrotate", path="/usr/sbin"), reason="needs logrotate")
def test_the_real_logrotate_accepts_it(controller: Node, stand_ins: StandIns) -> None:
    stand_ins.command("logrotate", 'exec /usr/sbin/logrotate "$@"')
    log_rotation.install(controller)
    assert controller.warnings == []
