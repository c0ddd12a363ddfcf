"""Which workers a job of ours can reach, and those that an earlier run has left drained.

These are reached through a reservation that keeps users away.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from node_setup.host import Host
from node_setup.slurm import SlurmNode, show_node
from node_setup.steps.hold import OURS
from workers.worker_run import MINUTES_FOR_SCRIPT, Outcome

ABSENT = {"DOWN", "ERROR", "FAIL", "FUTURE", "INVALID_REG"}
"""Not NOT_RESPONDING: Slurm 22.05 says it of a node that was given back, for seconds; later it is DOWN."""
UP_LATER = {
    *("POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"),
    *("REBOOT_ISSUED", "REBOOT_REQUESTED"),
}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}


def is_held_by_us(node: SlurmNode) -> bool:
    return "DRAIN" in node.flags and node.reason.startswith(OURS)


def is_busy(node: SlurmNode) -> bool:
    return bool(node.flags & BUSY)


def why_unreachable(node: SlurmNode) -> str | None:
    """Why no job of ours can start on it, and what to do; None if one can, at least after others."""
    because = f" ({node.reason})" if node.reason else ""
    if node.flags & ABSENT:
        return (
            f"it is {node.state}{because}; a node that is replaced gets the new scripts by itself; for one "
            "that comes back repeat this command"
        )
    if node.flags & UP_LATER:
        return f"it is {node.state}; repeat this command when it is up"
    if "DRAIN" in node.flags and not is_held_by_us(node):
        return (
            f"somebody else has drained it{because}; give it back "
            f"(`sudo scontrol update NodeName={node.name} State=RESUME`), and repeat this command"
        )
    if not node.partitions:
        return "it is in no partition, so that no job can run on it; add its group to one"
    return None


@contextmanager
def reserved(host: Host, nodes: Sequence[SlurmNode], *, wait_seconds: float) -> Iterator[str | None]:
    """Reserve nodes for root, and give the reservation's name; None, and nothing done, for no nodes.

    It ends by itself if nobody removes it. Jobs that run on the nodes go on.

    Raises:
        SetupError: if Slurm refuses.
    """
    if not nodes:
        yield None
        return
    name = f"node-setup-{os.getpid()}"
    minutes = MINUTES_FOR_SCRIPT + int(wait_seconds // 60) + 5
    host.run(
        *("scontrol", "create", "reservation", f"ReservationName={name}", "Users=root", "StartTime=now"),
        *(f"Duration={minutes}", "Flags=MAINT,IGNORE_JOBS,OVERLAP"),
        f"Nodes={','.join(node.name for node in nodes)}",
        remedy="`scontrol show reservation` lists those there are; root may make one on the controller",
    )
    try:
        yield name
    finally:
        host.run(
            *("scontrol", "delete", f"ReservationName={name}"),
            remedy=f"it ends by itself after {minutes} minutes",
        )


def run_held(host: Host, node: SlurmNode, run: Callable[[], Outcome]) -> Outcome:
    """Take the drain away, so that our job can start; nobody else's can, by the reservation.

    The scripts drain the node themselves, and give it back when they have succeeded. A node on which they
    have not begun, or not got that far, is drained again for its old reason.

    Raises:
        SetupError: if Slurm refuses.
    """
    host.run("scontrol", "update", f"NodeName={node.name}", "State=UNDRAIN")
    done = False
    try:
        outcome = run()
        done = outcome.is_done
        return outcome
    finally:
        if not done and "DRAIN" not in show_node(host, node.name).flags:
            host.run("scontrol", "update", f"NodeName={node.name}", "State=DRAIN", f"Reason={node.reason}")
