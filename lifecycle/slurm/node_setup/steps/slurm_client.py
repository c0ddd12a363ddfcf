"""Slurm on a login node: its commands reach the controller, and srun knows pyxis."""

from node_setup.node import Node
from node_setup.slurm import wait_for_controller
from node_setup.steps.slurm_worker import verify_pyxis


def verify(node: Node) -> None:
    """Check Slurm's commands on this node.

    Raises:
        SetupError: if Slurm does not answer, or srun lacks the image's plugin.
    """
    wait_for_controller(node.host)
    node.host.run("sinfo", "--noheader", remedy="see `scontrol ping` and slurm.conf on this node")
    # HyperPod runs slurmd on login nodes as well, which keeps their copy of the configuration.
    verify_pyxis(node)
