"""A new cluster: the scripts run on every node, and then it works."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle


def test_the_scripts_succeed_on_every_node(cluster: Cluster, lifecycle: Lifecycle) -> None:
    for machine in cluster.machines:
        result = lifecycle.first_runs[machine.hostname]
        assert result.status == 0, f"{machine.hostname}:\n{result.output}"
        assert "0 warnings" in result.output, result.output
    cluster.wait_for_slurm()


def test_a_job_runs_on_all_workers(cluster: Cluster, lifecycle: Lifecycle) -> None:
    """srun works from the login node, with the platform's own options, on the GPUs of each node."""
    script = 'echo "$(hostname) $CUDA_VISIBLE_DEVICES"'
    job = ["srun", "--nodes=3", "--partition=gpu", "--gpus-per-node=2", "--auto-resume=1"]
    result = cluster.login.run([*job, "--container-image=x.sqsh", "bash", "-c", script])
    assert sorted(result.output.split("\n")) == [
        "",
        *(f"{worker.hostname} 0,1" for worker in cluster.workers),
    ]
