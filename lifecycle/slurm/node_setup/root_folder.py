"""Root's folders on shared file systems, in which users cannot plant links."""

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from node_setup.failure import SetupError
from node_setup.host import Host


def is_roots(found: os.stat_result) -> bool:
    """Return whether a file or folder belongs to root and no one else can change it; False for a link."""
    is_plain = stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode)
    return is_plain and found.st_uid == os.geteuid() and not found.st_mode & 0o022


@contextmanager
def root_folder(host: Host, path: str) -> Iterator[Path]:
    """Open a folder that only root can change and all can enter, and create it if it is missing.

    The returned path leads to the open folder itself, also for commands that this process starts. Users who
    can write to the parent folder cannot redirect it by renaming or replacing the folder.

    Raises:
        SetupError: if the path is not a folder, or users can change it.
    """
    folder = host.path(path)
    folder.parent.mkdir(mode=0o755, parents=True, exist_ok=True)
    with suppress(FileExistsError):
        folder.mkdir(mode=0o755)
    # This opens an object of any type and does not wait for a pipe.
    handle = os.open(folder, os.O_PATH | os.O_NOFOLLOW)
    try:
        found = os.fstat(handle)
        if not stat.S_ISDIR(found.st_mode) or not is_roots(found):
            raise SetupError(
                f"{path} must be a folder of root's that no one else can write to, since root works in it: "
                f"it is {stat.filemode(found.st_mode)} of uid {found.st_uid}",
                f"look at it; then `sudo chown root:root {path} && sudo chmod 755 {path}`, or move it",
            )
        # /proc may belong to another process namespace, where this process has another number.
        yield Path("/proc", os.readlink("/proc/self"), "fd", str(handle))
    finally:
        os.close(handle)


def make_root_folder(host: Host, path: str) -> None:
    """Create the folder, or raise SetupError, as ``root_folder`` does."""
    with root_folder(host, path):
        pass
