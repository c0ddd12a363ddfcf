"""Queries to Slurm: its controller, configuration and nodes, and why a slurmctld does not start.

The code supports Slurm 23.11 to 25.x (HyperPod) and 22.05 (Debian).
"""

import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host

SECONDS_FOR_CONTROLLER = 600
"""Time limit. Workers may start before the controller has set up its database and started slurmctld."""
TOPOLOGIES = ("topology/tree", "topology/block", "topology/3d_torus")
"""Plugins for which slurmctld needs a description of the network."""
UNAVAILABLE = frozenset(
    {
        "DOWN",
        "DRAIN",
        "ERROR",
        "FAIL",
        "FUTURE",
        "INVAL",
        "INVALID_REG",
        "NOT_RESPONDING",
        "POWERED_DOWN",
        "POWERING_DOWN",
        "UNKNOWN",
    }
)
"""States and flags with which a node gets no jobs. The other flags describe its current jobs."""
# Paths of HyperPod, then of Debian's and Ubuntu's packages.
CONFIGURATIONS = ("/opt/slurm/etc/slurm.conf", "/etc/slurm/slurm.conf")
LOGS = ("/var/log/slurm/slurmctld.log", "/var/log/slurmctld.log")
TAIL_BYTES = 65536
"""Length of the end of the log that is searched for causes."""
MISMATCH = "CLUSTER ID MISMATCH"

_SERVICE = ("LoadState", "Result", "NRestarts", "ExecMainStatus")
"""Properties of systemd's service."""
_LOOKS = 20
_BY_SIGNAL = ("signal", "core-dump")


@dataclass(frozen=True)
class SlurmNode:
    name: str
    address: str
    memory_mib: int
    """Configured memory; 1 if it is not configured."""
    flags: frozenset[str]
    """State and its flags, such as {"IDLE", "DRAIN"}."""
    reason: str
    """Reason for the drain or the down state; empty without one."""
    partitions: tuple[str, ...]
    gres: str
    """Configured devices, such as gpu:h100:8(S:0-1)."""

    @property
    def state(self) -> str:
        """State in the notation of `sinfo` and `scontrol`."""
        return "+".join(sorted(self.flags, key=lambda flag: (flag in UNAVAILABLE, flag)))

    @property
    def unavailable(self) -> frozenset[str]:
        return self.flags & UNAVAILABLE

    def num_devices(self, kind: str) -> int:
        """Return the number of configured devices of a kind ("gpu"), over all types."""
        return sum(
            int(count) for count in re.findall(rf"(?:^|,){kind}(?::[^:,(]+)?:(\d+)", self.gres)
        )


def wait_for_controller(host: Host, *, repair: Callable[[], bool] | None = None) -> None:
    """Wait until a slurmctld answers. While none does, ``repair`` may change something.

    Raises:
        SetupError: if none does, with the cause from its log if this node has it, or why ``repair`` refused.
    """
    refusal: SetupError | None = None

    def answers() -> bool:
        nonlocal refusal
        ping = host.try_run("scontrol", "ping")
        if not re.search(r"\bUP\b", ping.output):
            try:
                if repair and repair():
                    return answers()
            except SetupError as error:
                refusal = error
            raise SetupError(f"scontrol ping prints: {ping.said}", "")
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
        raise (refusal or why_controller_is_down(host) or error) from None


def configuration(host: Host) -> dict[str, str]:
    """Return the running configuration of slurmctld, with the names of slurm.conf."""
    lines = host.run("scontrol", "show", "config").splitlines()
    values: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.partition("=")
        if equals:
            shown = value.strip()
            values[name.strip()] = "" if shown == "(null)" else shown
    return values


def show_node(host: Host, name: str) -> SlurmNode:
    """Return slurmctld's view of the node.

    Raises:
        SetupError: if slurmctld does not answer, or does not know the node.
    """
    shown = host.run(
        "scontrol",
        "--oneliner",
        "show",
        "node",
        name,
        remedy=f"on the controller look for {name} in `sinfo` and slurm.conf; the service adds a node before "
        "its scripts run: replace the node if it stays unknown",
    )
    return _node(shown.strip())


