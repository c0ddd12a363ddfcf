"""Folders on shared file systems in which root works: out of the reach of users, who could plant links."""

from __future__ import annotations

import os
import stat

from node_setup.failure import SetupError
from node_setup.host import Host


def make_root_folder(host: Host, path: str) -> None:
    """Have a folder that root alone can change, and all may enter.

    Raises:
        SetupError: if what is there is something else, or can be changed by users.
    """
    folder = host.path(path)
    if not os.path.lexists(folder):
        folder.mkdir(mode=0o755, parents=True, exist_ok=True)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.geteuid() or found.st_mode & 0o022:
        raise SetupError(
            f"{path} must be a folder of root's that no one else can write to, since root works in it: it is "
            f"{stat.filemode(found.st_mode)} of uid {found.st_uid}",
            f"look at what is there; then `sudo chown root:root {path} && sudo chmod 755 {path}`, or move it",
        )
