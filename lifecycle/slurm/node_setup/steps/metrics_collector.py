"""Send all nodes' metrics to Amazon Managed Service for Prometheus, from the primary controller.

Prometheus runs as an agent. It signs with the node's role, keeps samples until they are sent, and needs no
container. One agent serves the whole cluster, so that workers keep CPUs and memory for jobs.
"""

import json
import re
import time
from dataclasses import dataclass

from node_setup.downloads import install_binaries
from node_setup.endpoint import http_get
from node_setup.facts import RESOURCE_CONFIG
from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.service import install_program, remove_units, run_unit
from node_setup.slurm import configuration
from node_setup.steps import gpu_exporter
from node_setup.steps.exporters import NODE_PORT, NODE_UNIT

UNIT = "prometheus-agent.service"
DISCOVERY_UNIT = "discover-nodes.service"
ALL_UNITS = (
    UNIT,
    DISCOVERY_UNIT,
    "slurm-metrics.service",
    "efa-metrics.service",
    gpu_exporter.UNIT,
    NODE_UNIT,
)
"""Units of all steps for metrics."""
CONFIG = "/etc/prometheus-agent/prometheus.yml"
NODE_LIST = "/var/lib/discover-nodes/nodes.json"
URL = "http://127.0.0.1:9090"
SECONDS_TO_DISCOVER = 90
SECONDS_TO_START = 120
SECONDS_TO_SCRAPE = 150
"""Time limit. Prometheus rereads a list after a minute, and queries a new target within half a minute."""
SECONDS_TO_SEND = 120
SHOWN_TARGETS = 5
SHOWN_CHARACTERS = 400
"""Length of the shown end of a line of Prometheus' log."""
LOOK = f"see `journalctl --unit {UNIT}` on the controller"
SLURM_ENDPOINTS = ("jobs", "nodes", "partitions", "scheduler")
"""Endpoints of slurmctld 25.11 and later. The number of series of jobs-users-accts is unbounded, so it is not
used (Slurm's Metrics Guide)."""
# Prometheus 3 refuses answers without a content type, so the protocol is named.
_SLURM_JOB = """\
  - job_name: slurm-{endpoint}
    metrics_path: /metrics/{endpoint}
    scrape_interval: 1m
    fallback_scrape_protocol: PrometheusText0.0.4
    static_configs:
      - targets: [{target}]
        labels:
          instance: {instance}
"""

ADVICE = (
    (
        r"AccessDenied|not authorized|\b403\b",
        "the controller's role lacks aps:RemoteWrite on this workspace, or the clock is wrong: `make "
        "deploy`, then `timedatectl` on the node",
    ),
    (
        r"IMDS|NoCredentialProviders|failed to get credentials",
        "Prometheus finds no credentials: see `sudo aws sts get-caller-identity` on the node",
    ),
    (
        r"\b429\b",
        "the workspace's quota of samples or series is used up: raise it in Service Quotas",
    ),
    (
        r"no such host|timeout|refused|deadline|i/o",
        "the network does not reach the workspace: it needs a NAT gateway, or the endpoint aps-workspaces",
    ),
)
"""Remedies by the pattern of Prometheus' complaint."""


@dataclass(frozen=True)
class RemoteWrite:
    """Counts of sent and refused samples since Prometheus started."""

    refused_samples: float
    sent_bytes: float
    newest_sent: float
    """Time of the newest sample sent, in seconds since 1970; 0 if none was sent."""


def run_collector(node: Node) -> None:
    """Install Prometheus and its list of nodes, and check that metrics arrive.

    A workspace that refuses them is a warning, because the cluster works without metrics.

    Raises:
        SetupError: if Prometheus does not run, or cannot query this node.
    """
    if not node.facts.is_primary_controller:
        return
    url = node.deployment.remote_write_url
    if url is None:
        node.warn(
            "metrics are collected on the nodes and sent nowhere: the deployment has no Prometheus "
            "workspace; set prometheus: true in the cluster file and `make deploy`"
        )
        return
    changed = install_binaries(node, "prometheus", ("prometheus", "promtool"))
    _run_discovery(node)
    changed |= _install_config(node, url)
    run_unit(node, UNIT, changed=changed)
    node.host.wait_for(
        lambda: http_get(f"{URL}/-/ready"),
        timeout_seconds=SECONDS_TO_START,
        what=f"{UNIT} is not ready",
        remedy=LOOK,
    )
    _verify_targets(node)
    _verify_sending(node, url)


def _run_discovery(node: Node) -> None:
    groups = {
        name: {"role": group.role, "num_gpus": group.num_gpus}
        for name, group in node.settings.instance_groups.items()
    }
    config = {"resource_config": RESOURCE_CONFIG, "instance_groups": groups}
    changed = install_program(node, "discover_nodes")
    changed |= node.install(
        "/etc/node-setup/discover_nodes.json", json.dumps(config, indent=2, sort_keys=True) + "\n"
    )
    run_unit(node, DISCOVERY_UNIT, changed=changed)
    nodes = node.host.path(NODE_LIST)
    own = f'"{node.facts.address}:{NODE_PORT}"'
    node.host.wait_for(
        lambda: nodes.is_file() and own in nodes.read_text(),
        timeout_seconds=SECONDS_TO_DISCOVER,
        what=f"{NODE_LIST} does not list this node ({node.facts.address})",
        remedy=f"see `journalctl --unit {DISCOVERY_UNIT}`, and whether {RESOURCE_CONFIG} has the address",
    )


