"""The step installs the health checks where Slurm runs them, tries them, and removes them if switched off."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import FILES, Node
from node_setup.steps import health_prolog
from tests.lifecycle.health_worker import Worker
from tests.lifecycle.node import StandIns, node_of


@pytest.fixture
def worker(tmp_path: Path, stand_ins: StandIns) -> Worker:
    return Worker(tmp_path, stand_ins)


def config(*prologs: str) -> str:
    return "echo 'Configuration data as of now'\n" + "\n".join(f"echo '{line}'" for line in prologs)


@pytest.fixture
def node(worker: Worker) -> Node:
    """A node whose installed checks find it well."""
    worker.commands.command(
        "scontrol", config("Prolog                  = /opt/slurm/etc/prolog.d/*")
    )
    worker.commands.command("nvidia-smi", "echo 'GPU 0: NVIDIA A10G (UUID: GPU-1)'")
    return node_of(worker.folder, health_check_prolog=True)


def test_the_step_installs_both_once(node: Node) -> None:
    health_prolog.apply(node)
    prolog = node.host.path("/opt/slurm/etc/prolog.d/500_node_health")
    check = node.host.path("/usr/local/sbin/check-node-health")
    assert prolog.stat().st_mode & 0o777 == check.stat().st_mode & 0o777 == 0o755
    assert 'lustre="/fsx" num_gpus="1"' in check.read_text()
    assert len(node.changes) == 2 and node.warnings == []
    node.changes = []
    health_prolog.apply(node)
    assert node.changes == []


def test_a_versioned_installation_behind_a_link_is_followed(node: Node) -> None:
    (node.host.root / "opt/slurm-25.05/etc").mkdir(parents=True)
    (node.host.root / "opt/slurm").symlink_to("slurm-25.05")
    health_prolog.apply(node)
    assert (node.host.root / "opt/slurm-25.05/etc/prolog.d/500_node_health").exists()


@pytest.mark.parametrize(
    ("lines", "folder"),
    [
        (("Prolog = /etc/slurm/prolog.d/*",), "/etc/slurm/prolog.d"),
        (
            ("Prolog[0] = /x/one", "Prolog[1] = /opt/slurm/etc/prolog.d/*"),
            "/opt/slurm/etc/prolog.d",
        ),
        (("Prolog[0] = /a/*", "Prolog[1] = /opt/slurm/etc/prolog.d/*"), "/opt/slurm/etc/prolog.d"),
    ],
)
def test_the_folder_is_the_one_that_slurm_runs(
    node: Node, worker: Worker, lines: tuple[str], folder: str
) -> None:
    worker.commands.command("scontrol", config("PrologEpilogTimeout = 65534", *lines))
    health_prolog.apply(node)
    assert node.host.path(f"{folder}/500_node_health").exists()
    assert node.warnings == []


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            config("Prolog = (null)", "PrologFlags = Alloc"),
            "slurm.conf has Prolog=. Set Prolog=/opt/slurm/etc/prolog.d/*",
        ),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "does not say whether it runs"),
    ],
)
def test_a_slurm_that_does_not_run_it_is_a_warning(
    node: Node, worker: Worker, body: str, warning: str
) -> None:
    worker.commands.command("scontrol", body)
    health_prolog.apply(node)
    assert warning in node.warnings[0]
    assert node.host.path("/opt/slurm/etc/prolog.d/500_node_health").exists()


def test_a_node_with_a_fault_fails_before_it_gets_jobs(node: Node, worker: Worker) -> None:
    worker.commands.command("nvidia-smi", "exit 9")
    with pytest.raises(
        SetupError, match=r"not fit for jobs: nvidia-smi lists 0 GPUs of 1\. What to do: repair"
    ):
        health_prolog.apply(node)


def test_a_check_that_does_not_work_here_is_a_warning(node: Node, worker: Worker) -> None:
    worker.commands.command("journalctl", "exit 3")
    health_prolog.apply(node)
    assert "no_fatal_xid could not be checked" in node.warnings[0]


@pytest.mark.parametrize("body", ["exit 1", "kill -SEGV $$", "syntax ("])
def test_a_mistake_in_the_checks_fails_no_node(
    node: Node, monkeypatch: pytest.MonkeyPatch, body: str
) -> None:
    """Such a failure drains no node, so jobs start."""
    files = node.host.root / "files"
    shutil.copytree(FILES / "units", files / "units")
    (files / "units/check_node_health.sh").write_text(f"#!/bin/bash\n{body}\n")
    node.files = files
    health_prolog.apply(node)
    assert (
        "the health checks do not work here: /usr/local/sbin/check-node-health ended with"
        in node.warnings[0]
    )


@pytest.mark.parametrize("folder", ["/opt/slurm/etc/prolog.d", "/etc/slurm/prolog.d"])
def test_switched_off_both_go(node: Node, worker: Worker, folder: str) -> None:
    worker.commands.command("scontrol", config(f"Prolog = {folder}/*"))
    health_prolog.apply(node)
    node.changes = []
    node.settings = replace(node.settings, health_check_prolog=False)
    health_prolog.apply(node)
    assert node.changes == [
        f"{folder}/500_node_health: removed",
        "/usr/local/sbin/check-node-health: removed",
    ]
    assert not node.host.path(f"{folder}/500_node_health").exists()
    node.changes = []
    health_prolog.apply(node)
    assert node.changes == [] == node.warnings
