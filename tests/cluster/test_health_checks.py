"""Slurm runs the health checks before each job: a fault drains the node, what is no fault does not."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine, Result


@pytest.fixture
def worker(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Machine]:
    """A worker that is well, and is made so again."""
    worker = cluster.workers[-1]
    yield worker
    cluster.controller.run(
        ["scontrol", "update", f"nodename={worker.hostname}", "state=resume"], check=False
    )
    cluster.wait_for_slurm()


@contextmanager
def broken(worker: Machine, command: str, body: str) -> Iterator[None]:
    """Have a command that the checks use do something else; it comes before the system's own."""
    path = f"/usr/local/sbin/{command}"
    worker.write(path, f"#!/bin/sh\n{body}\n", mode=0o755)
    try:
        yield
    finally:
        worker.run(["rm", path])


def job_on(cluster: Cluster, worker: Machine) -> Result:
    job = ["srun", "--partition=gpu", f"--nodelist={worker.hostname}", "hostname"]
    return cluster.login.run(job, check=False, seconds=60)


def test_a_fault_drains_the_node_and_says_why(cluster: Cluster, worker: Machine) -> None:
    with broken(worker, "df", "echo Avail; echo 100"):
        result = job_on(cluster, worker)
        assert result.status != 0
        shown = cluster.controller.run(["scontrol", "show", "node", worker.hostname]).output
        assert "DRAIN" in shown
        assert (
            "Reason=node-health: the root volume has 100 MiB left; logs and jobs need 512" in shown
        )
        told = "node-health: the root volume has 100 MiB left"
        assert told in worker.read("/var/log/slurm/slurmd.log")
        assert (
            "the root volume has 100 MiB left"
            in worker.run(["journalctl", "--identifier=node-health"]).output
        )
    cluster.controller.run(["scontrol", "update", f"nodename={worker.hostname}", "state=resume"])
    cluster.wait_for_slurm()
    assert job_on(cluster, worker).output == f"{worker.hostname}\n"


@pytest.mark.parametrize("body", ["exec tail -f /dev/null", "kill -SEGV $$", "exit 127"])
def test_a_check_that_does_not_work_starts_the_job(
    cluster: Cluster, worker: Machine, body: str
) -> None:
    with broken(worker, "journalctl", body):
        assert job_on(cluster, worker).output == f"{worker.hostname}\n"
    told = worker.run(["journalctl", "--identifier=node-health", "--lines=1"]).output
    assert "no_fatal_xid could not be checked" in told