def _install_config(node: Node, url: str) -> bool:
    """Install the configuration if Prometheus accepts it, and return whether it changed."""
    text = node.template(
        "units/prometheus.yml",
        cluster=json.dumps(node.settings.cluster_name),
        host_name=json.dumps(node.facts.host_name),
        region=json.dumps(node.settings.region),
        url=json.dumps(url),
        slurm=_native_slurm_jobs(node),
    )
    candidate = node.host.path(f"{CONFIG}.candidate")
    node.host.write_text(f"{CONFIG}.candidate", text)
    try:
        node.host.run(
            node.host.path("/usr/local/bin/promtool"),
            "check",
            "config",
            "--agent",
            candidate,
            remedy="the template units/prometheus.yml, or a value of this deployment, is not what Prometheus "
            "takes: correct it and `make deploy`",
        )
    finally:
        candidate.unlink(missing_ok=True)
    return node.install(CONFIG, text)


def _native_slurm_jobs(node: Node) -> str:
    """Return scrape configurations of Slurm's own metrics, or nothing if slurmctld has none."""
    values = configuration(node.host)
    if values.get("MetricsType") != "metrics/openmetrics":
        return ""
    # Each port of a range serves all metrics.
    port = values.get("SlurmctldPort", "6817").split("-")[0]
    jobs = [
        _SLURM_JOB.format(
            endpoint=endpoint,
            target=json.dumps(f"{node.facts.address}:{port}"),
            instance=json.dumps(node.facts.host_name),
        )
        for endpoint in SLURM_ENDPOINTS
    ]
    head = "  # Slurm's own metrics, once a minute, because each answer takes slurmctld's locks.\n"
    return head + "".join(jobs)


def _verify_targets(node: Node) -> None:
    own = f"//{node.facts.address}:{NODE_PORT}/"

    def look() -> list[dict[str, str]]:
        targets = json.loads(http_get(f"{URL}/api/v1/targets?state=active"))["data"][
            "activeTargets"
        ]
        mine = next((target for target in targets if own in target["scrapeUrl"]), None)
        if mine is None:
            raise SetupError("this node is not among its targets yet", "")
        if mine["health"] != "up":
            reason = mine["lastError"] or "not queried yet"
            raise SetupError(f"this node's target is {mine['health']}: {reason}", "")
        return targets

    targets = node.host.wait_for(
        look,
        timeout_seconds=SECONDS_TO_SCRAPE,
        what=f"{UNIT} gets no metrics of this node",
        remedy=LOOK,
    )
    # Workers are set up after the controller, so missing ones are no fault yet.
    down = [target["scrapeUrl"] for target in targets if target["health"] == "down"]
    if down:
        more = ", ..." if len(down) > SHOWN_TARGETS else ""
        shown = ", ".join(down[:SHOWN_TARGETS]) + more
        log(f"  {len(down)} of {len(targets)} targets do not answer now: {shown}")


def _verify_sending(node: Node, url: str) -> None:
    """Warn unless the workspace accepts samples now; earlier refusals do not count."""
    before = _remote_write()

    def look() -> bool:
        now = _remote_write()
        # If nothing was ever refused and the last sent samples are new, there is no need to wait.
        is_up_to_date = now.refused_samples == 0 and time.time() - now.newest_sent < SECONDS_TO_SEND
        has_refused = now.refused_samples > before.refused_samples
        has_sent = now.sent_bytes > before.sent_bytes
        return is_up_to_date or has_refused or has_sent

    problem = ""
    try:
        node.host.wait_for(
            look, timeout_seconds=SECONDS_TO_SEND, what=f"{url} has taken no metrics"
        )
        # A refused batch counts as sent for a moment before it counts as failed.
        node.host.sleep(5)
        if _remote_write().refused_samples > before.refused_samples:
            problem = f"{url} refuses metrics"
    except SetupError as error:
        problem = error.problem
    if problem:
        node.warn(f"{problem}: {_last_complaint(node)}")


def _remote_write() -> RemoteWrite:
    answer = http_get(f"{URL}/metrics")

    def total(name: str) -> float:
        metric = f"prometheus_remote_storage_{name}"
        samples = re.findall(rf"^{metric}(?:\{{.*\}})? (\S+)$", answer, re.MULTILINE)
        return sum(float(value) for value in samples)

    return RemoteWrite(
        refused_samples=total("samples_failed_total"),
        sent_bytes=total("bytes_total"),
        newest_sent=total("queue_highest_sent_timestamp_seconds"),
    )


def _last_complaint(node: Node) -> str:
    """Return the last complaint about sending in Prometheus' log, with a remedy."""
    lines = node.host.try_run(
        "journalctl", "--unit", UNIT, "--lines", "200", "--no-pager", "--output", "cat"
    ).output.splitlines()
    complaints = [
        line for line in lines if "remote" in line and re.search(r"level=(?i:warn|error)", line)
    ]
    if not complaints:
        return f"its log has no message about that; {LOOK}"
    complaint = complaints[-1][-SHOWN_CHARACTERS:]
    for pattern, advice in ADVICE:
        if re.search(pattern, complaint):
            return f"{complaint}; {advice}"
    return f"{complaint}; {LOOK}"


def remove_metrics(node: Node) -> None:
    """Remove exporters and collector from nodes of a cluster whose metrics are switched off; programs stay.

    Raises:
        SetupError: if a service does not stop.
    """
    remove_units(node, ALL_UNITS)
