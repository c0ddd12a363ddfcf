"""Which workers a job of ours can reach, and why it cannot reach the others."""

from __future__ import annotations

from node_setup.slurm import SlurmNode
from node_setup.steps.hold import OURS

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