def show_nodes(host: Host) -> list[SlurmNode]:
    """Return all nodes that slurmctld knows, in its order.

    Raises:
        SetupError: if slurmctld does not answer.
    """
    shown = host.run(
        "scontrol",
        "--oneliner",
        "show",
        "node",
        remedy="see `systemctl status slurmctld` on the controller",
    )
    # A cluster without nodes prints "No nodes in the system" and succeeds.
    return [_node(line) for line in shown.splitlines() if line.startswith("NodeName=")]


def _node(shown: str) -> SlurmNode:
    # The brackets hold the author and the time of the reason. Other fields may follow.
    reason = re.search(r" Reason=(.*?)(?: \[[^\[\]]*@[^\[\]]*\]|$)", shown)
    # The reason is free text and may look like a field, so it is cut off.
    fields = dict(re.findall(r"(?:^| )(\w+)=(\S+)", shown[: reason.start()] if reason else shown))
    if "State" not in fields:
        raise SetupError(
            f"scontrol shows a node without a state: {shown[:200]!r}", "check Slurm's version there"
        )
    return SlurmNode(
        name=fields.get("NodeName", ""),
        address=fields.get("NodeAddr", ""),
        memory_mib=int(fields.get("RealMemory", 1)),
        # Older versions mark a node that does not respond with an asterisk.
        flags=frozenset(fields["State"].replace("*", "+NOT_RESPONDING").split("+")),
        reason=reason[1].strip() if reason else "",
        partitions=tuple(fields["Partitions"].split(",")) if "Partitions" in fields else (),
        gres=fields.get("Gres", ""),
    )


def runs_jobs(host: Host, name: str) -> bool:
    """Return whether the node has jobs, running or ending; False if Slurm does not know the node.

    The job in which these steps themselves may run (`make apply-lifecycle`) does not count.
    """
    listed = host.try_run("squeue", "--noheader", "--nodelist", name, "--format=%A")
    if listed.status != 0 and "Invalid node name" not in listed.errors:
        raise SetupError(
            f"squeue does not list the jobs on {name}: {listed.said}", "run `squeue` on the node"
        )
    return bool(set(listed.output.split()) - {os.environ.get("SLURM_JOB_ID", "")})


def topology_problem(host: Host, partition: str, name: str) -> str | None:
    """Return why Slurm would reject jobs on this node because of its network topology; None otherwise.

    A test job is submitted without running it. Other refusals are ignored: a partition may be closed to root,
    or a node reserved.
    """
    plugin = configuration(host).get("TopologyPlugin", "")
    if plugin not in TOPOLOGIES:
        return None
    shown = host.try_run("scontrol", "show", "topology").output
    groups = set(re.findall(r" Nodes=(\S+)", shown))
    if not any(
        name in host.run("scontrol", "show", "hostnames", group).split() for group in groups
    ):
        return f"{name} is not in the topology that {plugin} needs"
    test = host.try_run(
        "sbatch", "--test-only", f"--partition={partition}", f"--nodelist={name}", "--wrap=true"
    )
    return test.said if test.status != 0 and "topology" in test.said.lower() else None


def why_controller_is_down(host: Host) -> SetupError | None:
    """Return a diagnosis from slurmctld's log, files and service on this node; other nodes have none.

    A crash by a signal leaves no line in the log.
    """
    return _cause_in_log(host) or _cause_in_service(host)


def _cause_in_service(host: Host) -> SetupError | None:
    """Return a diagnosis if systemd's service of slurmctld crashes or restarts again and again."""
    state = _service_state(host)
    for _ in range(_LOOKS):
        # systemd forgets the result while the service runs, which is short if it crashes.
        if state.get("NRestarts", "0") == "0" or state.get("Result") != "success":
            break
        host.sleep(1)
        state = _service_state(host)
    num_restarts = state.get("NRestarts", "0")
    result = state.get("Result", "success")
    if state.get("LoadState") != "loaded" or (result == "success" and num_restarts == "0"):
        return None
    how = f"signal {state.get('ExecMainStatus')}" if result in _BY_SIGNAL else f"result {result}"
    text = f"slurmctld does not stay up: {how}, {num_restarts} restarts by systemd"
    if empty := _empty_topology(host):
        return SetupError(
            f"{text}. {empty}, with which slurmctld 25.11 crashes "
            "(aws-samples/sample-physical-ai-scaffolding-kit issue 23)",
            "on the controller remove the empty topology files and `Topology=...` of the partitions in "
            "slurm.conf, then `sudo systemctl restart slurmctld`",
        )
    return SetupError(
        f"{text}. Its log names no cause",
        "on the controller see `journalctl --unit slurmctld` and `coredumpctl info slurmctld`; run "
        "`sudo slurmctld -D -vvv` for its last words",
    )


