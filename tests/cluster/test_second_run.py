"""The scripts run again on a cluster that they have set up: nothing changes."""

from __future__ import annotations

from constructs.nodes.lifecycle_entry import entry_script
from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.bundle import BUCKET
from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.snapshot import snapshot


def test_a_second_run_changes_nothing(cluster: Cluster, lifecycle: Lifecycle) -> None:
    """Not a file on any node, however its contents; and it says so."""
    before = {machine.hostname: snapshot(machine.upper) for machine in cluster.machines}
    shared = snapshot(cluster.shared)
    assert all("usr/local/bin/node_exporter" in files for files in before.values())
    assert "home/ada/.ssh/authorized_keys" in shared
    results = lifecycle.run_on_all(cluster)
    for machine in cluster.machines:
        result = results[machine.hostname]
        assert result.status == 0, result.output
        assert " changed: " not in result.output, result.output
        assert ", 0 changes, 0 warnings" in result.output
        after = snapshot(machine.upper)
        old = before[machine.hostname]
        assert {
            path for path in old.keys() | after.keys() if old.get(path) != after.get(path)
        } == set()
    assert snapshot(cluster.shared) == shared
    cluster.wait_for_slurm()


def test_a_new_node_runs_the_version_that_the_object_names(
    cluster: Cluster, lifecycle: Lifecycle, bucket: ArtifactBucket
) -> None:
    version = f"s3://{BUCKET}/{lifecycle.prefix}"
    key = "lifecycle/current"
    entry = entry_script("us-west-2", f"s3://{BUCKET}/{key}", "on_init_complete.sh")
    bucket.put(key, version.encode())
    result = cluster.login.run(
        ["bash", "-c", entry], environment={"SECONDS_TO_SHIP_LOG": "0"}, seconds=240
    )
    assert f"run_from_s3: {version} on {cluster.login.hostname}" in result.output
    assert ", 0 changes, 0 warnings" in result.output
