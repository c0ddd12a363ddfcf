"""A rolling update beside a training: nodes leave in batches of two, and return with their names.

The service's requests and the new root volumes are not part of it. The nodes are switched off as for an
update, which Slurm sees as failed nodes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from seqlm.launch.progress import newest_checkpoint
from tests.cluster.cluster import Cluster
from tests.cluster.machine import Machine
from tests.cluster.patience import wait_until
from tests.cluster.test_users import submit as submit_script
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
SECONDS_AWAY = 30
"""An update takes minutes. If nodes return within seconds, Slurm 22.05 takes the end of the job's run before
the failure for the end of its new run."""


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


def update(cluster: Cluster, batch: Sequence[Machine], meanwhile: Callable[[], None]) -> None:
    """Switch the nodes of a batch off together, and bring them back."""
    for node in batch:
        leave(cluster, node)
    meanwhile()
    time.sleep(SECONDS_AWAY)
    for node in batch:
        come_back(cluster, node)
    # Slurm 22.05 keeps the GPUs of a job that failures have requeued to other nodes (docs/runbook.md).
    cluster.controller.run(["scontrol", "reconfigure"])


@pytest.mark.long
@pytest.mark.usefixtures("repaired")
def test_a_training_loses_steps_and_nothing_else(
    cluster: Cluster, home: Path, uninterrupted: Uninterrupted
) -> None:
    """The first batch has both nodes of the training, and the second one has the third node of the group."""
    job = submit(cluster, "name=updated")
    log = log_of(cluster, job)
    run_dir = home / "runs/updated"
    wait_until(lambda: job_of(cluster, job["job"])["JobState"] == "RUNNING", "a start", seconds=240)
    first_batch = nodes_of(cluster, job["job"])
    second_batch = [node for node in cluster.workers if node not in first_batch]
    assert (len(first_batch), len(second_batch)) == (2, 1)
    waiting: list[str] = []

    def have_another_job_wait() -> None:
        """Submit a job for which the nodes that are left do not suffice."""
        waiting.append(submit_script(cluster.login, "ben", "--nodes=2", script="hostname"))
        assert job_of(cluster, waiting[0])["JobState"] == "PENDING"
        assert job_of(cluster, job["job"])["JobState"] == "PENDING"

    wait_for_checkpoint(run_dir, SAVE_EVERY, log)
    update(cluster, first_batch, have_another_job_wait)
    wait_until(lambda: len(resumed_steps(run_dir)) == 1, f"a second start: {log}", seconds=240)
    wait_for_checkpoint(run_dir, resumed_steps(run_dir)[0] + SAVE_EVERY, log)
    nodes_then = nodes_of(cluster, job["job"])
    assert max(losses(run_dir)) < NUM_STEPS, "the training ended before the second batch left"
    update(cluster, second_batch, lambda: None)
    found = wait_for_end(cluster, job["job"], log)
    num_restarts = 1 + any(node in second_batch for node in nodes_then)
    # The job also requeues itself if nodes that have just returned fail its checks, before any step.
    assert int(found["Restarts"]) >= num_restarts, log.read_text()
    steps = resumed_steps(run_dir)
    assert len(steps) == num_restarts
    assert steps[0] >= SAVE_EVERY
    assert losses(run_dir) == uninterrupted.losses
    wait_for_end(cluster, waiting[0], log)


def wait_for_checkpoint(run_dir: Path, step: int, log: Path) -> None:
    wait_until(
        lambda: newest_checkpoint(run_dir) >= step,
        f"a checkpoint of step {step} or later: {log}",
        seconds=240,
    )


def resumed_steps(run_dir: Path) -> list[int]:
    """Return the step from which each restart of a run continued."""
    return [line["step"] for line in lines(run_dir, "event") if line["event"] == "resumed"]
