"""States in the nodes' memory: restarts in place, copies for new nodes, and the end. Faulty processes."""

from __future__ import annotations

import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from config.reading.loader import load_cluster
from monitoring.alert_rules import rule_groups
from seqlm.__main__ import write_report
from seqlm.launch.progress import newest_checkpoint
from seqlm.training.tracking.run_log import REPORT_FILE
from tests.cluster.bundle import REPOSITORY
from tests.cluster.cluster import Cluster
from tests.cluster.faulty_process import FAULT
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.metrics_workspace import MetricsWorkspace
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    GID,
    HOME,
    NUM_STEPS,
    PYTHON,
    TRAINING,
    UID,
    USER,
    Uninterrupted,
    job_of,
    log_of,
    nodes_of,
    submit,
    wait_for_end,
)
from tests.workloads.training.training_runs import lines, losses

OBSERVED = REPOSITORY / "clusters/slurm-p5.yaml"
"""Cluster file with alerts."""
STEPS = 5
"""Steps between two states."""
WITHOUT_CHECKPOINTS = "train.save_every_steps=1000000"


def memory_of(machine: Machine, job: str) -> str:
    """Entries of the job's folder on a node; empty without one."""
    listed = f"ls -A /dev/shm/seqlm-{UID}-{job} 2>/dev/null"
    return machine.run(["sh", "-c", listed], check=False).output.strip()


def last_step(run_dir: Path) -> int:
    if not (run_dir / "metrics.jsonl").exists():
        return 0
    return max((line["step"] for line in lines(run_dir, "train")), default=0)


def resumptions(run_dir: Path) -> list[dict[str, int]]:
    if not (run_dir / "metrics.jsonl").exists():
        return []
    return [line for line in lines(run_dir, "event") if line["event"] == "resumed"]


def wait_for_resumption(run_dir: Path, number: int, log: Path) -> None:
    """Wait for a step after the last one of several resumptions."""

    def is_so() -> bool:
        found = resumptions(run_dir)
        return len(found) == number and last_step(run_dir) > found[-1]["step"]

    wait_until(is_so, f"a step after resumption {number}: {log}", seconds=240)


def alert_expression(name: str) -> str:
    """Return the expression of an alert's rule."""
    groups = rule_groups(load_cluster(OBSERVED))["groups"]
    (found,) = (
        rule["expr"] for group in groups for rule in group["rules"] if rule.get("alert") == name
    )
    return str(found)


@pytest.fixture(scope="module")
def faulty_python(home: Path) -> Callable[[str], str]:
    """Function that returns the Python of jobs whose last process has a fault."""

    def python(fault: str) -> str:
        folder = home / fault
        folder.mkdir()
        os.chown(folder, UID, GID)
        shutil.copy(Path(__file__).with_name("faulty_process.py"), folder / "sitecustomize.py")
        path = folder / "python"
        paths = f"{HOME}/{fault}:{HOME}/hidden"
        text = PYTHON.replace(f"{HOME}/hidden", paths).replace(
            "PYTHONPATH", f"{FAULT}={fault} PYTHONPATH", 1
        )
        path.write_text(text)
        path.chmod(0o755)
        return f"--python={HOME}/{fault}/python"

    return python


def test_a_job_continues_from_memory(
    cluster: Cluster,
    lifecycle: Lifecycle,
    home: Path,
    uninterrupted: Uninterrupted,
    faulty_python: Callable[[str], str],
) -> None:
    """A step is spoilt, a process is killed, and a node is destroyed."""
    run_dir = home / "runs/remembered"
    job = submit(
        cluster,
        "name=remembered",
        WITHOUT_CHECKPOINTS,
        f"train.memory_checkpoint_steps={STEPS}",
        faulty_python("sick"),
    )
    log = log_of(cluster, job)
    wait_for_resumption(run_dir, 1, log)
    sick = nodes_of(cluster, job["job"])[-1].hostname
    assert re.search(
        rf"process \d: status 1 error: step \d+: loss .* the likely cause is hardware: process 1 \(node "
        rf"{sick}\); .* the processes start again in place",
        log.read_text(),
    ), log
    wait_until(lambda: last_step(run_dir) >= 4 * STEPS, f"steps: {log}", seconds=300)
    node = nodes_of(cluster, job["job"])[-1]
    mode = node.run(["stat", "--format=%a", f"/dev/shm/seqlm-{UID}-{job['job']}"]).output.strip()
    assert mode == "700"
    node.run(["pkill", "--signal=KILL", "--newest", "--full", TRAINING])
    killed = time.monotonic()
    wait_for_resumption(run_dir, 2, log)
    print(f"next step {time.monotonic() - killed:.1f} s after a process was killed", flush=True)
    said = log.read_text()
    assert re.search("process 1: status 137; the processes start again in place", said), log
    assert "crash 1 of 3" not in said
    assert "Traceback" not in said, "the other process names a lost connection in one line"
    assert newest_checkpoint(run_dir) == 0

    step = last_step(run_dir) + 2 * STEPS
    wait_until(lambda: last_step(run_dir) >= step, f"step {step}: {log}", seconds=240)
    destroyed = nodes_of(cluster, job["job"])[-1]
    cluster.kill(destroyed)
    assert last_step(run_dir) < NUM_STEPS
    try:
        wait_for_end(cluster, job["job"], log)
    finally:
        assert lifecycle.run(cluster.replace(destroyed)).status == 0
        cluster.wait_for_slurm()
    assert int(job_of(cluster, job["job"])["Restarts"]) == 1
    assert "pieces copied from other nodes: 1" in log.read_text()
    assert [event["step"] % STEPS for event in resumptions(run_dir)] == [0, 0, 0]
    assert all(event["lost_steps"] <= 2 * STEPS for event in resumptions(run_dir))
    assert losses(run_dir) == uninterrupted.losses
    assert [memory_of(worker, job["job"]) for worker in cluster.workers] == ["", "", ""]


