"""The message at login, the training code, and the rotation of logs."""

from __future__ import annotations

from pathlib import Path

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until

CONFIG = Path(__file__).parents[2] / "workloads/seqlm/training/config.py"


def test_users_read_the_code_and_cannot_change_it(cluster: Cluster, lifecycle: Lifecycle) -> None:
    for machine in (cluster.login, cluster.workers[0]):
        read = machine.run(["cat", "/fsx/workloads/current/seqlm/training/config.py"], user="ben")
        assert read.output == CONFIG.read_text()
        assert (
            machine.run(["touch", "/fsx/workloads/current/x"], user="ben", check=False).status != 0
        )


def test_the_message_of_the_day_tells_of_the_set_up(cluster: Cluster, lifecycle: Lifecycle) -> None:
    shown = cluster.login.run(["run-parts", "/etc/update-motd.d"], user="ben").output
    assert "esm2-test: login of group login" in shown
    assert "steps, finished 20" in shown
    assert "sbatch --partition=gpu" in shown


def test_slurms_daemons_write_to_the_new_log_after_a_rotation(
    cluster: Cluster, lifecycle: Lifecycle
) -> None:
    """HyperPod's image has no rotation of its own, unlike Debian's packages. The second time compresses."""
    controller = cluster.controller
    log = "/var/log/slurm/slurmctld.log"
    controller.run(["rm", "--force", "/etc/logrotate.d/slurmctld", "/etc/logrotate.d/slurmdbd"])
    assert "/etc/logrotate.d/cluster-logs" in lifecycle.run(controller).output
    for word in ("first", "second"):
        update = f"nodename={cluster.workers[0].hostname} comment={word}"
        controller.run(["logrotate", "--force", "/etc/logrotate.d/cluster-logs"])
        controller.run(["scontrol", "update", *update.split()])
        controller.run(["scontrol", "setdebug", "info"])
        wait_until(
            lambda: controller.run(["test", "-s", log], check=False).status == 0,
            f"{log}",
            seconds=240,
        )
    assert controller.run(["ls", f"{log}.1", f"{log}.2.gz"]).status == 0
