"""States in the nodes' memory: restarts in place after a kill, and the copy for a new node."""

from __future__ import annotations

import time
from pathlib import Path

from seqlm.launch.progress import newest_checkpoint
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    NUM_STEPS,
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
    return [line for line in lines(run_dir, "event") if line["event"] == "resumed"]


def test_a_job_continues_from_memory(
    cluster: Cluster, lifecycle: Lifecycle, home: Path, uninterrupted: Uninterrupted
) -> None:
    run_dir = home / "runs/remembered"
    job = submit(
        cluster,
        "name=remembered",
        WITHOUT_CHECKPOINTS,
        f"train.memory_checkpoint_steps={STEPS}",
    )
    log = log_of(cluster, job)
    wait_until(lambda: last_step(run_dir) >= 4 * STEPS, f"steps: {log}", seconds=300)
    node = nodes_of(cluster, job["job"])[-1]
    mode = node.run(["stat", "--format=%a", f"/dev/shm/seqlm-{UID}-{job['job']}"]).output.strip()
    assert mode == "700"
    node.run(["pkill", "--signal=KILL", "--newest", "--full", TRAINING])
    killed = time.monotonic()
    wait_until(
        lambda: resumptions(run_dir) and last_step(run_dir) > resumptions(run_dir)[0]["step"],
        f"a step after the kill: {log}",
        seconds=240,
    )
    print(f"next step {time.monotonic() - killed:.1f} s after a process was killed", flush=True)
    said = log.read_text()
    assert "the processes start again in place" in said and "crash 1 of 3" not in said
    assert newest_checkpoint(run_dir) == 0

    step = last_step(run_dir) + 2 * STEPS
    wait_until(lambda: last_step(run_dir) >= step, f"step {step}: {log}", seconds=120)
    destroyed = nodes_of(cluster, job["job"])[-1]
    cluster.kill(destroyed)
    assert last_step(run_dir) < NUM_STEPS
    try:
        wait_for_end(cluster, job["job"], log)
    finally:
        assert lifecycle.run(cluster.replace(destroyed)).status == 0
        cluster.wait_for_slurm()
    assert int(job_of(cluster, job["job"])["Restarts"]) == 1
    assert "copied from other nodes: 1 pieces" in log.read_text()
    assert [event["step"] % STEPS for event in resumptions(run_dir)] == [0, 0]
    assert all(event["lost_steps"] <= 2 * STEPS for event in resumptions(run_dir))
    assert losses(run_dir) == uninterrupted.losses
    assert [memory_of(worker, job["job"]) for worker in cluster.workers] == ["", "", ""]


def test_a_cancelled_job_leaves_nothing_in_memory(cluster: Cluster, home: Path) -> None:
    run_dir = home / "runs/forgotten"
    endless = "train.max_steps=1000000", WITHOUT_CHECKPOINTS
    job = submit(cluster, "name=forgotten", *endless, f"train.memory_checkpoint_steps={STEPS}")
    log = log_of(cluster, job)
    wait_until(lambda: last_step(run_dir) >= 2 * STEPS, f"steps: {log}", seconds=300)
    nodes = nodes_of(cluster, job["job"])
    assert all("step-" in memory_of(node, job["job"]) for node in nodes)
    cluster.login.run(["scancel", job["job"]], user=USER)
    wait_for_end(cluster, job["job"], log, "CANCELLED")
    assert [memory_of(node, job["job"]) for node in nodes] == ["", ""]
