"""Nodes as Slurm's controller describes them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.steps.hold import OURS

ABSENT = {"DOWN", "ERROR", "FAIL", "FUTURE", "INVALID_REG"}
"""Not NOT_RESPONDING: Slurm 22.05 says it of a node that was given back, for seconds; later it is DOWN."""
POWER_SAVING = {"POWERED_DOWN", "POWERING_DOWN", "POWERING_UP", "POWER_DOWN", "POWER_UP"}
REBOOTING = {"REBOOT_ISSUED", "REBOOT_REQUESTED", "REBOOT"}
BUSY = {"ALLOCATED", "MIXED", "COMPLETING"}
_FIELD = re.compile(r"(?:^| )(NodeName|NodeAddr|State|Partitions|RealMemory)=(\S*)")
_REASON = re.compile(r" Reason=(.*?) \[[^\]]*@[^\]]*\]")
"""The text, which may hold blanks; Slurm adds who set it, and when."""


@dataclass(frozen=True)
class SlurmNode:
    name: str
    address: str
    states: frozenset[str]
    reason: str
    """Why it is drained or down; empty if it is neither."""
    partition: str | None
    """One of those that it is in."""
    memory_mib: int

    @property
    def is_held_by_us(self) -> bool:
        return "DRAIN" in self.states and self.reason.startswith(OURS)

    @property
    def is_busy(self) -> bool:
        return bool(self.states & BUSY)

    @property
    def why_unreachable(self) -> str | None:
        """Why no job of ours can start on it, and what to do; None if one can, at least after others."""
        state = "+".join(sorted(self.states)).lower()
        because = f" ({self.reason})" if self.reason else ""
        if self.states & ABSENT:
            return (
                f"it is {state}{because}; a node that is replaced gets the new scripts by itself; for one "
                "that comes back repeat this command"
            )
        if self.states & (POWER_SAVING | REBOOTING):
            return f"it is {state}; repeat this command when it is up"
        if "DRAIN" in self.states and not self.is_held_by_us:
            return (
                f"somebody else has drained it{because}; give it back "
                f"(`sudo scontrol update NodeName={self.name} State=RESUME`), and repeat this command"
            )
        if self.partition is None:
            return "it is in no partition, so that no job can run on it; add its group to one"
        return None


def read_nodes(host: Host) -> list[SlurmNode]:
    """All nodes that Slurm's controller knows, in its order.

    Raises:
        SetupError: if it does not answer, or in another form than the one we know.
    """
    output = host.run(
        *("scontrol", "show", "node", "--oneliner"),
        remedy="see `systemctl status slurmctld` on the controller",
    )
    # "No nodes in the system" is what a cluster without workers answers, successfully.
    return [_node(line) for line in output.splitlines() if line.startswith("NodeName=")]


def read_node(host: Host, name: str) -> SlurmNode:
    return _node(host.run("scontrol", "show", "node", name, "--oneliner").strip())


def _node(line: str) -> SlurmNode:
    reason = _REASON.search(line)
    # Without the reason, which is free text and may look like a field.
    fields = dict(_FIELD.findall(line[: reason.start()] if reason else line))
    try:
        name, state = fields["NodeName"], fields["State"]
    except KeyError as error:
        raise SetupError(
            f"`scontrol show node` says no {error.args[0]}: {line[:200]}",
            "these scripts are older than this Slurm: update this repository, and `make deploy`",
        ) from None
    partitions = [name for name in fields.get("Partitions", "").split(",") if name and name != "(null)"]
    return SlurmNode(
        name=name,
        address=fields.get("NodeAddr", ""),
        states=_states(state),
        reason=reason[1] if reason else "",
        partition=partitions[0] if partitions else None,
        memory_mib=int(fields.get("RealMemory") or 1),
    )


def _states(text: str) -> frozenset[str]:
    """``IDLE+DRAIN`` as its parts, without the marks that some releases put behind them."""
    return frozenset(part.strip("*~#!%$@^-") for part in text.upper().split("+"))
