"""A worker dies, and the service puts another machine with another address in its place."""

from __future__ import annotations

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.metrics_workspace import MetricsWorkspace
from tests.cluster.patience import wait_until

NODE_LIST = "/var/lib/discover-nodes/nodes.json"


def test_the_new_one_rejoins_and_is_scraped(
    cluster: Cluster, lifecycle: Lifecycle, workspace: MetricsWorkspace
) -> None:
    lost = cluster.workers[0]
    cluster.kill(lost)
    new = cluster.replace(lost)
    assert new.address != lost.address
    result = lifecycle.run(new)
    assert result.status == 0, result.output
    cluster.wait_for_slurm()
    job = ["srun", f"--nodelist={new.hostname}", "--partition=gpu", "--gpus=4", "--container-image=x.sqsh"]
    assert cluster.login.run([*job, "hostname"]).output == f"{new.hostname}\n"
    wait_until(
        lambda: new.hostname in workspace.instances('up{job="node"} == 1'),
        "the new node's metrics",
        seconds=150,
    )
    assert lost.address not in cluster.controller.read(NODE_LIST)
