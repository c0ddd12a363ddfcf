"""Send Slurm's logs, memory and disk metrics to CloudWatch, with the agent of HyperPod's image.

The agent also ships HyperPod's own logs, so this step adds to its configuration and never replaces it. The
addition is removed if the agent does not run with it, or if the switch is off. No job needs these logs, so
failures are warnings.
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration

AGENT = "/opt/aws/amazon-cloudwatch-agent"
CONTROL = f"{AGENT}/bin/amazon-cloudwatch-agent-ctl"
CONFIG = "/etc/node-setup/cloudwatch-agent.json"
APPLIED = f"{AGENT}/etc/amazon-cloudwatch-agent.d/file_{Path(CONFIG).name}"
"""The agent's copy of the appended file (its documentation: multiple configuration files)."""
NAMESPACE = "/aws/sagemaker/Clusters"
"""Namespace that the nodes' roles may write to."""
SECONDS_BETWEEN_METRICS = 60
SECONDS_TO_RUN = 90
DISKS = ("/", "/opt/sagemaker", "/opt/dlami/nvme")
SLURM_LOGS = {
    "controller": ("SlurmctldLogFile", "slurmctld"),
    "worker": ("SlurmdLogFile", "slurmd"),
}
"""Setting with the path of Slurm's log, and the daemon's name, by role."""


class Log(NamedTuple):
    """Log file that the agent ships."""

    path: str
    name: str
    """Name in CloudWatch."""


def apply(node: Node) -> None:
    """Add this node's logs and metrics to what the agent ships, or remove them."""
    wanted = node.settings.cloudwatch_agent
    has_agent = node.host.path(CONTROL).exists()
    if not wanted and has_agent and node.host.path(CONFIG).exists():
        _take_back(node)
        node.changed("CloudWatch agent: its own configuration alone")
    elif wanted and not has_agent:
        node.warn(
            f"only HyperPod's own logs go to CloudWatch: this image has no agent ({CONTROL}); use "
            "one of HyperPod's images, or set node_setup.cloudwatch_agent: false in the cluster file"
        )
    elif wanted:
        _append(node)


def _append(node: Node) -> None:
    changed = node.install(CONFIG, json.dumps(_configuration(node), indent=2) + "\n")
    applied = node.host.path(APPLIED)
    if not changed and applied.exists() and _status(node) == "running":
        return
    added = _control(node, "append-config")
    if added is None:
        try:
            node.host.wait_for(
                lambda: _is_running(node),
                timeout_seconds=SECONDS_TO_RUN,
                what="it does not run",
                remedy="see its log",
            )
        except SetupError as error:
            added = error.problem
    if added is not None:
        _take_back(node)
        node.warn(
            f"the CloudWatch agent does not run with {CONFIG}, which was removed: {added}; see "
            f"{AGENT}/logs/amazon-cloudwatch-agent.log, and `{CONTROL} -a status`"
        )
        return
    node.changed("CloudWatch agent configured")


def _configuration(node: Node) -> dict[str, Any]:
    """Return the addition, without logs that other parts of the agent's configuration have."""
    others = _other_configurations(node)
    shipped: set[str] = set()
    for other in others:
        files = other.get("logs", {}).get("logs_collected", {}).get("files", {})
        shipped.update(entry.get("file_path") for entry in files.get("collect_list", []))
    group = f"{NAMESPACE}/{node.settings.cluster_name}/nodes"
    stream = f"{node.facts.group}/{node.facts.host_name}"
    added = [
        {
            "file_path": log.path,
            "log_group_name": group,
            "log_stream_name": f"{stream}/{log.name}",
            "timezone": "UTC",
        }
        for log in _logs(node)
        if log.path not in shipped
    ]
    config: dict[str, Any] = {"logs": {"logs_collected": {"files": {"collect_list": added}}}}
    namespaces = {
        other["metrics"].get("namespace", "CWAgent") for other in others if "metrics" in other
    }
    if namespaces <= {NAMESPACE}:
        config["metrics"] = _metrics(node)
    else:
        # The agent has one namespace for all its files, and does not start with two.
        node.warn(
            f"no metrics of memory and disks in CloudWatch: the agent writes to namespace "
            f"{', '.join(namespaces)} already, and this node's role may write to {NAMESPACE} alone"
        )
    return config


def _metrics(node: Node) -> dict[str, Any]:
    dimensions = {"ClusterName": node.settings.cluster_name, "InstanceGroup": node.facts.group}
    common = {
        "metrics_collection_interval": SECONDS_BETWEEN_METRICS,
        "append_dimensions": dimensions,
    }
    return {
        "namespace": NAMESPACE,
        "metrics_collected": {
            "mem": {"measurement": ["mem_used_percent"], **common},
            "disk": {
                "measurement": ["used_percent", "inodes_free"],
                "resources": [path for path in DISKS if node.host.path(path).exists()],
                "drop_device": True,
                **common,
            },
        },
    }


def _logs(node: Node) -> list[Log]:
    logs = [
        Log("/var/log/syslog", "syslog"),
        Log("/var/log/provision/provisioning.log", "provisioning"),
    ]
    if node.facts.role in SLURM_LOGS:
        key, name = SLURM_LOGS[node.facts.role]
        try:
            path = configuration(node.host).get(key) or ""
        except SetupError:
            path = ""
        path = path or f"/var/log/slurm/{name}.log"
        # Slurm replaces %n and %h by the node's name and host name (slurm.conf, SlurmdLogFile).
        path = path.replace("%n", node.facts.host_name).replace("%h", node.facts.host_name)
        logs.append(Log(path, name))
    return logs


def _other_configurations(node: Node) -> list[dict[str, Any]]:
    """Return the agent's other configurations; files that are not JSON are skipped."""
    folder = node.host.path(f"{AGENT}/etc")
    files = [
        folder / "amazon-cloudwatch-agent.json",
        *sorted((folder / "amazon-cloudwatch-agent.d").glob("*")),
    ]
    configs = []
    for file in files:
        if file == node.host.path(APPLIED) or not file.is_file():
            continue
        try:
            config = json.loads(file.read_text())
        except (OSError, ValueError):
            continue
        if isinstance(config, dict):
            configs.append(config)
    return configs


def _control(node: Node, action: str) -> str | None:
    """Change the agent's configuration and restart it; return its complaint, or None."""
    done = node.host.try_run(
        node.host.path(CONTROL),
        "-a",
        action,
        "-m",
        "auto",
        "-s",
        "-c",
        f"file:{node.host.path(CONFIG)}",
        timeout_seconds=180,
    )
    if done.status == 0:
        return None
    return done.said or f"it ended with {done.status}"


def _status(node: Node) -> str:
    done = node.host.try_run(node.host.path(CONTROL), "-a", "status", timeout_seconds=60)
    try:
        return str(json.loads(done.output)["status"])
    except (ValueError, KeyError, TypeError):
        return f"unknown: {done.said}"


def _is_running(node: Node) -> bool:
    status = _status(node)
    if status != "running":
        raise SetupError(f"its status is {status}", "")
    return True


def _take_back(node: Node) -> None:
    complaint = _control(node, "remove-config")
    # The next run must not treat it as applied.
    node.host.path(CONFIG).unlink(missing_ok=True)
    if complaint is not None:
        node.warn(f"the CloudWatch agent may be down, and HyperPod's own logs with it: {complaint}")
