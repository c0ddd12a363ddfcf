"""Training as users submit it: through the shipped batch script, and through the death of nodes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.cluster import Cluster, at_once
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    HOME,
    NUM_STEPS,
    PYTHON,
    SAVE_EVERY,
    Uninterrupted,
    job_of,
    log_of,
    nodes_of,
    submit,
    tool,
    wait_for_end,
)
from tests.workloads.esm2.training_runs import events, largest_difference, losses
from workloads.esm2.launch.slurm_attempts import newest_checkpoint


def test_a_bad_node_is_excluded_and_the_job_can_be_cancelled(cluster: Cluster, home: Path) -> None:
    """Its Python does not run; Slurm would begin with that node again."""
    bad = cluster.workers[0].hostname
    (home / "python").write_text(
        PYTHON.replace("#!/bin/sh\n", f'#!/bin/sh\n[ "$(hostname)" != {bad} ] || exit 9\n')
    )
    try:
        job = submit(cluster, "name=cancelled", "train.max_steps=1000000")
        log = log_of(cluster, job)
        wait_until(lambda: log.exists() and "start 2" in log.read_text(), "the second start", seconds=240)
        assert (
            f"node {bad} is not fit and is left out from now on: {HOME}/python does not run"
            in log.read_text()
        )
        found = job_of(cluster, job["job"])
        assert found["ExcNodeList"] == bad and bad not in found["NodeList"]
        assert "is asked to save" in tool(cluster, "tools.jobs", "cancel", job["job"])
        wait_for_end(cluster, job["job"], log, "CANCELLED")
        # Its processes have hardly come to their first step, or there is something to save.
        assert re.search(r"(ended|saved) on SIGUSR2; the newest checkpoint is of step \d+\n", log.read_text())
        assert f"job {job['job']}  run cancelled" in tool(cluster, "tools.jobs", "status")
    finally:
        (home / "python").write_text(PYTHON)
        cluster.wait_for_slurm()


@pytest.fixture(scope="module")
def dead(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[list[Machine]]:
    """Nodes that were destroyed and wait for their replacement."""
    dead: list[Machine] = []
    yield dead
    replace(cluster, lifecycle, dead)
    cluster.wait_for_slurm()


def replace(cluster: Cluster, lifecycle: Lifecycle, dead: list[Machine]) -> None:
    new = []
    while dead:
        new.append(cluster.replace(dead.pop()))
    for repaired in at_once(lifecycle.run, new):
        assert repaired.status == 0, repaired.output


def submit_and_destroy(
    cluster: Cluster, home: Path, dead: list[Machine], *, name: str, nodes: str, which: int
) -> tuple[dict[str, str], Path]:
    """Start a training and end one of its nodes behind a checkpoint; the requeued job, and its run."""
    job, run_dir = submit(cluster, f"name={name}", nodes=nodes), home / "runs" / name
    wait_until(lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, "a checkpoint", seconds=240)
    dead.append(nodes_of(cluster, job["job"])[which])
    cluster.kill(dead[-1])
    # Replaced before that, its name would be unknown to Slurm while the job still has it.
    wait_until(
        lambda: job_of(cluster, job["job"])["Restarts"] == "1",
        "Slurm to requeue the job",
        seconds=240,
        pause_seconds=0.5,
    )
    return job, run_dir


def test_three_nodes_become_two_when_the_first_one_dies(
    cluster: Cluster, home: Path, dead: list[Machine], uninterrupted: Uninterrupted
) -> None:
    """With it dies the batch script, and where the others meet."""
    job, run_dir = submit_and_destroy(cluster, home, dead, name="fewer", nodes="2-3", which=0)
    found = wait_for_end(cluster, job["job"], log_of(cluster, job))
    log = log_of(cluster, job).read_text()
    assert re.search(r"start 1, on( ip\S+){3}\n", log) and re.search(r"start 2, on( ip\S+){2}\n", log), log
    assert found["Restarts"] == "1" and dead[-1].hostname not in found["NodeList"], found
    assert "resumed" in events(run_dir), log
    # As in the trainer's own tests of another number of processes.
    assert largest_difference(losses(run_dir), uninterrupted.losses) < 1e-5
    assert len(losses(run_dir)) == NUM_STEPS
    assert json.loads((run_dir / "all_results.json").read_text())["world_size"] == 2


def test_a_dead_node_costs_steps_and_nothing_else(
    cluster: Cluster, lifecycle: Lifecycle, home: Path, dead: list[Machine], uninterrupted: Uninterrupted
) -> None:
    """Where no other is left, the job waits for its replacement."""
    job, run_dir = submit_and_destroy(cluster, home, dead, name="broken", nodes="2", which=-1)
    lost = dead[-1].hostname
    replace(cluster, lifecycle, dead)
    found = wait_for_end(cluster, job["job"], log_of(cluster, job))
    assert found["Restarts"] == "1" and lost not in found["NodeList"], found
    assert "resumed" in events(run_dir), log_of(cluster, job).read_text()
    # The same numbers to the last bit, each step once.
    assert losses(run_dir) == uninterrupted.losses
    assert len(losses(run_dir)) == NUM_STEPS
    assert json.loads((run_dir / "all_results.json").read_text())["world_size"] == 2
    report = cluster.shared / Path(job["report"]).relative_to("/fsx")
    assert "<svg" in report.read_text()
