"""Workers that a job of this setup can reach, including those that an earlier run left drained.

A reservation keeps users off drained workers while the job runs there.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from node_setup.host import Host
from node_setup.slurm import SlurmNode, show_node
from node_setup.steps.hold import OURS
from workers.worker_run import MINUTES_FOR_SCRIPT, Outcome

ABSENT = {"DOWN", "ERROR", "FAIL", "FUTURE", "INVALID_REG"}
"""States of absent nodes, without NOT_RESPONDING: Slurm 22.05 shows it for seconds after a node resumes."""
SPARE_MINUTES = 5
"""Time of a reservation beyond the limits of the wait and of the job."""
UP_LATER = {
    "POWERED_DOWN",
    "POWERING_DOWN",
    "POWERING_UP",
    "POWER_DOWN",
    "POWER_UP",
    "REBOOT_ISSUED",
    "REBOOT_REQUESTED",
}


def is_held_by_us(node: SlurmNode) -> bool:
    return "DRAIN" in node.flags and node.reason.startswith(OURS)


def why_unreachable(node: SlurmNode) -> str | None:
    """Return why no job can start on the node, with a remedy; None if one can, even after other jobs."""
    because = f" ({node.reason})" if node.reason else ""
    if node.flags & ABSENT:
        return (
            f"it is {node.state}{because}; a replaced node gets the new scripts automatically; for one "
            "that comes back repeat this command"
        )
    if node.flags & UP_LATER:
        return f"it is {node.state}; repeat this command when it is up"
    if "DRAIN" in node.flags and not is_held_by_us(node):
        return (
            f"someone else has drained it{because}; resume it "
            f"(`sudo scontrol update NodeName={node.name} State=RESUME`), and repeat this command"
        )
    if not node.partitions:
        return "it is in no partition, so no job can run on it; add its group to one"
    return None


@contextmanager
def reserved(
    host: Host, nodes: Sequence[SlurmNode], *, wait_seconds: float
) -> Iterator[str | None]:
    """Reserve nodes for root, and yield the reservation's name; yield None if there are no nodes.

    The reservation also ends automatically. Running jobs on the nodes continue.

    Raises:
        SetupError: if Slurm refuses.
    """
    if not nodes:
        yield None
        return
    name = f"node-setup-{os.getpid()}"
    minutes = MINUTES_FOR_SCRIPT + int(wait_seconds // 60) + SPARE_MINUTES
    host.run(
        "scontrol",
        "create",
        "reservation",
        f"ReservationName={name}",
        "Users=root",
        "StartTime=now",
        f"Duration={minutes}",
        "Flags=MAINT,IGNORE_JOBS,OVERLAP",
        f"Nodes={','.join(node.name for node in nodes)}",
        remedy="`scontrol show reservation` lists the existing ones; root may create one on the controller",
    )
    try:
        yield name
    finally:
        host.run(
            "scontrol",
            "delete",
            f"ReservationName={name}",
            remedy=f"it ends automatically after {minutes} minutes",
        )


def run_held(host: Host, node: SlurmNode, run: Callable[[], Outcome]) -> Outcome:
    """Undrain a node so that our job can start; the reservation keeps other jobs away.

    The scripts drain the node themselves, and resume it after they succeed. If they did not start, or did not
    get that far, the node is drained again with its old reason.

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
            host.run(
                "scontrol",
                "update",
                f"NodeName={node.name}",
                "State=DRAIN",
                f"Reason={node.reason}",
            )
