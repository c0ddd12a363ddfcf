"""Keep jobs off a worker until it is set up: the first step drains it, and the last one resumes it.

A drained node keeps its running jobs, so the steps may also run inside a job. Slurm stores a reason with the
state. The last step resumes the node only if the reason is this setup's.
"""

import re

from node_setup.failure import SetupError
from node_setup.node import Node, log
from node_setup.slurm import SlurmNode, show_node, topology_problem, wait_for_controller

OURS = "node-setup: "
IN_PROGRESS = f"{OURS}in progress"
FEWER_DEVICES = re.compile(r"gres/\S+ count reported lower than configured")
LOG = "/var/log/provision/provisioning.log"
SECONDS_TO_BE_KNOWN = 600
SECONDS_TO_TAKE_JOBS = 300
"""Time limit. slurmctld contacts a resumed node within a minute, and later in clusters of thousands."""


def hold(node: Node) -> None:
    """Drain this node, unless it is drained or down for another reason.

    Raises:
        SetupError: if slurmctld does not answer, or does not know this node.
    """
    wait_for_controller(node.host)
    name = node.facts.host_name
    state = node.host.wait_for(
        lambda: show_node(node.host, name),
        timeout_seconds=SECONDS_TO_BE_KNOWN,
        what=f"Slurm's controller does not know {name}",
    )
    if _is_anothers(state):
        log(f"  {name} is already {state.state}, which stays: {state.reason}")
    elif state.reason != IN_PROGRESS or "DRAIN" not in state.flags:
        _drain(node, IN_PROGRESS)


def release(node: Node) -> None:
    """Resume the node if these steps hold it, and verify that it accepts jobs.

    Raises:
        SetupError: if it does not.
    """
    name = node.facts.host_name
    state = show_node(node.host, name)
    if _is_anothers(state):
        node.warn(
            f"{name} stays {state.state}: {state.reason or 'no reason given'}; when the reason no longer "
            f"applies: sudo scontrol update nodename={name} state=resume"
        )
        return
    if state.flags & {"DRAIN", "DOWN"}:
        node.host.run("scontrol", "update", f"nodename={name}", "state=resume")
    node.host.wait_for(
        lambda: _takes_jobs(node),
        timeout_seconds=SECONDS_TO_TAKE_JOBS,
        what=f"{name} takes no jobs",
        remedy=f"see `scontrol show node {name}` and, on the node, `systemctl status slurmd`",
    )
    _warn_of_topology(node)


def keep_held(node: Node, *, failed_step: str) -> None:
    """Record the failed step in the node's reason; never raises."""
    if node.facts.role != "worker":
        return
    try:
        if not _is_anothers(show_node(node.host, node.facts.host_name)):
            _drain(node, f"{OURS}step {failed_step} failed; see {LOG}")
    except (SetupError, OSError) as error:
        log(f"WARNING: {node.facts.host_name} could not be drained, and may get jobs: {error}")


def _drain(node: Node, reason: str) -> None:
    node.host.run(
        "scontrol", "update", f"nodename={node.facts.host_name}", "state=drain", f"reason={reason}"
    )


def _is_anothers(state: SlurmNode) -> bool:
    """Return whether the node is out of service for another reason than these steps.

    Two of Slurm's own reasons do not count. "Not responding" means a new node whose slurmd is starting, or
    the entry of the replaced node. Slurm would resume it before it is set up. Too few devices are checked by
    a step, and Slurm would leave the node drained when all of them exist.
    """
    if not state.flags & {"DRAIN", "DOWN", "FAIL"}:
        return False
    if "DRAIN" not in state.flags and not state.reason:
        return "FAIL" in state.flags
    is_ours = state.reason.startswith(OURS)
    is_slurms = state.reason.startswith("Not responding") or FEWER_DEVICES.match(state.reason)
    return not is_ours and not is_slurms


def _takes_jobs(node: Node) -> bool:
    state = show_node(node.host, node.facts.host_name)
    if state.unavailable:
        because = f": {state.reason}" if state.reason else ""
        raise SetupError(f"its state in Slurm is {state.state}{because}", "")
    return True


def _warn_of_topology(node: Node) -> None:
    """Warn only, because the service maintains the topology and may add a node after these steps."""
    partition = node.facts.hardware.partition
    problem = topology_problem(node.host, partition, node.facts.host_name) if partition else None
    if problem:
        node.warn(
            f"jobs on this node are rejected: {problem}; if the service does not add it within minutes, on "
            "the controller take TopologyPlugin out of slurm.conf and restart slurmctld"
        )
