"""Write Prometheus' lists of targets with their labels: the cluster's nodes, and training jobs.

Nodes come from the platform's list of instances, and from Slurm, which lists a worker as soon as it
registers. A node that is down stays listed, so that its outage is visible. A node that has left both lists
is removed.

A job with the comment ``prometheus`` is a target too, on its first node, at a port derived from its number.
The user decides whether the job has metrics, but Slurm determines the address. So no user can make the
collector query another host or port.
"""

import argparse
import json
import re
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from collectors.text_files import repeat, write

SECONDS_PER_COMMAND = 25
"""Time limit of one query. slurmctld's own clients wait 10 s for each message."""
NODE_PORT = 9100
"""Port of node_exporter."""
GPU_PORT = 9400
"""Port of dcgm-exporter."""
# The next three are equal to those of workloads/seqlm/training/tracking/metrics_port.py.
JOB_COMMENT = "prometheus"
"""Comment of a job that publishes metrics."""
FIRST_JOB_PORT = 10_000
NUM_JOB_PORTS = 10_000
UNREADABLE = (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError)
"""Exceptions for a missing or incomplete list, and for Slurm that does not answer."""
Nodes = dict[str, dict[str, str]]
"""Labels of each node, by its address."""


def platform_nodes(resource_config: Path, groups: dict[str, Any]) -> Nodes:
    """Return all instances of resource_config.json; raise one of UNREADABLE if that fails."""
    config = json.loads(resource_config.read_text())
    nodes: Nodes = {}
    for group in config["InstanceGroups"] or []:
        for instance in group.get("Instances") or []:
            address = instance.get("CustomerIpAddress")
            if address:
                nodes[address] = {
                    "instance": f"ip-{address.replace('.', '-')}",
                    "group": group["Name"],
                    "role": groups.get(group["Name"], {}).get("role", ""),
                    "instance_type": group.get("InstanceType") or "",
                    "instance_id": instance.get("InstanceId") or "",
                }
    return nodes


def slurm_nodes() -> Nodes:
    """Return the names of workers and login nodes, from slurmctld; raise one of UNREADABLE if that fails."""
    nodes: Nodes = {}
    for line in _query("scontrol", "--oneliner", "show", "nodes"):
        fields: dict[str, str] = dict(
            re.findall(r"(?:^| )(NodeName|NodeAddr|NodeHostName|State)=(\S+)", line)
        )
        state = fields.get("State", "")
        # Entries for nodes that do not exist yet.
        if "NodeName" not in fields or "FUTURE" in state or "POWERED_DOWN" in state:
            continue
        name = fields["NodeName"]
        address = _address(fields.get("NodeAddr", name))
        nodes[address] = {"instance": fields.get("NodeHostName", name)}
    return nodes


def job_targets(nodes: Nodes) -> list[dict[str, Any]]:
    """Return jobs that publish metrics, in the form of Prometheus' file_sd, with the labels of their nodes.

    Raises:
        OSError, subprocess.SubprocessError: if slurmctld does not answer.
    """
    addresses = {labels["instance"]: address for address, labels in nodes.items()}
    found: list[dict[str, Any]] = []
    for line in _query(
        "squeue", "--all", "--noheader", "--states=RUNNING", "--sort=i", "--format=%A|%B|%k"
    ):
        job_id, _, rest = line.partition("|")
        host, _, comment = rest.partition("|")
        address = addresses.get(host)
        if comment.strip() == JOB_COMMENT and job_id.isdecimal() and address:
            port = FIRST_JOB_PORT + int(job_id) % NUM_JOB_PORTS
            found += targets({address: nodes[address]}, port)
    return found


def _query(*command: str) -> list[str]:
    """Return the lines that a command of Slurm prints."""
    done = subprocess.run(
        command,
        check=True,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=SECONDS_PER_COMMAND,
    )
    return done.stdout.splitlines()


def _address(name: str) -> str:
    """Return the IPv4 address of a host name, or the name itself, which Prometheus may resolve later."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def discover(
    resource_config: Path, groups: dict[str, Any], former: dict[str, Nodes]
) -> Nodes | None:
    """Return all nodes that at least one list has, or None if neither list can be read.

    ``former`` keeps both lists from one call to the next, and replaces a list that cannot be read now. An
    incomplete file must not change the labels of all nodes.
    """
    platform = str(resource_config)
    sources: dict[str, Callable[[], Nodes]] = {
        platform: lambda: platform_nodes(resource_config, groups),
        "scontrol": slurm_nodes,
    }
    num_answers = 0
    for source, read in sources.items():
        try:
            former[source] = read()
            num_answers += 1
        except UNREADABLE as error:
            _report(source, error)
    if num_answers == 0:
        return None
    nodes = dict(former.get(platform, {}))
    for address, labels in former.get("scontrol", {}).items():
        # Slurm lists login nodes too. The role comes from the platform, and the name from Slurm.
        nodes[address] = {"role": "worker", **nodes.get(address, {}), **labels}
    return nodes


def _report(source: str, error: Exception) -> None:
    said = (getattr(error, "stderr", None) or "").strip()
    print(f"{source}: {type(error).__name__} {error} {said}".strip(), file=sys.stderr, flush=True)


def targets(nodes: Nodes, port: int) -> list[dict[str, Any]]:
    """Return the targets in the form of Prometheus' file_sd."""
    found: list[dict[str, Any]] = []
    for address, labels in sorted(nodes.items()):
        known_labels = {key: value for key, value in labels.items() if value}
        found.append({"targets": [f"{address}:{port}"], "labels": known_labels})
    return found


def has_gpus(labels: dict[str, str], groups: dict[str, Any]) -> bool:
    """Return whether the node has GPUs. A worker of an unknown group counts: its GPUs must not be missed."""
    group = groups.get(labels.get("group", ""))
    if group is None:
        return labels["role"] == "worker" and any(other["num_gpus"] for other in groups.values())
    return bool(group["role"] == "worker" and group["num_gpus"])


def write_targets(path: Path, found: list[dict[str, Any]]) -> None:
    """Replace a list only if it differs, because Prometheus reads it again when it changes."""
    text = json.dumps(found, indent=1) + "\n"
    if not path.is_file() or path.read_text() != text:
        write(path, text)


def run_once(
    config: dict[str, Any], output: Path, text_file: Path | None, former: dict[str, Nodes]
) -> bool:
    """Write the lists again, and return whether any source answered; if none did, keep the former lists."""
    groups = config["instance_groups"]
    nodes = discover(Path(config["resource_config"]), groups, former)
    if nodes is None:
        return False
    try:
        jobs = job_targets(nodes)
    except (OSError, subprocess.SubprocessError) as error:
        # The former list stays. Jobs that have ended meanwhile do not answer.
        _report("squeue", error)
    else:
        write_targets(output / "jobs.json", jobs)
    with_gpus = {address: labels for address, labels in nodes.items() if has_gpus(labels, groups)}
    write_targets(output / "nodes.json", targets(nodes, NODE_PORT))
    write_targets(output / "gpus.json", targets(with_gpus, GPU_PORT))
    if text_file:
        write(text_file, f"node_discovery_last_success_timestamp_seconds {round(time.time())}\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--config", type=Path, required=True, help="JSON with instance_groups and resource_config"
    )
    parser.add_argument("--text-file", type=Path, help="metric with the time of the last success")
    former: dict[str, Nodes] = {}

    def run(options: argparse.Namespace) -> bool:
        return run_once(
            json.loads(options.config.read_text()), options.output, options.text_file, former
        )

    return repeat(parser, run)


if __name__ == "__main__":
    sys.exit(main())
