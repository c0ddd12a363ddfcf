"""No jobs for a worker that is not set up: drained while the steps run, and given back by the last one.

A drained node keeps the jobs it has, so that steps may also run inside one. Whether to give it back is told
by the reason that Slurm keeps with the state: whoever drained it for another one gives it back.
"""

from __future__ import annotations

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
"""slurmctld asks a node that is back within a minute; more where there are thousands."""


def hold(node: Node) -> None:
    """Drain this node, unless it is drained or down for another's reason.

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
        log(f"  {name} is {state.state} already, and left so: {state.reason}")
    elif state.reason != IN_PROGRESS or "DRAIN" not in state.flags:
        _drain(node, IN_PROGRESS)


def release(node: Node) -> None:
    """Give the node back, if it is held by these steps, and verify that it takes jobs.

    Raises:
        SetupError: if it does not.
    """
    name = node.facts.host_name
    state = show_node(node.host, name)
    if _is_anothers(state):
        node.warn(
            f"{name} stays {state.state}: {state.reason or 'no reason given'}; once that is over: sudo "
            f"scontrol update nodename={name} state=resume"
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
    """After a failure: say in the node's reason which step it was. Never raises."""
    if node.facts.role != "worker":
        return
    try:
        if not _is_anothers(show_node(node.host, node.facts.host_name)):
            _drain(node, f"{OURS}step {failed_step} failed; see {LOG}")
    except (SetupError, OSError) as error:
        log(f"WARNING: {node.facts.host_name} could not be drained, and may get jobs: {error}")


def _drain(node: Node, reason: str) -> None:
    node.host.run("scontrol", "update", f"nodename={node.facts.host_name}", "state=drain", f"reason={reason}")


def _is_anothers(state: SlurmNode) -> bool:
    """Whether the node is out of service for a reason that is not these steps'.

    Two of Slurm's own are no such reasons. Not responding is a new node whose slurmd starts just now, or the
    entry of the node that it replaces: Slurm would bring it back by itself, before it is set up. Too few
    devices are what a step checks; Slurm would leave the node drained when all of them are there.
    """
    if not state.flags & {"DRAIN", "DOWN", "FAIL"}:
        return False
    if "DRAIN" not in state.flags and not state.reason:
        return "FAIL" in state.flags
    return not state.reason.startswith((OURS, "Not responding")) and not FEWER_DEVICES.match(state.reason)


def _takes_jobs(node: Node) -> bool:
    state = show_node(node.host, node.facts.host_name)
    if state.unavailable:
        raise SetupError(f"Slurm has it {state.state}{': ' if state.reason else ''}{state.reason}", "")
    return True


def _warn_of_topology(node: Node) -> None:
    """A warning: the service maintains the topology, and may add a node after these steps."""
    partition = node.facts.hardware.partition
    problem = topology_problem(node.host, partition, node.facts.host_name) if partition else None
    if problem:
        node.warn(
            f"jobs on this node are rejected: {problem}; if the service does not add it within minutes, on "
            "the controller take TopologyPlugin out of slurm.conf and restart slurmctld"
        )
