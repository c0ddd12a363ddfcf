"""Each fault ends in a failed node, with the step's name and what to do; repaired, in a good one."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.cluster.artifact_bucket import ArtifactBucket
from tests.cluster.cluster import RESOURCE_CONFIG, Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.machine import Machine

# Nothing that is waited for comes.
IMPATIENT = 0.005
_FORGET_DOWNLOAD = ["rm", "--force", "/usr/local/bin/node_exporter"]
_S3 = ["--protocol", "tcp", "--destination", "10.77.0.1", "--dport", "5000", "--jump", "REJECT"]


@pytest.fixture(scope="module")
def node(cluster: Cluster, lifecycle: Lifecycle) -> Iterator[Machine]:
    """A worker to do harm to; after all of it the scripts have to succeed, and Slurm to give it jobs."""
    worker = cluster.workers[-1]
    yield worker
    repaired = lifecycle.run(worker)
    assert repaired.status == 0, repaired.output
    cluster.wait_for_slurm()


def fails(cluster: Cluster, lifecycle: Lifecycle, node: Machine, step: str, problem: str) -> None:
    """The run fails at that step, for that reason, says what to do, in its log too, and holds the node."""
    result = lifecycle.run(node, patience=IMPATIENT)
    assert result.status != 0, result.output
    found = re.search(rf"ERROR: step {step} failed: (.*)\. What to do: (.+)", result.output)
    assert found, result.output
    assert re.search(problem, found[1]), found[1]
    assert found[0] in node.read("/var/log/provision/provisioning.log")


def is_held(cluster: Cluster, node: Machine, step: str) -> bool:
    shown = cluster.controller.run(["scontrol", "show", "node", node.hostname]).output
    return "DRAIN" in shown and f"node-setup: step {step} failed" in shown


def test_a_mount_that_is_read_only(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    node.run(["mount", "-o", "remount,bind,ro", "/fsx"])
    try:
        fails(cluster, lifecycle, node, "lustre-mount", "/fsx is no writable lustre mount")
        assert is_held(cluster, node, "lustre-mount")
    finally:
        node.run(["mount", "-o", "remount,bind,rw", "/fsx"])


def test_a_mirror_that_is_down(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    node.run(_FORGET_DOWNLOAD)
    node.run(["iptables", "--insert", "OUTPUT", *_S3])
    try:
        fails(cluster, lifecycle, node, "node-exporter", "could not be copied.*tried 5 times")
    finally:
        node.run(["iptables", "--delete", "OUTPUT", *_S3])


def test_a_wrong_checksum(
    cluster: Cluster, lifecycle: Lifecycle, node: Machine, bucket: ArtifactBucket
) -> None:
    node.run(_FORGET_DOWNLOAD)
    key = bucket.download_of("node_exporter")
    bucket.put(key, b"something else")
    try:
        fails(cluster, lifecycle, node, "node-exporter", "another SHA-256 than downloads.json says")
        assert node.run(["test", "-e", "/usr/local/bin/node_exporter"], check=False).status != 0
    finally:
        bucket.restore(key)


def test_a_mirror_without_the_file(
    cluster: Cluster, lifecycle: Lifecycle, node: Machine, bucket: ArtifactBucket
) -> None:
    node.run(_FORGET_DOWNLOAD)
    key = bucket.download_of("node_exporter")
    bucket.remove(key)
    try:
        fails(
            cluster,
            lifecycle,
            node,
            "node-exporter",
            "is missing, or this node's role may not read it",
        )
    finally:
        bucket.restore(key)


def test_a_disk_that_is_full(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    node.run(_FORGET_DOWNLOAD)
    node.run(["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", "/var/cache/node-setup"])
    try:
        fails(cluster, lifecycle, node, "node-exporter", "the disk is full")
    finally:
        node.run(["umount", "/var/cache/node-setup"])


def test_a_controller_that_is_down(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    cluster.controller.run(["systemctl", "stop", "slurmctld.service"])
    try:
        fails(cluster, lifecycle, node, "hold-node", "Slurm's controller does not answer")
    finally:
        cluster.start_slurmctld()


# The real slurmctld, ended by a signal at each start, as 25.11 with an empty topology.
CRASHES = """[Unit]
StartLimitIntervalSec=0
[Service]
Restart=always
RestartSec=0.2
ExecStartPost=/bin/sh -c 'sleep 0.2; kill -SEGV $MAINPID'
"""
CRASH_FILE = "/etc/systemd/system/slurmctld.service.d/crash.conf"


def test_a_controller_that_crashes(cluster: Cluster, lifecycle: Lifecycle) -> None:
    controller = cluster.controller
    controller.run(["systemctl", "stop", "slurmctld.service"])
    controller.write(CRASH_FILE, CRASHES)
    controller.run(["systemctl", "daemon-reload"])
    controller.run(["systemctl", "start", "slurmctld.service"], check=False)
    try:
        problem = r"slurmctld does not stay up: signal 11, [1-9]\d* restarts by systemd"
        fails(cluster, lifecycle, controller, "slurm-controller", problem)
    finally:
        controller.run(["rm", CRASH_FILE])
        controller.run(["systemctl", "daemon-reload"])
        controller.run(["systemctl", "stop", "slurmctld.service"])
        cluster.start_slurmctld()
    repaired = lifecycle.run(controller)
    assert repaired.status == 0, repaired.output


def test_a_controller_that_is_late(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    """A worker that is set up before its controller waits for it."""
    cluster.controller.run(["systemctl", "stop", "slurmctld.service"])
    with ThreadPoolExecutor(max_workers=1) as pool:
        run = pool.submit(lifecycle.run, node)
        cluster.start_slurmctld()
        result = run.result(timeout=200)
    assert result.status == 0, result.output


def test_a_worker_that_missed_pyxis(cluster: Cluster, lifecycle: Lifecycle, node: Machine) -> None:
    """Its copy of Slurm's configuration is from before the controller had the plugin; it is fetched again."""
    node.run(["truncate", "--size=0", "/run/slurm/conf/plugstack.conf"])
    assert "--container-image" not in node.run(["srun", "--help"]).output
    result = lifecycle.run(node)
    assert result.status == 0, result.output
    assert "slurmd: restarted, to fetch plugstack.conf again" in result.output
    assert "--container-image" in node.run(["srun", "--help"]).output


def edited(text: str, edit: Callable[[list[dict[str, object]]], None]) -> str:
    config = json.loads(text)
    edit(config["InstanceGroups"])
    return json.dumps(config)


def rename_workers(groups: list[dict[str, object]]) -> None:
    for group in groups:
        group["Name"] = {"workers": "unheard-of"}.get(str(group["Name"]), group["Name"])


def empty_workers(groups: list[dict[str, object]]) -> None:
    for group in groups:
        group["Instances"] = None if group["Name"] == "workers" else group["Instances"]


@pytest.mark.parametrize(
    ("spoil", "problem"),
    [
        (lambda text: text[: len(text) // 2], "is truncated or not JSON"),
        (lambda text: edited(text, rename_workers), "group unheard-of of this node is unknown"),
        (lambda text: edited(text, empty_workers), "has none of this node's addresses"),
    ],
    ids=["truncated", "group unknown", "without this node"],
)
def test_a_resource_config_that_is_spoilt(
    cluster: Cluster, lifecycle: Lifecycle, node: Machine, spoil: Callable[[str], str], problem: str
) -> None:
    text = node.read(RESOURCE_CONFIG)
    node.write(RESOURCE_CONFIG, spoil(text))
    try:
        fails(cluster, lifecycle, node, "facts", problem)
    finally:
        node.write(RESOURCE_CONFIG, text)
