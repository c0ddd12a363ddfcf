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
import re
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from collectors.text_files import repeat, write

SECONDS_PER_COMMAND = 25
NODE_PORT, GPU_PORT = 9100, 9400
JOB_COMMENT, FIRST_JOB_PORT, NUM_JOB_PORTS = "prometheus", 10_000, 10_000
"""As ``workloads/training/tracking/metrics_port.py`` has them."""
UNREADABLE = (OSError, subprocess.SubprocessError, ValueError, KeyError, TypeError, AttributeError)
"""What a list that is not there or half written, and Slurm that does not answer, raise."""
Nodes = dict[str, dict[str, str]]
"""Labels of each node, by its address."""


def platform_nodes(resource_config: Path, groups: dict[str, Any]) -> Nodes:
    """All instances, from resource_config.json; raises one of UNREADABLE."""
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
    """The names of workers and login nodes, from slurmctld; raises one of UNREADABLE."""
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
    answers = 0
    for source, read in (
        (str(resource_config), lambda: platform_nodes(resource_config, groups)),
        ("scontrol", slurm_nodes),
    ):
        try:
            former[source] = read()
            answers += 1
        except UNREADABLE as error:
            _complain(source, error)
    nodes = dict(former.get(str(resource_config), {}))
    for address, labels in former.get("scontrol", {}).items():
        # A login node is one of Slurm's too; what the platform calls it holds. Its name is Slurm's.
        nodes[address] = {"role": "worker", **nodes.get(address, {}), **labels}
    return nodes if answers else None


def _complain(source: str, error: Exception) -> None:
    said = (getattr(error, "stderr", None) or "").strip()
    print(f"{source}: {type(error).__name__} {error} {said}".strip(), file=sys.stderr, flush=True)


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


def write_targets(path: Path, found: list[dict[str, Any]]) -> None:
    """Replace a list only if it would be another: Prometheus reads it when it changes."""
    text = json.dumps(found, indent=1) + "\n"
    if not path.is_file() or path.read_text() != text:
        write(path, text)


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
        write_targets(output / "jobs.json", jobs)
    with_gpus = {address: labels for address, labels in nodes.items() if has_gpus(labels, groups)}
    for name, found, port in (("nodes", nodes, NODE_PORT), ("gpus", with_gpus, GPU_PORT)):
        write_targets(output / f"{name}.json", targets(found, port))
    if text_file:
        write(text_file, f"node_discovery_last_success_timestamp_seconds {round(time.time())}\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="JSON: instance_groups, resource_config")
    parser.add_argument("--text-file", type=Path, help="for node_exporter: when it last went well")
    former: dict[str, Nodes] = {}

    def run(options: argparse.Namespace) -> bool:
        return run_once(json.loads(options.config.read_text()), options.output, options.text_file, former)

    return repeat(parser, run)


if __name__ == "__main__":
    sys.exit(main())
