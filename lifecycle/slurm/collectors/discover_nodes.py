"""Lists for Prometheus whom to ask for metrics, and with which labels: the cluster's nodes, and trainings.

Nodes are from the platform's list of instances, and from Slurm, which knows of a worker as soon as it
registers. A node that is down stays listed, so that its silence shows; one that has left both lists is gone.

A job that runs with the comment ``prometheus`` is asked too, on its first node, at a port that follows from
its number. So the user of a job says that there are metrics, but Slurm says where: nobody can have the
collector ask another host or port.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

SECONDS_PER_COMMAND = 25
NODE_PORT, GPU_PORT = 9100, 9400
JOB_COMMENT, FIRST_JOB_PORT, NUM_JOB_PORTS = "prometheus", 10_000, 10_000
"""As ``workloads/training/tracking/metrics_port.py`` has them."""
Nodes = dict[str, dict[str, str]]
"""Labels of each node, by its address."""


def platform_nodes(resource_config: Path, groups: dict[str, Any]) -> Nodes:
    """All instances, from resource_config.json.

    Raises:
        OSError, ValueError, KeyError, TypeError, AttributeError: if the file is not there, or half written.
    """
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
    """The names of workers and login nodes, from slurmctld.

    Raises:
        OSError, subprocess.SubprocessError: if it does not answer.
    """
    nodes: Nodes = {}
    for line in _ask("scontrol", "--oneliner", "show", "nodes"):
        fields: dict[str, str] = dict(
            re.findall(r"(?:^| )(NodeName|NodeAddr|NodeHostName|State)=(\S+)", line)
        )
        state = fields.get("State", "")
        # Places for nodes that have never been there.
        if "NodeName" not in fields or "FUTURE" in state or "POWERED_DOWN" in state:
            continue
        address = _address(fields.get("NodeAddr", fields["NodeName"]))
        nodes[address] = {"instance": fields.get("NodeHostName", fields["NodeName"])}
    return nodes


def job_targets(nodes: Nodes) -> list[dict[str, Any]]:
    """Jobs that publish metrics, as Prometheus' file_sd takes them, with the labels of the nodes they are on.

    Raises:
        OSError, subprocess.SubprocessError: if slurmctld does not answer.
    """
    addresses = {labels["instance"]: address for address, labels in nodes.items()}
    found: list[dict[str, Any]] = []
    for line in _ask("squeue", "--all", "--noheader", "--states=RUNNING", "--sort=i", "--format=%A|%B|%k"):
        job_id, _, rest = line.partition("|")
        host, _, comment = rest.partition("|")
        address = addresses.get(host)
        if comment.strip() == JOB_COMMENT and job_id.isdecimal() and address:
            port = FIRST_JOB_PORT + int(job_id) % NUM_JOB_PORTS
            found += targets({address: nodes[address]}, port)
    return found


def _ask(*command: str) -> list[str]:
    """Lines of what Slurm answers."""
    return subprocess.run(
        command, check=True, capture_output=True, text=True, errors="replace", timeout=SECONDS_PER_COMMAND
    ).stdout.splitlines()


def _address(name: str) -> str:
    """The IPv4 address of a host name, or the name itself: Prometheus may know better later."""
    try:
        return socket.gethostbyname(name)
    except OSError:
        return name


def discover(resource_config: Path, groups: dict[str, Any], former: dict[str, Nodes]) -> Nodes | None:
    """All nodes that at least one list has; None if neither can be read, which means nothing about nodes.

    ``former`` keeps both lists from one call to the next. It stands in for one that cannot be read now: a
    file that is half written must not change the labels of all nodes.
    """
    failures = 0
    try:
        former["platform"] = platform_nodes(resource_config, groups)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        print(f"{resource_config}: {type(error).__name__} {error}", file=sys.stderr, flush=True)
        failures += 1
    try:
        former["slurm"] = slurm_nodes()
    except (OSError, subprocess.SubprocessError) as error:
        _complain("scontrol", error)
        failures += 1
    nodes = dict(former.get("platform", {}))
    for address, labels in former.get("slurm", {}).items():
        # A login node is one of Slurm's too; what the platform calls it holds. Its name is Slurm's.
        nodes[address] = {"role": "worker", **nodes.get(address, {}), **labels}
    return None if failures == 2 else nodes


def _complain(program: str, error: Exception) -> None:
    said = (getattr(error, "stderr", None) or "").strip()
    print(f"{program}: {error} {said}".strip(), file=sys.stderr, flush=True)


def targets(nodes: Nodes, port: int) -> list[dict[str, Any]]:
    """As Prometheus' file_sd takes them."""
    return [
        {"targets": [f"{address}:{port}"], "labels": {key: value for key, value in labels.items() if value}}
        for address, labels in sorted(nodes.items())
    ]


def has_gpus(labels: dict[str, str], groups: dict[str, Any]) -> bool:
    """A worker of an unknown group is asked too: better a target that is down than GPUs unwatched."""
    group = groups.get(labels.get("group", ""))
    if group is None:
        return labels["role"] == "worker" and any(other["num_gpus"] for other in groups.values())
    return bool(group["role"] == "worker" and group["num_gpus"])


def write(path: Path, text: str) -> None:
    """Replace the file at once, and only if it would be another: Prometheus reads it when it changes."""
    if path.is_file() and path.read_text() == text:
        return
    partial = path.with_name(f".{path.name}.partial")
    partial.write_text(text)
    partial.chmod(0o644)
    os.replace(partial, path)


def run_once(config: dict[str, Any], output: Path, text_file: Path | None, former: dict[str, Nodes]) -> bool:
    """Write the lists anew; without an answer from anybody the former ones stay. Whether there was one."""
    groups = config["instance_groups"]
    nodes = discover(Path(config["resource_config"]), groups, former)
    if nodes is None:
        return False
    try:
        jobs = job_targets(nodes)
    except (OSError, subprocess.SubprocessError) as error:
        # The list before stands: a job that has ended meanwhile does not answer.
        _complain("squeue", error)
    else:
        write(output / "jobs.json", json.dumps(jobs, indent=1) + "\n")
    with_gpus = {address: labels for address, labels in nodes.items() if has_gpus(labels, groups)}
    for name, found, port in (("nodes", nodes, NODE_PORT), ("gpus", with_gpus, GPU_PORT)):
        write(output / f"{name}.json", json.dumps(targets(found, port), indent=1) + "\n")
    if text_file:
        write(text_file, f"node_discovery_last_success_timestamp_seconds {round(time.time())}\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON: instance_groups, resource_config")
    parser.add_argument(
        "--output", type=Path, required=True, help="folder of nodes.json, gpus.json, jobs.json"
    )
    parser.add_argument("--text-file", type=Path, help="for node_exporter: when it last went well")
    parser.add_argument("--every-seconds", type=float, help="go on until stopped; once without it")
    arguments = parser.parse_args()
    config = json.loads(arguments.config.read_text())
    former: dict[str, Nodes] = {}
    while True:
        went_well = run_once(config, arguments.output, arguments.text_file, former)
        if arguments.every_seconds is None:
            return 0 if went_well else 1
        time.sleep(arguments.every_seconds)


if __name__ == "__main__":
    sys.exit(main())
