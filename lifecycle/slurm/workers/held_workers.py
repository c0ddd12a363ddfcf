"""Workers that an earlier run has left drained: reached through a reservation that keeps users away."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from node_setup.host import Host
from node_setup.slurm import SlurmNode, show_node
from workers.worker_run import MINUTES_FOR_SCRIPT, Outcome


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
