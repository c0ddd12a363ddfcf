"""Move container images off the root volume. They would fill its 100 GB, and Slurm would drain the node."""

from node_setup.disks import largest_local_disk
from node_setup.docker import place_docker
from node_setup.enroot import place_enroot
from node_setup.node import Node, log


def place(node: Node) -> None:
    """Move Docker's and enroot's data from the root volume to the largest local disk."""
    disk = largest_local_disk(node)
    if disk is None:
        text = (
            "containers stay on the root volume, this node has no other disk; `ebs_gib` gives its "
            "group one"
        )
        if node.facts.role == "worker":
            node.warn(text)
        else:
            log(f"  {text}")
        return
    place_docker(node, disk)
    place_enroot(node, disk)