def test_the_nodes_of_slow_processes_are_named_and_left_out_if_others_remain(
    cluster: Cluster,
    lifecycle: Lifecycle,
    home: Path,
    workspace: MetricsWorkspace,
    faulty_python: Callable[[str], str],
) -> None:
    endless = "train.max_steps=1000000", WITHOUT_CHECKPOINTS
    watched = f"train.memory_checkpoint_steps={STEPS}", "train.exclude_unfit_nodes=true"
    job = submit(cluster, "name=slow", *endless, *watched, faulty_python("slow"))
    number = job["job"]
    log = log_of(cluster, job)
    wait_until(
        lambda: log.exists() and "has been slow for" in log.read_text(),
        f"its name: {log}",
        seconds=300,
    )
    slow = nodes_of(cluster, number)[-1].hostname
    assert f"warning: process 1 (node {slow}) has been slow for" in log.read_text()
    wait_until(
        lambda: job_of(cluster, number)["ExcNodeList"] == slow, f"its exclusion: {log}", seconds=240
    )
    assert f"node {slow} is not fit: process 1" in log.read_text()

    wait_until(
        lambda: "it stays in use: the partition has only 1 others" in log.read_text(),
        f"the next one, without which too few nodes are left: {log}",
        seconds=300,
    )
    nodes = nodes_of(cluster, number)
    expression = alert_expression("SlowProcess")
    alert = {"process": "1", "node": nodes[-1].hostname, "run": "slow"}
    wait_until(
        lambda: any(alert.items() <= one["metric"].items() for one in workspace.query(expression)),
        f"an alert about {alert}",
        seconds=60,
    )
    wait_until(
        lambda: all("step-" in memory_of(node, number) for node in nodes), "states", seconds=60
    )
    cluster.login.run(["scancel", number], user=USER)
    wait_for_end(cluster, number, log, "CANCELLED")
    # Slurm kills what has not saved after half a minute. Then a timer deletes the folder.
    wait_until(
        lambda: not any(memory_of(node, number) for node in cluster.workers),
        "the end of the states in memory",
        seconds=120,
    )
    run_dir = home / "runs/slow"
    write_report([str(run_dir)])  # a run writes its report when it has ended
    said = (run_dir / REPORT_FILE).read_text()
    assert all(f"(node {node}) has been slow for" in said for node in (slow, nodes[-1].hostname))


HOLDER = """
import os, time
from seqlm.training.memory.job_folder import held, path_of

folder = path_of(os.environ["SLURM_JOB_ID"])
with held(folder):
    (folder / "step-00000005").mkdir()
    time.sleep(600)
"""
"""Program that keeps a state in memory, and deletes nothing at its end."""


def test_the_memory_of_an_ended_job_is_freed(cluster: Cluster, home: Path) -> None:
    """One node is drained, and the daemon of Slurm that watches the job there is killed."""
    (home / "holder.py").write_text(HOLDER)
    command = ["sbatch", "--parsable", "--partition=gpu", "--nodes=2", "--output=/dev/null"]
    step = f"env PYTHONPATH={REPOSITORY}/workloads srun --mpi=none {HOME}/python {HOME}/holder.py"
    job = cluster.login.run([*command, "--chdir=/tmp", f"--wrap={step}"], user=USER).output.strip()
    wait_until(lambda: job_of(cluster, job)["JobState"] == "RUNNING", "the job", seconds=240)
    nodes = nodes_of(cluster, job)
    wait_until(lambda: all(memory_of(node, job) for node in nodes), "the states", seconds=240)
    for node in nodes:
        node.run(["systemctl", "start", "job-memory.service"])
    assert all("step-" in memory_of(node, job) for node in nodes), "the job runs"

    drained = nodes[-1]
    update = ["scontrol", "update", f"NodeName={drained.hostname}"]
    try:
        cluster.controller.run([*update, "State=DRAIN", "Reason=test"])
        drained.run(["pkill", "--signal=KILL", "--full", rf"slurmstepd: \[{job}\."])
        cluster.login.run(["scancel", job], user=USER)
        wait_for_end(cluster, job, Path(os.devnull), "CANCELLED")
        assert all("step-" in memory_of(node, job) for node in nodes), "nobody deletes them"
        for node in nodes:
            node.run(["systemctl", "start", "job-memory.service"])
        assert [memory_of(node, job) for node in nodes] == ["", ""]
    finally:
        drained.run(["pkill", "--signal=KILL", "--full", "holder.py"], check=False)
        cluster.controller.run([*update, "State=RESUME"])
        cluster.wait_for_slurm()
