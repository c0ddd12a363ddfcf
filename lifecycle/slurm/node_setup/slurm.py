"""What Slurm says: whether its controller answers, its configuration, and the state of a node.

Written for Slurm 23.11 to 25.x, HyperPod's, and 22.05, Debian's.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.slurm_logs import why_controller_is_down

SECONDS_FOR_CONTROLLER = 600
"""Workers may be there before the controller has set up its database and started slurmctld."""
TOPOLOGIES = ("topology/tree", "topology/block", "topology/3d_torus")
"""Plugins for which slurmctld needs a description of the network."""
# States and flags with which a node gets no jobs; the others say what it does with those it has.
UNAVAILABLE = frozenset(
    {
        *("DOWN", "DRAIN", "ERROR", "FAIL", "FUTURE", "INVAL", "INVALID_REG", "NOT_RESPONDING"),
        *("POWERED_DOWN", "POWERING_DOWN", "UNKNOWN"),
    }
)


@dataclass(frozen=True)
class SlurmNode:
    name: str
    address: str
    memory_mib: int
    """As configured; 1 where nobody has."""
    flags: frozenset[str]
    """State and its flags, such as {"IDLE", "DRAIN"}."""
    reason: str
    """Why it is drained or down; empty without."""
    partitions: tuple[str, ...]
    gres: str
    """Devices that Slurm's configuration gives it, such as gpu:h100:8(S:0-1)."""

    @property
    def state(self) -> str:
        """For people, as `sinfo` and `scontrol` write it."""
        return "+".join(sorted(self.flags, key=lambda flag: (flag in UNAVAILABLE, flag)))

    @property
    def unavailable(self) -> frozenset[str]:
        return self.flags & UNAVAILABLE

    def num_devices(self, kind: str) -> int:
        """How many devices of a kind ("gpu") are configured, of all types together."""
        return sum(int(count) for count in re.findall(rf"(?:^|,){kind}(?::[^:,(]+)?:(\d+)", self.gres))


def wait_for_controller(host: Host) -> None:
    """Wait until a slurmctld answers.

    Raises:
        SetupError: if none does, with what its log says where there is one.
    """

    def answers() -> bool:
        ping = host.try_run("scontrol", "ping")
        if not re.search(r"\bUP\b", ping.output):
            raise SetupError(f"scontrol ping says: {ping.said}", "")
        return True

    try:
        host.wait_for(
            answers,
            timeout_seconds=SECONDS_FOR_CONTROLLER,
            what="Slurm's controller does not answer",
            remedy="on the controller see `systemctl status slurmctld` and its log; between the nodes the "
            "security group must allow all traffic",
        )
    except SetupError as error:
        raise (why_controller_is_down(host) or error) from None


def configuration(host: Host) -> dict[str, str]:
    """The running configuration of slurmctld; the names are those of slurm.conf."""
    lines = host.run("scontrol", "show", "config").splitlines()
    pairs = (line.partition("=") for line in lines if "=" in line)
    return {name.strip(): "" if value.strip() == "(null)" else value.strip() for name, _, value in pairs}


def show_node(host: Host, name: str) -> SlurmNode:
    """The node as slurmctld sees it.

    Raises:
        SetupError: if slurmctld does not answer, or does not know the node.
    """
    shown = host.run(
        *("scontrol", "--oneliner", "show", "node", name),
        remedy=f"on the controller look for {name} in `sinfo` and slurm.conf; the service adds a node before "
        "its scripts run: replace the node if it stays unknown",
    )
    return _node(shown.strip())


def show_nodes(host: Host) -> list[SlurmNode]:
    """All nodes that slurmctld knows, in its order.

    Raises:
        SetupError: if slurmctld does not answer.
    """
    shown = host.run(
        *("scontrol", "--oneliner", "show", "node"),
        remedy="see `systemctl status slurmctld` on the controller",
    )
    # A cluster without any answers "No nodes in the system", successfully.
    return [_node(line) for line in shown.splitlines() if line.startswith("NodeName=")]


def _node(shown: str) -> SlurmNode:
    # The brackets say who set it, and when; other fields may follow.
    reason = re.search(r" Reason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\]|$)", shown)
    # Without the reason, which is free text and may look like a field.
    fields = dict(re.findall(r"(?:^| )(\w+)=(\S+)", shown[: reason.start()] if reason else shown))
    if "State" not in fields:
        raise SetupError(
            f"scontrol shows a node without a state: {shown[:200]!r}", "check Slurm's version there"
        )
    return SlurmNode(
        name=fields.get("NodeName", ""),
        address=fields.get("NodeAddr", ""),
        memory_mib=int(fields.get("RealMemory", 1)),
        # An asterisk is how older versions write that a node does not respond.
        flags=frozenset(fields["State"].replace("*", "+NOT_RESPONDING").split("+")),
        reason=reason[1].strip() if reason else "",
        partitions=tuple(fields["Partitions"].split(",")) if "Partitions" in fields else (),
        gres=fields.get("Gres", ""),
    )


def runs_jobs(host: Host, name: str) -> bool:
    """Whether jobs are on the node, one that is ending included; none are on one that Slurm does not know.

    The job in which these steps may run themselves (`make apply-lifecycle`) does not count.
    """
    listed = host.try_run("squeue", "--noheader", "--nodelist", name, "--format=%A")
    if listed.status != 0 and "Invalid node name" not in listed.errors:
        raise SetupError(f"squeue cannot say what runs on {name}: {listed.said}", "see `squeue` on the node")
    return bool(set(listed.output.split()) - {os.environ.get("SLURM_JOB_ID", "")})


def topology_problem(host: Host, partition: str, name: str) -> str | None:
    """Why Slurm would reject jobs on this node for the topology of the network; None if it would not.

    Only this is asked of a job that is not run: other refusals say nothing, as a partition may be closed to
    root, and a node reserved.
    """
    plugin = configuration(host).get("TopologyPlugin", "")
    if plugin not in TOPOLOGIES:
        return None
    shown = host.try_run("scontrol", "show", "topology").output
    for group in set(re.findall(r" Nodes=(\S+)", shown)):
        if name in host.run("scontrol", "show", "hostnames", group).split():
            break
    else:
        return f"{name} is not in the topology that {plugin} needs"
    test = host.try_run(
        *("sbatch", "--test-only", f"--partition={partition}", f"--nodelist={name}", "--wrap=true")
    )
    return test.said if test.status != 0 and "topology" in test.said.lower() else None
