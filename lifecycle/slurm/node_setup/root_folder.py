"""Folders on shared file systems in which root works: out of the reach of users, who could plant links."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host


def is_roots(found: os.stat_result) -> bool:
    """Whether a file or folder belongs to root, and no one else can change it; never true of a link."""
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


@contextmanager
def root_folder(host: Host, path: str) -> Iterator[Path]:
    """Open a folder that root alone can change and all may enter, and create it if it is missing.

    The path that is given leads to the open folder itself, also for commands that this process starts. If
    users can write to the folder above, what they rename or put in its place redirects nothing.

    Raises:
        SetupError: if what is there is something else, or can be changed by users.
    """
    folder = host.path(path)
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    # Which opens whatever is there, and waits for no pipe.
    handle = os.open(folder, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = os.fstat(handle)
        if not stat.S_ISDIR(found.st_mode) or not is_roots(found):
            raise SetupError(
                f"{path} must be a folder of root's that no one else can write to, since root works in it: "
                f"it is {stat.filemode(found.st_mode)} of uid {found.st_uid}",
                f"look at what is there; then `sudo chown root:root {path} && sudo chmod 755 {path}`, or "
                "move it",
            )
        # The number of this process as /proc has it, which may be that of another namespace.
        yield Path("/proc", os.readlink("/proc/self"), "fd", str(handle))
    finally:
        os.close(handle)


def make_root_folder(host: Host, path: str) -> None:
    """Create the folder, or raise SetupError, as ``root_folder`` does."""
    with root_folder(host, path):
        pass
