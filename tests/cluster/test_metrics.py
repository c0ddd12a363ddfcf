"""Real exporters, scraped by a real Prometheus, which sends what it gets to another one."""

from __future__ import annotations

from functools import partial

from tests.cluster.cluster import Cluster
from tests.cluster.lifecycle import Lifecycle
from tests.cluster.metrics_workspace import MetricsWorkspace
from tests.cluster.patience import wait_until

CONFIG = "/etc/prometheus-agent/prometheus.yml"
# Twice what lies between two scrapes.
SECONDS = 240


def test_prometheus_accepts_its_configuration(cluster: Cluster, lifecycle: Lifecycle) -> None:
    checked = cluster.controller.run(["promtool", "check", "config", "--agent", CONFIG])
    assert "SUCCESS" in checked.output


def test_every_node_is_scraped(
    cluster: Cluster, lifecycle: Lifecycle, workspace: MetricsWorkspace
) -> None:
    everyone = {machine.hostname for machine in cluster.machines}
    workers = {machine.hostname for machine in cluster.workers}
    for expression, expected in (
        ('up{job="node"} == 1', everyone),
        ('up{job="gpu"} == 1', workers),
        ('node_memory_MemAvailable_bytes{role="worker"}', workers),
        ("count by (instance) (DCGM_FI_DEV_GPU_TEMP) == 4", workers),
        ("node_amazonefa_info", workers),
    ):
        wait_until(
            partial(workspace.has, expression, expected),
            f"{expression} of {expected}",
            seconds=SECONDS,
        )


def test_slurms_state_arrives(
    cluster: Cluster, lifecycle: Lifecycle, workspace: MetricsWorkspace
) -> None:
    wait_until(
        lambda: workspace.query('{__name__=~"slurm_.*", instance="ip-10-77-0-10"}'),
        "metrics of Slurm",
        seconds=SECONDS,
    )
    failed = workspace.query("slurm_collector_success == 0")
    assert failed == []


def test_metrics_carry_the_clusters_name(
    lifecycle: Lifecycle, cluster: Cluster, workspace: MetricsWorkspace
) -> None:
    wait_until(lambda: workspace.query("up"), "metrics", seconds=SECONDS)
    assert {sample["metric"]["cluster"] for sample in workspace.query("up")} == {"esm2-test"}
