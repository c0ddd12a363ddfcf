"""Replace, reboot, check or move nodes: ``python -m tools.nodes.actions replace|reboot|health-check|move``.

Each action takes its nodes out of use first: no new job starts there. It waits for running jobs, sends the
request, and reports the service's answer for each node. The exit status is 0 if the service accepted all
nodes, and 1 if it did not, or if jobs still run.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, get_args

import boto3

from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster
from config.facts.instance_catalogue import instance_type
from config.reading.loader import load_cluster
from config.slurm_cluster import SlurmCluster
from tools.aws_session import aws_client, open_session
from tools.command_line import add_yes_option, cluster_parser, confirm, minutes, run_command
from tools.json_output import add_json_option, publish
from tools.kubernetes.kubectl import add_kubeconfig_option, open_kubectl
from tools.nodes import node_requests
from tools.nodes.cluster_nodes import (
    ClusterNodes,
    Node,
    choose_node,
    nodes_meant,
    read_cluster_nodes,
)
from tools.nodes.drain import JobPlacement, KubernetesPlacement, SlurmPlacement
from tools.nodes.head_node import HeadNode
from tools.nodes.node_requests import Result
from tools.nodes.node_session import check_programs, start_session

DEFAULT_WAIT_MINUTES = 10.0
SECONDS_BETWEEN_LOOKS = 30
NODES_LEFT = 1
"""Exit status if the service refused a node, or jobs still run."""
DEFAULT_CHECKS = ("InstanceStress", "InstanceConnectivity")
CANNOT_MOVE_ON_SLURM = (
    "the service moves nodes between groups of EKS clusters only. On Slurm, raise num_instances of the other "
    "group, run make deploy, and then lower it for this one. Groups that name the same training plan share "
    "its capacity"
)


@dataclass(frozen=True)
class Action:
    """Request about nodes, and what users must know before they confirm it."""

    effect: str
    """Effect on the nodes."""
    max_nodes: int
    """Most nodes of a request."""
    comes_back: bool
    """Whether the same instance continues, and stays out of use until ``--resume``."""


ACTIONS = {
    "replace": Action(
        "The service ends the instance and starts a new one. Both volumes are lost, the new node has another "
        "host name, and its setup takes 20 to 30 minutes.",
        max_nodes=25,
        comes_back=False,
    ),
    "reboot": Action(
        "The service restarts the operating system. The volumes stay, and node setup does not run again.",
        max_nodes=25,
        comes_back=True,
    ),
    "health-check": Action(
        "The service tests the hardware for up to two hours. It reboots or replaces a node that fails.",
        max_nodes=500,
        comes_back=True,
    ),
    "move": Action(
        "The service moves the instance to the other group. It keeps its id, addresses and capacity. Both "
        "volumes are lost, and the setup of the other group runs.",
        max_nodes=50,
        comes_back=True,
    ),
}


def main() -> int:
    options = _options()
    cluster = load_cluster(options.cluster)
    if options.action == "move" and isinstance(cluster, SlurmCluster):
        raise ValueError(f"{cluster.name} runs Slurm: {CANNOT_MOVE_ON_SLURM}")
    if not options.resume and (options.action == "move") != bool(options.to):
        raise ValueError(
            f"TO: got '{options.to or ''}'; make move needs a group, and only make move; "
            + (f"omit TO for make {options.action}" if options.to else "add TO=<group>")
        )
    session = open_session(region=cluster.region, profile=options.profile)
    sagemaker = aws_client(session, "sagemaker")
    found = read_cluster_nodes(sagemaker, cluster.name)
    nodes = _chosen(found, options.nodes, ACTIONS[options.action].max_nodes)
    workers = _workers(cluster, nodes)
    _refuse_unsuitable(cluster, nodes, options.action)
    with open_placement(cluster, found, workers, options) as placement:
        if options.resume:
            if not workers:
                raise ValueError(f"--resume: no jobs run on {_names(nodes)}; omit it")
            placement.resume(workers)
            publish(resumed=[node.name for node in workers])
            print(f"{_names(workers)}: take jobs again")
            return 0
        return _act(_Request(cluster, session, found, nodes, workers), placement, options)


def _options() -> argparse.Namespace:
    parser = cluster_parser("Replace, reboot, check or move nodes.")
    parser.add_argument("action", choices=ACTIONS)
    parser.add_argument(
        "nodes",
        nargs="*",
        metavar="node",
        help="<group>-<n>, a host name of Slurm, an instance id or a node's name in Kubernetes",
    )
    parser.add_argument(
        "--to", metavar="GROUP", help="group to move to, as <group> or <cluster>/<group>"
    )
    parser.add_argument(
        "--checks",
        nargs="+",
        choices=get_args(node_requests.Check),
        default=list(DEFAULT_CHECKS),
        help="deep health checks to run (default: InstanceStress InstanceConnectivity)",
    )
    parser.add_argument(
        "--wait-minutes",
        type=minutes,
        default=DEFAULT_WAIT_MINUTES,
        metavar="N",
        help="longest time in minutes to wait for the end of running jobs (%(default)g)",
    )
    parser.add_argument(
        "--resume", action="store_true", help="let the nodes take jobs again, and do nothing else"
    )
    add_request_options(parser, now="end running jobs instead of waiting for them")
    add_json_option(parser)
    return parser.parse_args()


def add_request_options(parser: argparse.ArgumentParser, *, now: str) -> None:
    """Add the options that commands share if they interrupt jobs on nodes.

    Args:
        parser: parser of the command.
        now: help of ``--now``.
    """
    parser.add_argument("--now", action="store_true", help=now)
    add_yes_option(parser)
    add_kubeconfig_option(parser)


@dataclass(frozen=True)
class _Request:
    """Nodes to act on."""

    cluster: AnyCluster
    session: boto3.Session
    found: ClusterNodes
    nodes: list[Node]
    workers: list[Node]
    """Nodes on which jobs run, which are taken out of use."""


def _chosen(found: ClusterNodes, wanted: Sequence[str], most: int) -> list[Node]:
    """Return the nodes with these names.

    Raises:
        ValueError: if none is named, too many are, or a name means no node or several.
    """
    if not wanted:
        raise ValueError(
            "NODE: name the node, as NODE=<group>-<n>; make connect ARGS=--list lists them"
        )
    chosen: dict[str, Node] = {}
    for name in wanted:
        nodes = nodes_meant(found, name)
        if len(nodes) > 1:
            raise ValueError(
                f"NODE: {name} has {len(nodes)} nodes; name each: {' '.join(n.name for n in nodes)}"
            )
        node = nodes[0] if nodes else choose_node(found, name)
        chosen[node.instance_id] = node
    if len(chosen) > most:
        raise ValueError(f"NODE: got {len(chosen)} nodes; the service takes at most {most} at once")
    return list(chosen.values())


def _workers(cluster: AnyCluster, nodes: Sequence[Node]) -> list[Node]:
    """Return the nodes on which jobs run; a node of a group that the file lacks counts as one."""
    without_jobs = {group.name for group in cluster.instance_groups if not group.runs_jobs}
    return [node for node in nodes if node.group not in without_jobs]


def _refuse_unsuitable(cluster: AnyCluster, nodes: Sequence[Node], action: str) -> None:
    controllers = {
        group.name
        for group in cluster.instance_groups
        if getattr(group, "role", None) == "controller"
    }
    for node in nodes:
        if action == "replace" and node.group in controllers:
            raise ValueError(
                f"{node.name} is the controller, which the service does not replace: the queue of jobs is on "
                "its disk. docs/runbook.md has what to do"
            )
        if action == "health-check" and not instance_type(node.instance_type).accelerator:
            raise ValueError(
                f"{node.name} is {node.instance_type}, without accelerators; deep health checks need them"
            )


@contextmanager
def open_placement(
    cluster: AnyCluster,
    found: ClusterNodes,
    workers: Sequence[Node],
    options: argparse.Namespace,
) -> Iterator[JobPlacement]:
    """Give access to the scheduler; a request about no worker needs no session with Slurm's head node."""
    if isinstance(cluster, EksCluster):
        with open_kubectl(
            cluster, "default", profile=options.profile, kubeconfig=options.kubeconfig
        ) as kubectl:
            yield KubernetesPlacement(kubectl)
        return
    if options.kubeconfig:
        raise ValueError("--kubeconfig: a Slurm cluster has no Kubernetes; omit it")
    if workers:
        check_programs()
    head = choose_node(found)
    start = start_session(found, head, region=cluster.region, profile=options.profile)
    yield SlurmPlacement(HeadNode(head.name, tuple(start)))


