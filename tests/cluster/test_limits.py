"""QOS, limits and options of partitions of the cluster file hold in a real Slurm."""

from __future__ import annotations

from node_setup.partition_options import shown_options
from tests.cluster.cluster import Cluster
from tests.cluster.hyperpod import agent
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until
from tests.cluster.test_users import as_user, submit

OPTIONS = {"MaxTime": "2-00:00:00", "DefaultTime": "04:00:00"}
"""Options of the partition gpu in cluster.yaml, in Slurm's words."""


def partition(cluster: Cluster, name: str) -> dict[str, str]:
    shown = cluster.controller.run(["scontrol", "--oneliner", "show", "partition"]).output
    return shown_options(shown)[name]


def reasons(cluster: Cluster, *options: str) -> set[str]:
    """Return the states of jobs in the queue, with the reasons of those that wait."""
    shown = cluster.controller.run(["squeue", "--noheader", *options, "--format=%T %r"]).output
    return set(shown.split("\n")) - {""}


def wait_for_options(cluster: Cluster) -> None:
    """Wait until the options are set: a restart of slurmctld loses them for up to a minute."""
    wait_until(
        lambda: partition(cluster, "gpu").items() >= OPTIONS.items(),
        "the options of the partition to be set",
        seconds=240,
    )


def test_jobs_with_the_qos_of_another_account_are_refused(
    cluster: Cluster, lifecycle: Lifecycle
) -> None:
    command = ["sbatch", "--partition=gpu", "--chdir=/tmp", "--wrap=true", "--qos=long"]
    result = cluster.login.run(command, user="ben", environment=as_user("ben"), check=False)
    assert result.status != 0
    assert "Invalid qos specification" in result.output


def test_jobs_above_the_time_of_their_partition_wait(
    cluster: Cluster, lifecycle: Lifecycle
) -> None:
    """Slurm refuses them only with EnforcePartLimits."""
    wait_for_options(cluster)
    job = submit(cluster.login, "ben", "--time=3-00:00", script="true")
    wait_until(
        lambda: reasons(cluster, f"--jobs={job}") == {"PENDING PartitionTimeLimit"},
        "the job to wait for another limit",
        seconds=240,
    )
    cluster.controller.run(["scancel", job])


def test_jobs_above_the_limit_of_their_qos_wait(cluster: Cluster, lifecycle: Lifecycle) -> None:
    jobs = [submit(cluster.login, "ada", "--qos=long", script="sleep 300") for _ in range(2)]
    wait_until(
        lambda: (
            reasons(cluster, "--user=ada", "--qos=long")
            == {"RUNNING None", "PENDING QOSMaxJobsPerUserLimit"}
        ),
        "one of two jobs to run",
        seconds=240,
    )
    cluster.controller.run(["scancel", *jobs])
    cluster.wait_for_slurm()


def test_options_of_partitions_outlast_a_restart(cluster: Cluster, lifecycle: Lifecycle) -> None:
    wait_for_options(cluster)
    agent.restart_slurmctld(cluster.controller)
    assert partition(cluster, "gpu")["MaxTime"] == "UNLIMITED"
    # A start of the service is a look.
    cluster.controller.run(["systemctl", "restart", "partition-options.service"])
    wait_for_options(cluster)
    cluster.wait_for_slurm()
