"""A node is drained for a fault that is there twice, and for nothing else."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from node_setup.failure import SetupError
from node_setup.node import FILES, Node
from node_setup.steps import health_prolog
from tests.lifecycle.node import StandIns, node_of

FAULT = 86
HANG = 'trap "" TERM; exec tail --follow /dev/null'


class Worker:
    """The two scripts as the step installs them, in short time, with stand-ins for what they ask."""

    def __init__(self, folder: Path, stand_ins: StandIns, num_gpus: int = 2) -> None:
        self.folder, self.commands = folder, stand_ins
        self.scripts = folder / "stand_ins/bin"
        text = (FILES / "units/check_node_health.sh").read_text()
        text = text.replace("@LUSTRE@", "/fsx").replace("@NUM_GPUS@", str(num_gpus))
        text = text.replace(
            "seconds_to_answer=4 seconds_between_looks=2", "seconds_to_answer=1 seconds_between_looks=0"
        )
        self.reset = folder / "gpus-were-reset"
        self.write("check-node-health", text.replace("/run/gpus-were-reset", str(self.reset)))
        prolog = (
            (FILES / "units/health_check_prolog.sh")
            .read_text()
            .replace("seconds_in_all=25", "seconds_in_all=3")
        )
        path = next(line for line in prolog.splitlines() if line.startswith("export PATH="))
        self.write("prolog", prolog.replace(path, ""))
        stand_ins.command("findmnt", "echo lustre")
        stand_ins.command("stat", '[[ $1 != --format* ]] || exec /usr/bin/stat "$@"')
        stand_ins.command("df", "printf 'Avail\\n 9000\\n'")
        stand_ins.command(
            "nvidia-smi", "echo 'GPU 0: NVIDIA H100 (UUID: GPU-1)'; echo 'GPU 1: NVIDIA H100 (UUID: GPU-2)'"
        )
        for name in ("journalctl", "logger", "scontrol"):
            stand_ins.command(name)

    def write(self, name: str, text: str) -> None:
        (self.scripts / name).write_text(text)
        (self.scripts / name).chmod(0o755)

    def run(self, name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(self.scripts / name)],
            env={"PATH": self.commands.path, "SLURM_JOB_ID": "7", "SLURMD_NODENAME": "ip-10-0-0-31"},
            capture_output=True,
            text=True,
            timeout=60,
        )

    def drained(self) -> str | None:
        """The reason given to Slurm."""
        reasons = [
            call.split("reason=", 1)[1] for call in self.commands.calls if call.startswith("scontrol update")
        ]
        return reasons[0] if reasons else None

    def logged(self) -> str:
        return "\n".join(call for call in self.commands.calls if call.startswith("logger"))


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
def test_a_fault_that_stays_drains_the_node_and_is_told(worker: Worker, command: str) -> None:
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
        command, f'#!/bin/bash\nif [[ ! -e "{mark}" ]]; then touch "{mark}"; {body}; exit; fi\n{script}'
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
def test_a_command_that_is_missing_or_killed_drains_nothing(worker: Worker, command: str, body: str) -> None:
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
    worker.commands.command("journalctl", f"echo 'NVRM: Xid (PCI:0000:10:1c): {number}, pid=79, 48, x'")
    assert worker.run("check-node-health").returncode == 0


def test_after_a_reset_only_later_lines_are_asked_for(worker: Worker) -> None:
    worker.reset.touch()
    os.utime(worker.reset, (1700000000, 1700000000))
    worker.run("check-node-health")
    assert any("--since=@1700000000 " in call for call in worker.commands.calls)


def test_a_node_without_gpus_asks_for_none(tmp_path: Path, stand_ins: StandIns) -> None:
    worker = Worker(tmp_path, stand_ins, num_gpus=0)
    assert worker.run("check-node-health").returncode == 0
    assert not [call for call in stand_ins.calls if call.startswith(("nvidia-smi", "journalctl"))]


def config(*prologs: str) -> str:
    return "echo 'Configuration data as of now'\n" + "\n".join(f"echo '{line}'" for line in prologs)


@pytest.fixture
def node(worker: Worker) -> Node:
    """A node whose installed checks find it well."""
    worker.commands.command("scontrol", config("Prolog                  = /opt/slurm/etc/prolog.d/*"))
    worker.commands.command("nvidia-smi", "echo 'GPU 0: NVIDIA A10G (UUID: GPU-1)'")
    return node_of(worker.folder, health_check_prolog=True)


def test_the_step_installs_both_once(node: Node) -> None:
    health_prolog.install(node)
    prolog = node.host.path("/opt/slurm/etc/prolog.d/500_node_health")
    check = node.host.path("/usr/local/sbin/check-node-health")
    assert prolog.stat().st_mode & 0o777 == check.stat().st_mode & 0o777 == 0o755
    assert 'lustre="/fsx" num_gpus="1"' in check.read_text()
    assert len(node.changes) == 2 and node.warnings == []
    node.changes = []
    health_prolog.install(node)
    assert node.changes == []


def test_a_versioned_installation_behind_a_link_is_followed(node: Node) -> None:
    (node.host.root / "opt/slurm-25.05/etc").mkdir(parents=True)
    (node.host.root / "opt/slurm").symlink_to("slurm-25.05")
    health_prolog.install(node)
    assert (node.host.root / "opt/slurm-25.05/etc/prolog.d/500_node_health").exists()


@pytest.mark.parametrize(
    ("lines", "folder"),
    [
        (("Prolog = /etc/slurm/prolog.d/*",), "/etc/slurm/prolog.d"),
        (("Prolog[0] = /x/one", "Prolog[1] = /opt/slurm/etc/prolog.d/*"), "/opt/slurm/etc/prolog.d"),
        (("Prolog[0] = /a/*", "Prolog[1] = /opt/slurm/etc/prolog.d/*"), "/opt/slurm/etc/prolog.d"),
    ],
)
def test_the_folder_is_the_one_that_slurm_runs(
    node: Node, worker: Worker, lines: tuple[str], folder: str
) -> None:
    worker.commands.command("scontrol", config("PrologEpilogTimeout = 65534", *lines))
    health_prolog.install(node)
    assert node.host.path(f"{folder}/500_node_health").exists()
    assert node.warnings == []


@pytest.mark.parametrize(
    ("body", "warning"),
    [
        (
            config("Prolog = (null)", "PrologFlags = Alloc"),
            r"Prolog=(null). Set Prolog=/opt/slurm/etc/prolog.d/*",
        ),
        ("echo 'Unable to contact slurm controller' >&2; exit 1", "does not say whether it runs"),
    ],
)
def test_a_slurm_that_does_not_run_it_is_a_warning(
    node: Node, worker: Worker, body: str, warning: str
) -> None:
    worker.commands.command("scontrol", body)
    health_prolog.install(node)
    assert warning in node.warnings[0]
    assert node.host.path("/opt/slurm/etc/prolog.d/500_node_health").exists()


def test_a_node_with_a_fault_fails_before_it_gets_jobs(node: Node, worker: Worker) -> None:
    worker.commands.command("nvidia-smi", "exit 9")
    with pytest.raises(
        SetupError, match=r"not fit for jobs: nvidia-smi lists 0 GPUs of 1\. What to do: repair"
    ):
        health_prolog.install(node)


def test_a_check_that_does_not_work_here_is_a_warning(node: Node, worker: Worker) -> None:
    worker.commands.command("journalctl", "exit 3")
    health_prolog.install(node)
    assert "no_fatal_xid could not be checked" in node.warnings[0]