def _act(request: _Request, placement: JobPlacement, options: argparse.Namespace) -> int:
    """Confirm, take the nodes out of use, wait for jobs, send the request and return the exit status."""
    sagemaker = aws_client(request.session, "sagemaker")
    destination = None
    if options.to:
        destination = node_requests.find_destination(
            sagemaker, request.found, request.nodes, options.to
        )
    jobs = placement.jobs(request.workers) if request.workers else []
    publish(jobs=jobs)
    print(_explanation(request, jobs, options))
    confirm(options.action, options.yes)
    drained = placement.drain(request.workers, f"make {options.action}") if request.workers else []
    if request.workers and not options.now:
        try:
            jobs = _jobs_after_wait(placement, request.workers, options.wait_minutes)
        except KeyboardInterrupt:
            print(f"\n{_still_drained(request.workers)}", file=sys.stderr)
            raise
        publish(jobs=jobs)
        if jobs:
            print(f"NOT DONE: jobs still run. {_still_drained(request.workers)}", file=sys.stderr)
            return NODES_LEFT
    results: list[Result] = []
    try:
        results = _send(sagemaker, request, options, destination)
    finally:
        # Also if the service refuses the whole request.
        accepted = {result.node.instance_id for result in results if not result.failure}
        left = [node for node in drained if node.instance_id not in accepted]
        if left:
            placement.resume(left)
    return _report(results, request, options, destination)


