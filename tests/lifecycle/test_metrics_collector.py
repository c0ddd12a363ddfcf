"""The collector runs with what Prometheus accepts, gets this node's metrics, and tells what comes of them."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any

import pytest
import yaml

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.steps import metrics_collector
from tests.lifecycle.https_server import body, served
from tests.lifecycle.node import StandIns, node_of
from tests.lifecycle.services import Services, services

__all__ = ["services"]
METRICS = """\
prometheus_remote_storage_bytes_total{{url="x"}} {sent}
prometheus_remote_storage_samples_failed_total{{url="x"}} {failed}
prometheus_remote_storage_queue_highest_sent_timestamp_seconds{{url="x"}} {newest}
prometheus_remote_storage_samples_retried_total{{url="x"}} 99
"""


class Prometheus:
    """Its answers, which tests change."""

    def __init__(self) -> None:
        self.targets: list[dict[str, Any]] = [target("10.0.0.10", "up")]
        self.sent = 1000
        self.sent_each_time = 10
        self.failed = 7
        self.failed_each_time = 0
        """Samples were refused long ago."""
        self.newest = time.time() - 500

    def __call__(self, request: BaseHTTPRequestHandler) -> None:
        answers = {
            "/-/ready": "ready",
            "/api/v1/targets?state=active": json.dumps({"data": {"activeTargets": self.targets}}),
            "/metrics": METRICS.format(sent=self.sent, failed=self.failed, newest=self.newest),
        }
        if request.path == "/metrics":
            self.sent += self.sent_each_time
            self.failed += self.failed_each_time
        body(answers[request.path].encode())(request)


def target(address: str, health: str, error: str = "") -> dict[str, Any]:
    return {"scrapeUrl": f"http://{address}:9100/metrics", "health": health, "lastError": error}


@pytest.fixture
def prometheus(monkeypatch: pytest.MonkeyPatch) -> Iterator[Prometheus]:
    answers = Prometheus()
    with served(answers) as url:
        monkeypatch.setattr(metrics_collector, "URL", url)
        yield answers


@pytest.fixture
def node(
    tmp_path: Path,
    services: Services,
    stand_ins: StandIns,
    prometheus: Prometheus,
    monkeypatch: pytest.MonkeyPatch,
) -> Node:
    made = node_of(tmp_path, "controller")

    def install(node: Node, name: str, binaries: tuple[str, ...]) -> bool:
        assert name == "prometheus"
        return node.install(
            "/usr/local/bin/promtool",
            f"#!/bin/bash\ncp '{tmp_path}'/root/etc/prometheus-agent/*.candidate "
            f"'{tmp_path}/checked'; [[ ! -e '{tmp_path}/refuse' ]] || {{ echo 'bad field'; exit 1; }}",
            0o755,
        )

    monkeypatch.setattr(metrics_collector, "install_binaries", install)
    stand_ins.command("scontrol", "echo 'MetricsType             = (null)'")
    node_list = made.host.path("/var/lib/discover-nodes/nodes.json")
    node_list.parent.mkdir(parents=True)
    node_list.write_text(json.dumps([{"targets": ["10.0.0.10:9100"]}]))
    return made


def config(node: Node) -> Any:
    return yaml.safe_load(node.host.path(metrics_collector.CONFIG).read_text())


def test_it_is_configured_for_the_workspace(node: Node, services: Services) -> None:
    metrics_collector.run_collector(node)
    written = config(node)
    assert written["global"]["external_labels"] == {"cluster": "esm2-slurm"}
    remote = written["remote_write"][0]
    assert remote["url"] == node.deployment.remote_write_url
    assert remote["sigv4"] == {"region": "us-west-2"}
    assert [job["job_name"] for job in written["scrape_configs"]] == [
        "node",
        "gpu",
        "training",
        "prometheus",
    ]
    assert services.restarts == ["discover-nodes.service", "prometheus-agent.service"]
    discovery = json.loads(node.host.path("/etc/node-setup/discover_nodes.json").read_text())
    assert discovery["instance_groups"]["workers"] == {"role": "worker", "num_gpus": 1}
    assert node.warnings == []


def test_a_second_run_changes_nothing(node: Node, services: Services) -> None:
    metrics_collector.run_collector(node)
    node.changes = []
    metrics_collector.run_collector(node)
    assert node.changes == [] and len(services.restarts) == 2


def test_lists_are_where_discovery_writes_them(node: Node) -> None:
    metrics_collector.run_collector(node)
    unit = node.host.path("/etc/systemd/system/discover-nodes.service").read_text()
    files = [
        file
        for job in config(node)["scrape_configs"]
        for source in job.get("file_sd_configs", [])
        for file in source["files"]
    ]
    assert files == [f"/var/lib/discover-nodes/{name}.json" for name in ("nodes", "gpus", "jobs")]
    assert "--output /var/lib/discover-nodes " in unit


def test_scrapes_slurms_own_metrics_if_it_has_them(node: Node, stand_ins: StandIns) -> None:
    stand_ins.command(
        "scontrol", r"printf 'MetricsType = metrics/openmetrics\nSlurmctldPort = 6820-6823\n'"
    )
    metrics_collector.run_collector(node)
    jobs = {job["job_name"]: job for job in config(node)["scrape_configs"]}
    assert set(jobs) - {"node", "gpu", "training", "prometheus"} == {
        "slurm-jobs",
        "slurm-nodes",
        "slurm-partitions",
        "slurm-scheduler",
    }
    assert jobs["slurm-nodes"]["metrics_path"] == "/metrics/nodes"
    assert jobs["slurm-nodes"]["static_configs"][0]["targets"] == ["10.0.0.10:6820"]


def test_a_configuration_that_prometheus_refuses_is_not_put_in_place(
    node: Node, services: Services, tmp_path: Path
) -> None:
    (tmp_path / "refuse").touch()
    with pytest.raises(
        SetupError, match=r"promtool check config --agent .* ended with 1: bad field"
    ):
        metrics_collector.run_collector(node)
    assert list(node.host.path("/etc/prometheus-agent").iterdir()) == []
    assert "prometheus-agent.service" not in services.restarts


def test_what_is_checked_is_what_is_installed(node: Node, tmp_path: Path) -> None:
    metrics_collector.run_collector(node)
    assert (tmp_path / "checked").read_text() == node.host.path(
        metrics_collector.CONFIG
    ).read_text()


def test_without_a_workspace_it_says_so(node: Node, services: Services) -> None:
    node.deployment = replace(node.deployment, remote_write_url=None)
    metrics_collector.run_collector(node)
    assert "sent nowhere: the deployment has no Prometheus workspace" in node.warnings[0]
    assert services.restarts == []


def test_other_nodes_run_none(tmp_path: Path, node: Node, services: Services) -> None:
    metrics_collector.run_collector(node_of(tmp_path, "workers"))
    node.facts = replace(node.facts, address="10.0.0.11")
    metrics_collector.run_collector(node)
    assert services.restarts == []


def test_a_list_without_this_node_fails(node: Node) -> None:
    node.host.path("/var/lib/discover-nodes/nodes.json").write_text("[]")
    with pytest.raises(
        SetupError, match=r"nodes.json does not list this node \(10.0.0.10\) after 90 s"
    ):
        metrics_collector.run_collector(node)


def test_a_target_that_stays_down_fails_with_prometheus_reason(
    node: Node, prometheus: Prometheus
) -> None:
    prometheus.targets = [target("10.0.0.10", "down", "connection refused")]
    with pytest.raises(SetupError, match="this node's target is down: connection refused"):
        metrics_collector.run_collector(node)


def test_reports_other_targets_that_are_down(
    node: Node, prometheus: Prometheus, capsys: pytest.CaptureFixture[str]
) -> None:
    """A worker that is being set up answers later."""
    prometheus.targets.append(target("10.0.0.31", "down"))
    metrics_collector.run_collector(node)
    assert (
        "1 of 2 targets do not answer now: http://10.0.0.31:9100/metrics" in capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("complaint", "advice"),
    [
        (
            "server returned HTTP status 403 Forbidden: AccessDeniedException",
            "lacks aps:RemoteWrite",
        ),
        ("server returned HTTP status 429 Too Many Requests", "raise it in Service Quotas"),
        ("no EC2 IMDS role found", "see `sudo aws sts get-caller-identity`"),
        ("dial tcp: lookup aps-workspaces: no such host", "the endpoint aps-workspaces"),
        ("something new", "see `journalctl --unit prometheus-agent.service`"),
    ],
)
def test_a_workspace_that_refuses_is_a_warning_with_advice(
    node: Node, prometheus: Prometheus, stand_ins: StandIns, complaint: str, advice: str
) -> None:
    line = f'time=2026-11-21 level=ERROR msg="non-recoverable error" component=remote err="{complaint}"'
    stand_ins.command("journalctl", f"echo '{line}'; echo 'level=INFO component=remote msg=ok'")
    prometheus.failed_each_time = 12
    metrics_collector.run_collector(node)
    assert len(node.warnings) == 1
    assert "refuses metrics" in node.warnings[0] and complaint in node.warnings[0]
    assert advice in node.warnings[0]


def test_a_workspace_that_is_slow_is_a_warning(node: Node, prometheus: Prometheus) -> None:
    prometheus.sent_each_time = 0
    metrics_collector.run_collector(node)
    assert "has taken no metrics after 120 s: its log has no message about that" in node.warnings[0]


def test_a_workspace_that_takes_all_needs_no_wait_for_more(
    node: Node, prometheus: Prometheus
) -> None:
    prometheus.sent_each_time = 0
    prometheus.failed = 0
    prometheus.newest = time.time() - 30
    metrics_collector.run_collector(node)
    assert node.warnings == []
