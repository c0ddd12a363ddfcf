"""A node that restarts: the scripts do not run again, and what they have set up is there."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.island import METADATA_ADDRESS
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.patience import wait_until

CURL_WAS_REFUSED = 7
CURL = ("curl", "--silent", "--noproxy", "*", "--max-time", "5", f"http://{METADATA_ADDRESS}/")


def test_services_and_rules_come_back(cluster: Cluster, lifecycle: Lifecycle) -> None:
    login = cluster.login
    login.kill()
    login.boot()
    login.wait_until_up()
    assert login.run([*CURL], user="ben", check=False).status == CURL_WAS_REFUSED
    metrics = ["curl", "--silent", "--fail", f"http://{login.address}:9100/metrics"]
    wait_until(
        lambda: login.run(metrics, check=False).status == 0, "the exporter to answer", seconds=240
    )
    assert login.run(["id", "--user", "ben"]).output == "2002\n"
    assert login.run(["bash", "-c", "echo ~ben"]).output == "/fsx/home/ben\n"
    cluster.wait_for_slurm()
    assert cluster.login.run(["srun", "--partition=gpu", "--nodes=3", "true"]).status == 0
