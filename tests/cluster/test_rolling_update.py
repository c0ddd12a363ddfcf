"""A rolling update beside a training: nodes leave one after the other, and return with their names.

The service's requests and the new root volumes are not part of it. The nodes are switched off as for an
update, which Slurm sees as failed nodes.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from seqlm.launch.progress import newest_checkpoint
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.training import (
    NUM_STEPS,
    SAVE_EVERY,
    Uninterrupted,
    job_of,
    log_of,
    nodes_of,
    submit,
    wait_for_end,
)
from tests.workloads.training.training_runs import lines, losses

REASON = "software update"


def leave(cluster: Cluster, node: Machine) -> None:
    """Switch a node off, and report it to Slurm as down instead of waiting until it does not answer."""
    cluster.kill(node)
    update = ["scontrol", "update", f"NodeName={node.hostname}", "State=DOWN", f"Reason={REASON}"]
    cluster.controller.run(update)


def come_back(cluster: Cluster, node: Machine) -> None:
    cluster.bring_back(node)
    update = ["scontrol", "update", f"NodeName={node.hostname}", "State=RESUME"]
    cluster.controller.run(update)


@pytest.fixture
def repaired(cluster: Cluster) -> Iterator[None]:
    yield
    for node in cluster.workers:
        if not node.is_on:
            come_back(cluster, node)
    cluster.wait_for_slurm()


@pytest.mark.long
@pytest.mark.usefixtures("repaired")
def test_a_training_loses_steps_and_nothing_else(
    cluster: Cluster, home: Path, uninterrupted: Uninterrupted
) -> None:
    job = submit(cluster, "name=updated")
    log = log_of(cluster, job)
    run_dir = home / "runs/updated"
    wait_until(lambda: job_of(cluster, job["job"])["JobState"] == "RUNNING", "a start", seconds=240)
    first, second = nodes_of(cluster, job["job"])
    (idle,) = (node for node in cluster.workers if node not in (first, second))

    leave(cluster, idle)
    come_back(cluster, idle)
    wait_until(
        lambda: newest_checkpoint(run_dir) >= SAVE_EVERY, f"a checkpoint: {log}", seconds=240
    )
    assert job_of(cluster, job["job"])["Restarts"] == "0"

    leave(cluster, second)
    assert max(losses(run_dir)) < NUM_STEPS
    come_back(cluster, second)
    found = wait_for_end(cluster, job["job"], log)
    assert found["Restarts"] == "1"
    (resumed,) = (line for line in lines(run_dir, "event") if line["event"] == "resumed")
    assert resumed["step"] >= SAVE_EVERY
    assert losses(run_dir) == uninterrupted.losses
