"""Verify Slurm on a worker: registration, partition, accelerators and pyxis; on a login node its commands.

The step runs on workers while the node is held. The platform manages slurmd. The step restarts it only to
fetch Slurm's configuration again, and only without jobs.
"""

from node_setup import pyxis
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import SlurmNode, runs_jobs, show_node, wait_for_controller

SECONDS_TO_REGISTER = 300
SECONDS_TO_FETCH = 300
"""Time limit. The controller starts at the same time and may distribute the configuration late."""
SECONDS_FOR_DRIVER = 180
"""Time limit. The driver starts at the first query, one GPU after the other."""
REFUSED = frozenset({"INVAL", "INVALID_REG"})
"""Flags of a node that registered with fewer devices, cores or less memory than configured."""
REPLACE = 'sudo scontrol update nodename={name} state=fail reason="Action:Replace"'


def verify(node: Node) -> None:
    """Check what jobs on this node need from Slurm.

    Raises:
        SetupError: if something is missing.
    """
    state = _registered(node)
    _verify_devices(node, state)
    partition = node.facts.hardware.partition
    if partition and partition not in state.partitions:
        raise SetupError(
            f"{node.facts.host_name} is in partition {', '.join(state.partitions) or 'none'}, not in "
            f"{partition} of the cluster file",
            "on the controller see `scontrol show partition` and slurm.conf; a group's partition cannot "
            "change: give the group another name in the cluster file, and deploy",
        )
    _verify_pyxis(node)
    # The check is repeated, because slurmd may have been restarted.
    _registered(node)


def verify_login_node(node: Node) -> None:
    """Check Slurm's commands on this node.

    Raises:
        SetupError: if Slurm does not answer, or srun lacks the image's plugin.
    """
    wait_for_controller(node.host)
    node.host.run("sinfo", "--noheader", remedy="see `scontrol ping` and slurm.conf on this node")
    # HyperPod runs slurmd on login nodes as well, which keeps their copy of the configuration.
    _verify_pyxis(node)


def _registered(node: Node) -> SlurmNode:
    def look() -> SlurmNode:
        active = node.host.try_run("systemctl", "is-active", "slurmd").output.strip()
        if active != "active":
            raise SetupError(
                f"slurmd is {active or 'not installed'}",
                "see `journalctl --unit=slurmd` on the node",
            )
        state = show_node(node.host, node.facts.host_name)
        # A node that slurmctld refused has registered, although its state may stay unknown.
        if state.flags & {"NOT_RESPONDING", "UNKNOWN", "FUTURE"} and not state.flags & REFUSED:
            raise SetupError(f"its state is {state.state}", "")
        return state

    return node.host.wait_for(
        look,
        timeout_seconds=SECONDS_TO_REGISTER,
        what=f"{node.facts.host_name} has not registered with Slurm's controller",
        remedy="see `journalctl --unit=slurmd` on the node; its ports 6817 and 6818 must be open to others",
    )


def _verify_devices(node: Node, state: SlurmNode) -> None:
    hardware = node.facts.hardware
    name = node.facts.host_name
    replace = f"if a device is lost, replace the node: {REPLACE.format(name=name)}"

    def verify_number(kind: str, expected: int, found: int) -> None:
        if found != expected:
            raise SetupError(
                f"{hardware.instance_type} has {_number(expected, kind)}, and the driver shows {found}",
                f"see `dmesg` for the driver's errors; {replace}",
            )

    if hardware.num_gpus:
        verify_number("GPU", hardware.num_gpus, _count_gpus(node))
    if hardware.num_neuron_devices:
        found = len(list(node.host.path("/dev").glob("neuron[0-9]*")))
        verify_number("Neuron device", hardware.num_neuron_devices, found)
    configured = state.num_devices("gpu")
    if hardware.num_gpus and configured != hardware.num_gpus:
        raise SetupError(
            f"Slurm's configuration gives {name} {_number(configured, 'GPU')} "
            f"(Gres={state.gres or '(null)'}), and it has {hardware.num_gpus}",
            "on the controller correct Gres of its NodeName in slurm.conf, and gres.conf; then "
            "`sudo scontrol reconfigure`",
        )
    if state.flags & REFUSED:
        # The reason may be this setup's by now. slurmctld's log has Slurm's own.
        raise SetupError(
            f"Slurm refuses {name} as it registered ({state.state}: {state.reason}); its configuration has "
            f"Gres={state.gres or '(null)'}, the node {_number(hardware.num_gpus, 'GPU')}",
            "compare `slurmd -C` and `slurmd -G` on the node with its NodeName in slurm.conf; after a "
            f"repair `sudo systemctl restart slurmd` on the node; {replace}",
        )


def _count_gpus(node: Node) -> int:
    listed = node.host.try_run("nvidia-smi", "--list-gpus", timeout_seconds=SECONDS_FOR_DRIVER)
    if listed.status != 0:
        raise SetupError(
            f"nvidia-smi fails on {node.facts.hardware.instance_type}: {listed.said}",
            f"the driver does not work; replace the node: {REPLACE.format(name=node.facts.host_name)}",
        )
    return sum(line.startswith("GPU ") for line in listed.output.splitlines())


def _number(number: int, kind: str) -> str:
    return f"{number} {kind}" if number == 1 else f"{number} {kind}s"


def _verify_pyxis(node: Node) -> None:
    """Check that srun knows pyxis if the image has it.

    Raises:
        SetupError: if it does not after slurmd's restart, or slurmd cannot be restarted because jobs run.
    """
    if pyxis.srun_knows(node.host):
        return
    if not pyxis.is_installed(node.host) and pyxis.configured_at(node.host) is None:
        node.warn(
            f"this image has no pyxis: srun has no {pyxis.OPTION}, and jobs run outside containers"
        )
        return
    remedy = (
        "on the controller `sudo scontrol reconfigure`, which has all nodes fetch plugstack.conf again; it "
        f"must name pyxis there: `srun --help | grep -e {pyxis.OPTION}` on the controller"
    )
    problem = f"srun on {node.facts.host_name} has no option {pyxis.OPTION}"
    if runs_jobs(node.host, node.facts.host_name):
        raise SetupError(f"{problem}, and jobs run here, so that slurmd is not restarted", remedy)
    node.host.run("systemctl", "restart", "slurmd", remedy=remedy)
    node.changed("slurmd: restarted, to fetch plugstack.conf again")
    node.host.wait_for(
        lambda: pyxis.srun_knows(node.host),
        timeout_seconds=SECONDS_TO_FETCH,
        what=f"{problem}, even with slurmd restarted,",
        remedy=remedy,
    )