def _still_drained(nodes: Sequence[Node]) -> str:
    return (
        f"{_names(nodes)}: take no new jobs. Repeat the command later, end running jobs with --now, or undo "
        "with --resume"
    )


def _explanation(request: _Request, jobs: Sequence[str], options: argparse.Namespace) -> str:
    action = ACTIONS[options.action]
    lines = [f"{options.action}: {_names(request.nodes)} of {request.cluster.name}", action.effect]
    if request.workers:
        wait = (
            "It does not wait for running jobs (--now)."
            if options.now
            else f"The command waits up to {options.wait_minutes:g} minutes for running jobs."
        )
        lines.append(f"First, no new jobs start there. {wait}")
    else:
        lines.append("No jobs run there. If it is the controller, no job starts until it is back.")
    if jobs:
        what = (
            "Their operator starts pods elsewhere, and training resumes from its last checkpoint."
            if isinstance(request.cluster, EksCluster)
            else "Slurm requeues jobs unless they forbid it, and training resumes from its last checkpoint."
        )
        lines += [f"The request interrupts jobs that still run there. {what} Running now:"]
        lines += [f"  {job}" for job in jobs]
    elif request.workers:
        lines.append("No jobs run there now.")
    return "\n".join(lines)


def _jobs_after_wait(
    placement: JobPlacement, nodes: Sequence[Node], wait_minutes: float
) -> list[str]:
    """Return the jobs that run after the wait, which ends when no job runs."""
    deadline = time.monotonic() + wait_minutes * 60
    while (jobs := placement.jobs(nodes)) and time.monotonic() < deadline:
        print(f"waiting for {len(jobs)} jobs or pods", flush=True)
        time.sleep(SECONDS_BETWEEN_LOOKS)
    return jobs


def _send(
    sagemaker: Any,
    request: _Request,
    options: argparse.Namespace,
    destination: node_requests.Destination | None,
) -> list[Result]:
    match options.action:
        case "replace" | "reboot":
            return node_requests.send_batch(sagemaker, request.found, options.action, request.nodes)
        case "health-check":
            return node_requests.start_health_check(
                sagemaker, request.found, request.nodes, options.checks
            )
    assert destination is not None
    return node_requests.move_nodes(sagemaker, request.found, request.nodes, destination)


def _report(
    results: Sequence[Result],
    request: _Request,
    options: argparse.Namespace,
    destination: node_requests.Destination | None,
) -> int:
    """Print the answer for each node and what users do next, and return the exit status."""
    publish(
        nodes=[
            {
                "name": result.node.name,
                "instance_id": result.node.instance_id,
                "failure": result.failure or None,
            }
            for result in results
        ]
    )
    accepted = [result.node for result in results if not result.failure]
    failed = [result for result in results if result.failure]
    for node in accepted:
        print(f"{node.name} ({node.instance_id}): {options.action} has begun")
    for result in failed:
        print(
            f"NOT DONE: {result.node.name} ({result.node.instance_id}): {result.failure}",
            file=sys.stderr,
        )
    if accepted:
        print("Progress: make status, and make connect ARGS=--list")
    if accepted and destination is not None:
        print(
            f"The cluster file still has the old numbers. Before the next deployment, lower num_instances of "
            f"{accepted[0].group} by {len(accepted)}, and raise it for {destination.group} of "
            f"{destination.cluster_name} by {len(accepted)}"
        )
    drained = [node for node in accepted if node in request.workers]
    leaves = destination is not None and destination.cluster_name != request.cluster.name
    if drained and ACTIONS[options.action].comes_back and not leaves:
        # A moved node has another number, and each node keeps its id.
        ids = " ".join(node.instance_id for node in drained)
        print(
            f'When they are Running again: make {options.action} NODE="{ids}" ARGS=--resume, so that they '
            "take jobs"
        )
    return NODES_LEFT if failed else 0


def _names(nodes: Sequence[Node]) -> str:
    return ", ".join(f"{node.name} ({node.host_name or node.instance_id})" for node in nodes)


if __name__ == "__main__":
    run_command(main)
