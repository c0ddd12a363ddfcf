"""Scripts applied beside jobs, and to a node that an earlier run has left drained, by a real Slurm."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.bundle import BUCKET
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import PATIENCE, Lifecycle
from tests.cluster.machine import Machine, Result
from tests.cluster.patience import wait_until

FETCH_AND_RUN = (Path(__file__).parents[2] / "lifecycle/slurm/run_from_s3.sh").read_text()
REGION = "us-west-2"


def with_user(settings: dict[str, Any], name: str, uid: int) -> dict[str, Any]:
    changed = copy.deepcopy(settings)
    changed["groups"].append({"name": name, "gid": uid})
    user = {"name": name, "uid": uid, "group": name, "groups": [], "ssh_keys": []}
    changed["users"].append(user | {"account": None, "admin": False})
    return changed


def apply(controller: Machine, prefix: str, *arguments: str) -> Result:
    """Run it as tools/nodes/apply_lifecycle.py does."""
    source = f"s3://{BUCKET}/{prefix}"
    command = ["python3", "-s", "-B", "apply_to_cluster.py", "--source", source, *arguments]
    return controller.run(
        ["bash", "-c", FETCH_AND_RUN, "run_from_s3.sh", REGION, source, *command],
        environment={"LIFECYCLE_PATIENCE": str(PATIENCE)},
        check=False,
        seconds=300,
    )


@pytest.fixture(scope="module")
def beside(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[str]:
    """A job that runs on all workers meanwhile; all nodes are set up."""
    for name, result in lifecycle.first_runs.items():
        assert result.status == 0, f"{name}:\n{result.output}"
    cluster.wait_for_slurm()
    controller = cluster.controller
    job = [
        "sbatch",
        "--parsable",
        "--partition=gpu",
        "--nodes=3",
        "--gpus-per-node=2",
        "--job-name=beside",
    ]
    job_id = controller.run([*job, "--output=/dev/null", "--wrap=srun sleep 600"]).output.strip()
    wait_until(lambda: state(controller, job_id) == "R", "the job to run", seconds=240)
    yield job_id
    controller.run(["scancel", job_id])
    cluster.wait_for_slurm()


def state(controller: Machine, job_id: str) -> str:
    return controller.run(["squeue", "--noheader", "--jobs", job_id, "--format=%t"]).output.strip()


def test_a_node_that_failed_is_held_reached_again_and_given_back(
    cluster: Cluster, bucket: ArtifactBucket, settings: dict[str, Any], beside: str
) -> None:
    controller = cluster.controller
    broken = cluster.workers[0]
    # Somebody else has the number that the new user is to have.
    broken.run(["useradd", "--uid", "2999", "squatter"])
    prefix = bucket.publish(with_user(settings, "newcomer", 2999))
    result = apply(controller, prefix)
    assert result.status == 3, result.output
    assert f"NOT DONE: {broken.hostname}: step users failed: " in result.output
    assert "done: the controller and 2 of 3 workers" in result.output
    shown = controller.run(["scontrol", "show", "node", broken.hostname]).output
    assert "DRAIN" in shown and "Reason=node-setup: step users failed" in shown

    # While it is held, a job waits for it.
    waiting = [
        "sbatch",
        "--parsable",
        f"--nodelist={broken.hostname}",
        "--partition=gpu",
        "--output=/dev/null",
    ]
    job_id = controller.run([*waiting, "--wrap=true"]).output.strip()
    broken.run(["userdel", "squatter"])
    result = apply(controller, prefix, "--nodes", broken.hostname)
    assert result.status == 0, result.output
    for machine in [controller, *cluster.workers]:
        assert "uid=2999(newcomer)" in machine.run(["id", "newcomer"]).output
    cluster.wait_for_slurm(("idle", "mix", "alloc", "comp"))
    wait_until(
        lambda: (
            job_id not in controller.run(["squeue", "--noheader", "--format=%i"]).output.split()
        ),
        "the job to have run",
        seconds=240,
    )
    assert (
        controller.run(["scontrol", "show", "reservation"]).output.strip()
        == "No reservations in the system"
    )
    assert state(controller, beside) == "R"


def test_other_settings_reach_all_nodes_beside_their_jobs(
    cluster: Cluster, lifecycle: Lifecycle, beside: str
) -> None:
    """Those of before, without the newcomer."""
    controller = cluster.controller
    result = apply(controller, lifecycle.prefix)
    assert result.status == 0, result.output
    assert "done: the controller and 3 of 3 workers" in result.output
    for machine in [controller, *cluster.workers]:
        # The eighth field is the day on which the account ended.
        assert machine.run(["getent", "shadow", "newcomer"]).output.split(":")[7] == "1"
    assert state(controller, beside) == "R"