def _service_state(host: Host) -> dict[str, str]:
    shown = host.try_run("systemctl", "show", "slurmctld", f"--property={','.join(_SERVICE)}")
    return dict(line.partition("=")[::2] for line in shown.output.splitlines() if "=" in line)


def _empty_topology(host: Host) -> str | None:
    """Return which partition names a topology although its description is empty; None without one."""
    for path in CONFIGURATIONS:
        file = host.path(path)
        if not file.is_file():
            continue
        named = re.search(r"^PartitionName=(\S+).*\bTopology=(\S+)", file.read_text(), re.MULTILINE)
        descriptions = [file.with_name(name) for name in ("topology.yaml", "topology.conf")]
        empty = [
            found.name
            for found in descriptions
            if found.is_file() and found.read_text().strip() in ("", "[]")
        ]
        if named and empty:
            return (
                f"Partition {named[1]} names the topology {named[2]}, and {' and '.join(empty)} "
                f"{'is' if len(empty) == 1 else 'are'} empty"
            )
    return None


def _cause_in_log(host: Host) -> SetupError | None:
    """Return a diagnosis from slurmctld's log, if this node has one."""
    settings = slurm_conf(host)
    text = _log_since_start(host, settings)
    if MISMATCH in text:
        folder = settings.get("statesavelocation", "the StateSaveLocation of slurm.conf")
        return SetupError(
            f"slurmctld ends with CLUSTER ID MISMATCH: {folder} and the accounting database have "
            "different numbers for this cluster. Accounting was set up after slurmctld's first start, or the "
            "database was another cluster's",
            "make sure that no other controller uses this folder or this cluster name in the database; "
            f"then on the controller `sudo systemctl stop slurmctld`, `sudo mv {folder}/clustername "
            f"{folder}/clustername.old`, `sudo systemctl start slurmctld`; jobs and nodes are kept",
        )
    if re.search(r"(cannot stat|read|open).*topology\.(conf|yaml)", text, re.IGNORECASE):
        return SetupError(
            "slurmctld waits for a topology file that does not exist: slurm.conf names a TopologyPlugin",
            "on the controller comment TopologyPlugin out in slurm.conf and `sudo systemctl restart "
            "slurmctld`; the service writes both for instance types that have a topology",
        )
    # A message may have several lines. The next entry begins with its time.
    fatal = re.findall(r"fatal: (.*?)(?=\n\[|\Z)", text, re.DOTALL)
    if fatal:
        return SetupError(
            f"slurmctld ends with: {' '.join(fatal[-1].split())}",
            "see its log on the controller, and `systemctl status slurmctld`",
        )
    return None


def has_cluster_id_mismatch(host: Host) -> bool:
    """Return whether slurmctld's last start on this node ended with different numbers of the cluster."""
    return MISMATCH in _log_since_start(host, slurm_conf(host))


def slurm_conf(host: Host) -> dict[str, str]:
    """Return the ``Name=value`` lines of slurm.conf, with names in lower case because Slurm ignores case."""
    for path in CONFIGURATIONS:
        file = host.path(path)
        if file.is_file():
            text = "\n".join(file.read_text(errors="replace").splitlines())
            pairs = re.findall(r"^\s*(\w+)\s*=\s*(\S+)\s*(?:#.*)?$", text, re.MULTILINE)
            return {name.lower(): value for name, value in pairs}
    return {}


def _log_since_start(host: Host, settings: dict[str, str]) -> str:
    """Return slurmctld's log since its last start, because earlier lines no longer apply."""
    text = _log(host, settings.get("slurmctldlogfile"))
    return text[max(0, text.rfind("slurmctld version ")) :]


def _log(host: Host, configured: str | None) -> str:
    for path in (configured, *LOGS):
        file = host.path(path) if path else Path()
        if file.is_file():
            with file.open("rb") as log:
                log.seek(max(0, file.stat().st_size - TAIL_BYTES))
                return log.read().decode(errors="replace")
    return ""
