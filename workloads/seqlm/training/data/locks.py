"""File locks, by which one command at a time writes a file or folder, and the cache folder for them."""

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
"""Environment variable: seconds to wait for a lock that the last start of a job may still hold. Default 0."""

_LOCAL_FILE_SYSTEMS = {"ext4", "xfs", "btrfs", "zfs", "overlay", "tmpfs"}


def try_lock(target: Path) -> IO[str] | None:
    """Return the lock of ``target``, or None if another process holds it.

    The caller closes the lock. The kernel releases it when the process ends, however it ends. A file system
    without locks (Lustre mounted without flock) protects nothing: every process gets the lock.

    Args:
        target: file or folder to be written. The folder that contains it is created.

    Raises:
        OSError: if that folder cannot be created, or the lock cannot be.
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
    """Return the lock of ``target``, or None if others hold it for longer than ``PATIENCE`` says.

    Raises:
        ValueError: if the folder of ``target`` cannot be written.
    """
    deadline = time.monotonic() + float(os.environ.get(PATIENCE, "0"))
    try:
        while (lock := try_lock(target)) is None and time.monotonic() < deadline:
            time.sleep(0.5)
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        raise ValueError(
            f"{target.parent} cannot be written: {error.strerror}; name a folder of yours"
        ) from None
    return lock


def cache_folder() -> Path:
    """Return the folder for what this user's commands keep on this machine. It need not exist."""
    folder = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(folder):  # the XDG Base Directory Specification has relative paths ignored
        folder = os.path.expanduser("~/.cache")
    return Path(folder, "hyperpod-esm2")


def _lock_path(target: Path) -> Path:
    """Return the path of the lock file, which is the same for every process that may write ``target``.

    The lock file is in the cache folder if these conditions hold:

    - The folder of the target belongs to this user, and no other user may write there.
    - It is on a local file system.
    - The cache folder is on the same file system.

    Otherwise the lock file is in ``.locks`` beside the target. Other nodes, containers and users may each
    have a cache folder of their own, so they would not see a lock in this one.

    A lock file is empty and stays. To delete it would let two processes lock two files of the same name.
    """
    beside = target.parent / ".locks" / target.name
    folder = cache_folder() / "locks"
    about = target.parent.stat()
    group_is_other = about.st_mode & 0o020 and about.st_gid != os.getegid()
    if about.st_uid != os.geteuid() or about.st_mode & 0o002 or group_is_other or not _is_local(about.st_dev):
        return beside
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return beside
    if folder.stat().st_dev != about.st_dev or not os.access(folder, os.W_OK):
        return beside
    return folder / hashlib.blake2b(os.path.realpath(target).encode(), digest_size=16).hexdigest()


def _is_local(device: int) -> bool:
    """Return whether the file system is known to be local; never on a system without /proc."""
    mounts, number = Path("/proc/self/mountinfo"), f"{os.major(device)}:{os.minor(device)}"
    lines = [line.split() for line in mounts.read_text().splitlines()] if mounts.exists() else []
    return any(line[2] == number and line[line.index("-") + 1] in _LOCAL_FILE_SYSTEMS for line in lines)
