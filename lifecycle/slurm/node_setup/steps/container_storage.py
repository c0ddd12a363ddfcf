"""Containers' images and layers off the root volume, which has 100 GB: they fill it, and the node drains."""

from __future__ import annotations

from node_setup.disks import largest_local_disk
from node_setup.docker import place_docker
from node_setup.enroot import place_enroot
from node_setup.node import Node, log


def place(node: Node) -> None:
    """Move to the largest local disk what the image left on the root volume; what it placed itself stays."""
    disk = largest_local_disk(node)
    if disk is None:
        text = (
            "containers stay on the root volume, this node has no other disk; `ebs_gib` gives its group one"
        )
        if node.facts.role == "worker":
            node.warn(text)
        else:
            log(f"  {text}")
        return
    place_docker(node, disk)
    place_enroot(node, disk)
