"""File locks, so that one command at a time writes a file or folder, and the user's cache folder."""

import fcntl
import hashlib
import logging
import os
import tempfile
import time
from pathlib import Path
from typing import IO

log = logging.getLogger(__name__)

PATIENCE = "ESM2_LOCK_SECONDS"
"""Environment variable with the seconds to wait for a lock that a job's last start may hold; default 0."""
POLL_SECONDS = 0.5
"""Time between two attempts to get a lock."""
_LOCAL_FILE_SYSTEMS = {"ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs"}
"""Types of file systems that one machine alone mounts."""


def try_lock(target: Path) -> IO[str] | None:
    """Return the lock of ``target``, or None if another process holds it.

    The caller closes the lock. The kernel releases it when the process ends, in any way. On a file system
    without locks, such as Lustre mounted without flock, every process gets the lock.

    Args:
        target: file or folder to write; the folder that contains it is created.

    Raises:
        OSError: if this folder or the lock cannot be created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    path = _lock_path(target)
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    except OSError as error:
        log.info("%s: no file lock on this file system (%s)", path, error.strerror)
    return lock


def lock_when_free(target: Path) -> IO[str] | None:
    """Return the lock of ``target``, or None if another process holds it for longer than ``PATIENCE``.

    Raises:
        ValueError: if the folder of ``target`` cannot be written.
    """
    deadline = time.monotonic() + float(os.environ.get(PATIENCE, "0"))
    try:
        lock = try_lock(target)
        while lock is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
            lock = try_lock(target)
        # A lock in the cache folder does not show whether the folder of the target can be written.
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise ValueError(
            f"{target.parent} cannot be written: {error.strerror}; name a folder of yours"
        ) from None
    return lock


def cache_folder() -> Path:
    """Return this user's cache folder on this machine. It need not exist."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG Base Directory Specification ignores relative paths
        folder = os.path.expanduser("~/.cache")
    return Path(folder, "hyperpod-esm2")


def _lock_path(target: Path) -> Path:
    """Return the path of the lock file, which is the same for every process that may write ``target``.

    The lock file is in the cache folder if these conditions hold:

    - The folder of the target belongs to this user, and no other user may write there.
    - It is on a local file system.
    - The cache folder is on the same file system.

    Otherwise the lock file is in ``.locks`` beside the target, because other nodes, containers and users may
    have cache folders of their own.

    A lock file is empty and is never deleted. Otherwise two processes could lock two files of the same name.
    """
    beside = target.parent / ".locks" / target.name
    folder = cache_folder() / "locks"
    about = target.parent.stat()
    is_own = about.st_uid == os.geteuid()
    others_may_write = about.st_mode & 0o002
    group_may_write = about.st_mode & 0o020 and about.st_gid != os.getegid()
    if not is_own or others_may_write or group_may_write or not _is_local(about.st_dev):
        return beside
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return beside
    if folder.stat().st_dev != about.st_dev or not os.access(folder, os.W_OK):
        return beside
    return folder / hashlib.blake2b(os.path.realpath(target).encode(), digest_size=16).hexdigest()


def _is_local(device: int) -> bool:
    """Return whether the file system of a device is known to be local. Without /proc, none is."""
    mounts = Path("/proc/self/mountinfo")
    if not mounts.exists():
        return False
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in mounts.read_text().splitlines():
        fields = line.split()
        if fields[2] == number and fields[fields.index("-") + 1] in _LOCAL_FILE_SYSTEMS:
            return True
    return False
