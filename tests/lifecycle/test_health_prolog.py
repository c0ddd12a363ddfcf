"""A node is drained for a fault that is there twice, and for nothing else."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.lifecycle.health_worker import Worker
from tests.lifecycle.node import StandIns

HANG = 'trap "" TERM; exec tail --follow /dev/null'


@pytest.fixture
def worker(tmp_path: Path, stand_ins: StandIns) -> Worker:
    return Worker(tmp_path, stand_ins)


def test_a_healthy_node_starts_the_job_and_says_nothing(worker: Worker) -> None:
    done = worker.run("prolog")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert worker.drained() is None


FAULTS = {
    "findmnt": ("exit 1", "/fsx is not mounted"),
    "stat": ("exit 1", "/fsx is mounted and cannot be read"),
    "df": ("printf 'Avail\\n 511\\n'", "the root volume has 511 MiB left; logs and jobs need 512"),
    "nvidia-smi": (
        "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'Unable to determine the device handle' >&2; exit 15",
        "nvidia-smi lists 1 GPUs of 2",
    ),
    "journalctl": (
        "echo 'NVRM: Xid (PCI:0000:10:1c): 79, pid=1, GPU has fallen off the bus.'",
        "the kernel has logged NVRM: Xid (PCI:0000:10:1c): 79, pid=1, GPU has fallen off the bus.",
    ),
}


@pytest.mark.parametrize("command", FAULTS)
def test_a_lasting_fault_drains_the_node_with_a_reason(worker: Worker, command: str) -> None:
    body, fault = FAULTS[command]
    worker.commands.command(command, body)
    done = worker.run("prolog")
    assert done.returncode == 1
    assert (worker.drained() or "").startswith(f"node-health: {fault}")
    assert f"node-health: {fault}" in done.stderr
    assert f"job 7: {fault}" in worker.logged()
    assert "scontrol update nodename=ip-10-0-0-31 state=resume" in done.stderr


@pytest.mark.parametrize("command", FAULTS)
def test_a_fault_that_is_gone_at_the_second_look_does_not(worker: Worker, command: str) -> None:
    script = (worker.scripts / command).read_text()
    body, _ = FAULTS[command]
    mark = worker.folder / "mark"
    worker.write(
        command,
        f'#!/bin/bash\nif [[ ! -e "{mark}" ]]; then touch "{mark}"; {body}; exit; fi\n{script}',
    )
    assert worker.run("check-node-health").returncode == 0
    assert mark.exists()


def test_a_file_system_that_hangs_is_left_behind_and_drains_nothing(worker: Worker) -> None:
    """All nodes see it: one pause of the server would empty the cluster."""
    worker.commands.command("stat", HANG)
    done = worker.run("prolog")
    assert done.returncode == 0
    assert "/fsx has not answered for 1 s: the server's fault, not this node's" in done.stderr


@pytest.mark.parametrize("command", FAULTS)
@pytest.mark.parametrize("body", ["exit 127", "kill -KILL $$"])
def test_a_command_that_is_missing_or_killed_drains_nothing(
    worker: Worker, command: str, body: str
) -> None:
    worker.commands.command(command, body)
    done = worker.run("prolog")
    assert done.returncode == 0
    assert worker.drained() is None
    assert "could not be checked" in done.stderr


@pytest.mark.parametrize("command", ["nvidia-smi", "journalctl"])
def test_a_command_that_hangs_drains_nothing(worker: Worker, command: str) -> None:
    worker.commands.command(command, HANG)
    done = worker.run("prolog")
    assert done.returncode == 0
    assert "could not be checked" in done.stderr


@pytest.mark.parametrize("command", ["findmnt", "df"])
def test_checks_that_never_end_are_ended(worker: Worker, command: str) -> None:
    worker.commands.command(command, HANG)
    done = worker.run("prolog")
    assert done.returncode == 0
    assert "the checks ended with 137 instead of a result; the job starts" in done.stderr


@pytest.mark.parametrize("script", ["exit 1", "exit 2", "kill -SEGV $$", "syntax (", "exit 255"])
def test_a_mistake_in_the_checks_drains_nothing(worker: Worker, script: str) -> None:
    worker.write("check-node-health", f"#!/bin/bash\n{script}\n")
    done = worker.run("prolog")
    assert done.returncode == 0
    assert "instead of a result; the job starts" in done.stderr


def test_checks_that_are_missing_drain_nothing(worker: Worker) -> None:
    (worker.scripts / "check-node-health").unlink()
    assert worker.run("prolog").returncode == 0


def test_without_the_controller_the_fault_still_counts(worker: Worker) -> None:
    worker.commands.command("findmnt", "exit 1")
    worker.commands.command("scontrol", "exit 1")
    assert worker.run("prolog").returncode == 1


@pytest.mark.parametrize("number", ["13", "31", "43", "63", "94", "480", "4"])
def test_xids_that_a_job_causes_or_survives_are_no_fault(worker: Worker, number: str) -> None:
    worker.commands.command(
        "journalctl", f"echo 'NVRM: Xid (PCI:0000:10:1c): {number}, pid=79, 48, x'"
    )
    assert worker.run("check-node-health").returncode == 0


def test_after_a_reset_only_later_lines_count(worker: Worker) -> None:
    worker.reset.touch()
    os.utime(worker.reset, (1700000000, 1700000000))
    worker.run("check-node-health")
    assert any("--since=@1700000000 " in call for call in worker.commands.calls)


def test_a_node_without_gpus_asks_for_none(tmp_path: Path, stand_ins: StandIns) -> None:
    worker = Worker(tmp_path, stand_ins, num_gpus=0)
    assert worker.run("check-node-health").returncode == 0
    assert not [call for call in stand_ins.calls if call.startswith(("nvidia-smi", "journalctl"))]


def test_neuron_devices_are_counted(tmp_path: Path, stand_ins: StandIns) -> None:
    worker = Worker(tmp_path, stand_ins, num_gpus=0, num_neuron=2)
    assert worker.run("prolog").returncode == 1
    assert (worker.drained() or "").startswith("node-health: /dev has 0 Neuron devices of 2")
    for number in range(2):
        (tmp_path / f"neuron{number}").touch()
    assert worker.run("check-node-health").returncode == 0
    (tmp_path / "neuron1").unlink()
    assert "/dev has 1 Neuron devices of 2" in worker.run("check-node-health").stdout
