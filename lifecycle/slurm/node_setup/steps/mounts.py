"""The shared file systems, which the platform mounts: there, of the right type, and writable."""

from __future__ import annotations

import secrets

from node_setup.failure import SetupError
from node_setup.node import Node

SECONDS_FOR_MOUNT = 900
"""New clients of a large file system are let in over minutes, when hundreds of nodes start at once."""
SECONDS_PER_TRY = 30
"""A server that does not answer blocks for ever."""


def verify_lustre(node: Node) -> None:
    _verify(node, ("lustre",), node.settings.lustre_mount_path)


def verify_home(node: Node) -> None:
    assert node.settings.home_mount_path is not None
    # Which version of NFS is the image's choice; "nfs" is version 3.
    _verify(node, ("nfs", "nfs4"), node.settings.home_mount_path)


def _verify(node: Node, file_systems: tuple[str, ...], path: str) -> None:
    node.host.wait_for(
        lambda: _write_and_read_back(node, file_systems, path),
        timeout_seconds=SECONDS_FOR_MOUNT,
        what=f"{path} is no writable {file_systems[0]} mount",
        remedy=f"check that the cluster's security group lets the file system in, that it is AVAILABLE, and "
        f"`findmnt {path}` and `touch {path}/x` on the node",
        every_seconds=10,
    )


def _write_and_read_back(node: Node, file_systems: tuple[str, ...], path: str) -> bool:
    """Raise SetupError unless the path is a mount of such a type that takes a file and gives it back."""
    # An automount mounts when it is first used.
    node.host.try_run("stat", f"{path}/.", timeout_seconds=SECONDS_PER_TRY)
    found = node.host.try_run(
        *("findmnt", "--noheadings", "--output", "FSTYPE", "--mountpoint", path),
        timeout_seconds=SECONDS_PER_TRY,
    )
    # Of mounts stacked on one path, such as an automount and what it has mounted, the last one is on top.
    top = found.output.split()[-1] if found.status == 0 and found.output.split() else "nothing"
    if top not in file_systems:
        raise SetupError(f"{top} is mounted there", "")
    # A name that no user can foresee.
    probe = f"{path}/.probe-{node.facts.host_name}-{secrets.token_hex(8)}"
    try:
        written = node.host.try_run(
            *("python3", "-I", "-B", node.files / "write_and_read_back.py", probe),
            timeout_seconds=SECONDS_PER_TRY,
        )
    finally:
        # In a process of its own: on a server that hangs, this one would.
        removed = node.host.try_run("rm", "--force", probe, timeout_seconds=SECONDS_PER_TRY)
    if written.status != 0:
        raise SetupError(f"it does not give back what was written to it: {written.said}", "")
    if removed.status != 0:
        node.warn(f"could not remove {probe}: {removed.said}")
    return True
