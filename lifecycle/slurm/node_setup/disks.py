"""Disk of a path, determined by the device rather than the path's name, and the node's local disks."""

import os
import re
from dataclasses import dataclass

from node_setup.failure import SetupError
from node_setup.host import Host
from node_setup.node import Node

MOUNTS = "/proc/self/mountinfo"
INSTANCE_STORE = "/opt/dlami/nvme"
"""Mount point of the NVMe drives in HyperPod's image."""
SECOND_VOLUME = "/opt/sagemaker"
"""Mount point of the EBS volume that the cluster file sets (``ebs_gib``)."""
INSTANCE_STORE_SERVICE = "dlami-nvme.service"
SECONDS_FOR_INSTANCE_STORE = 300
"""The image formats the drives of a large node while the scripts are already running."""


@dataclass(frozen=True)
class Mount:
    device: str
    """Major and minor number, as in 259:1; two mounts of one file system have the same."""
    path: str


def mount_of(host: Host, path: str) -> Mount:
    """Return the mount that holds this path, or would hold it if it existed."""
    root = os.path.realpath(host.root)
    real = os.path.realpath(host.path(path))
    inside = real
    if real.startswith(root):
        inside = real.removeprefix(root.rstrip("/")) or "/"
    # The longest mount point counts. If several mounts are on one path, the last one is on top.
    found = Mount(device="", path="")
    for mount in _mounts(host):
        below = mount.path.rstrip("/") + "/"
        if (inside + "/").startswith(below) and len(mount.path) >= len(found.path):
            found = mount
    return found


def is_on_root_volume(host: Host, path: str) -> bool:
    return mount_of(host, path).device == mount_of(host, "/").device


def largest_local_disk(node: Node) -> str | None:
    """Return the mount point of the largest local disk; None if the node has only the root volume."""
    try:
        node.host.wait_for(
            lambda: _instance_store_is_done(node.host),
            timeout_seconds=SECONDS_FOR_INSTANCE_STORE,
            what=f"{INSTANCE_STORE_SERVICE} is not done",
            remedy=f"see `systemctl status {INSTANCE_STORE_SERVICE}`, then apply the scripts again",
        )
    except SetupError as error:
        # The other disk may be enough, and jobs without containers need none.
        node.warn(f"the local NVMe drives are left out: {error}")
    disks = [
        path
        for path in (INSTANCE_STORE, SECOND_VOLUME)
        # A folder of this name on the root volume is not a disk.
        if mount_of(node.host, path).path == path and not is_on_root_volume(node.host, path)
    ]

    def num_bytes(path: str) -> int:
        shown = node.host.run("df", "--output=size", "--block-size=1", path)
        return int(shown.split()[-1])

    return max(disks, key=num_bytes, default=None)


def _instance_store_is_done(host: Host) -> bool:
    """Return whether the wait is over: there is no service, the disk is mounted, or a run has ended."""
    names = ("LoadState", "ActiveState", "ExecMainExitTimestampMonotonic")
    shown = host.run("systemctl", "show", f"--property={','.join(names)}", INSTANCE_STORE_SERVICE)
    state = dict(line.split("=", 1) for line in shown.splitlines() if "=" in line)
    if state.get("LoadState") != "loaded" or mount_of(host, INSTANCE_STORE).path == INSTANCE_STORE:
        return True
    if state.get("ActiveState") in ("active", "failed"):
        return True
    # A service that has not started yet is inactive too. A run that has ended left its time.
    ended = state.get("ExecMainExitTimestampMonotonic", "0") not in ("", "0")
    return state.get("ActiveState") == "inactive" and ended


def _mounts(host: Host) -> list[Mount]:
    octal = re.compile(r"\\([0-7]{3})")
    mounts: list[Mount] = []
    for line in host.path(MOUNTS).read_text().splitlines():
        # id, parent, major:minor, root, mount point, ...
        fields = line.split(" ")
        if len(fields) <= 4:
            continue
        # Blanks in a mount point are written as \040.
        path = octal.sub(lambda match: chr(int(match[1], 8)), fields[4])
        mounts.append(Mount(device=fields[2], path=path))
    return mounts
