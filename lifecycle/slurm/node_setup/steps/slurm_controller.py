"""Slurm on a controller: up, with the cluster file's partitions, pyxis and a topology that lets jobs run.

All of it is the platform's own work, and only looked at. What workers need is an error on the workers.
"""

from __future__ import annotations

from node_setup import pyxis
from node_setup.failure import SetupError
from node_setup.node import Node
from node_setup.slurm import configuration, wait_for_controller

# Plugins for which slurmctld needs a description of the network.
TOPOLOGIES = ("topology/tree", "topology/block", "topology/3d_torus")


def verify(node: Node) -> None:
    """Check that slurmctld serves; warn of what workers will miss.

    Raises:
        SetupError: if slurmctld does not answer, or pyxis is configured and does not load.
    """
    wait_for_controller(node.host)
    config = configuration(node.host)
    _warn_of_partitions(node)
    _verify_pyxis(node)
    _warn_of_topology(node, config.get("TopologyPlugin", ""))


def _warn_of_partitions(node: Node) -> None:
    """A warning: the service may add a partition with its first node, on which its absence is an error."""
    shown = node.host.run("sinfo", "--noheader", "--format=%R").split()
    wanted = {group.partition for group in node.settings.instance_groups.values() if group.partition}
    for name in sorted(wanted - set(shown)):
        node.warn(
            f"Slurm has no partition {name}, only {', '.join(sorted(set(shown))) or 'none'}; once the "
            "group's nodes "
            "are there, `sinfo` must show it"
        )


def _verify_pyxis(node: Node) -> None:
    if pyxis.srun_knows(node.host):
        return
    if pyxis.is_configured(node.host):
        raise SetupError(
            f"plugstack.conf names pyxis, and srun has no option {pyxis.OPTION}",
            "the plugin does not load: see `srun -vv --help`, and that its file exists",
        )
    node.warn(
        f"this image's Slurm has no pyxis: srun has no {pyxis.OPTION}, and jobs run outside containers; "
        "HyperPod's current images have it"
    )


def _warn_of_topology(node: Node, plugin: str) -> None:
    """A warning: the service writes the topology when nodes are there; they come after the controller."""
    if plugin not in TOPOLOGIES:
        return
    shown = node.host.try_run("scontrol", "show", "topology")
    if shown.status != 0 or not shown.output.strip() or "No topology" in shown.output + shown.errors:
        node.warn(
            f"Slurm has {plugin} and no topology: until the service writes one, jobs are rejected with "
            "`Requested "
            "topology configuration is not available`; if it stays so, take TopologyPlugin out of slurm.conf "
            "and "
            "restart slurmctld"
        )
