"""File locks, so that one command at a time writes a file or folder, and the user's cache folder.

The lock of ``folder/name`` is the file ``folder/.locks/name``. Every process that can write the target
reaches it: those of other users, of root, of containers, and of other nodes on a shared file system. A lock
file is empty. Its holder deletes it before the lock is released. A process that locks a file which has been
deleted meanwhile opens it again, so that two processes never hold two files of the same name.
"""

import contextlib
import errno
import fcntl
import hashlib
import logging
import os
import stat
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import NamedTuple

from .pauses import spread

log = logging.getLogger(__name__)

LOCKS_FOLDER = ".locks"
"""Folder with the lock files, beside the targets."""
PATIENCE = "ESM2_LOCK_SECONDS"
"""Environment variable with the seconds to wait for a lock that a job's last start may hold; default 0."""
POLL_SECONDS = 0.5
"""Mean time between two attempts to get a lock."""
_NOT_WRITABLE = {errno.EACCES, errno.EPERM, errno.EROFS}
"""Errors after which the lock is taken in the cache folder as well."""
_OPENS = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
"""Flags of lock files. Others may have planted a link or a pipe in a folder that they can write."""


class _OpenFile(NamedTuple):
    path: Path
    descriptor: int


class Lock:
    """Lock of one target. The kernel releases it when the process ends, in any way."""

    def __init__(self) -> None:
        self.files: list[Path] = []
        """Locked files. Usually it is one."""
        self._opened: list[_OpenFile] = []
        self._process = os.getpid()

    def add(self, file: Path, opened: Callable[[Path], int]) -> bool:
        """Lock another file; return whether no other process holds it.

        A file system without locks, such as Lustre mounted without flock, locks nothing.

        Args:
            file: path of the file.
            opened: function that opens the path and returns the descriptor.

        Raises:
            OSError: if the file cannot be opened.
        """
        while True:
            descriptor = opened(file)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(descriptor)
                return False
            except OSError as error:
                log.info("%s: no file lock on this file system (%s)", file, error.strerror)
                self._opened.append(_OpenFile(file, descriptor))
                return True
            if _is_file(file, descriptor):
                break
            os.close(descriptor)  # its last holder has deleted it meanwhile
        self._opened.append(_OpenFile(file, descriptor))
        self.files.append(file)
        return True

    def close(self) -> None:
        """Delete the files and release the lock. A second call has no effect.

        A forked process releases nothing, because its parent has the same lock.
        """
        while self._opened:
            file, descriptor = self._opened.pop()
            if os.getpid() == self._process and _is_file(file, descriptor):
                with contextlib.suppress(OSError):  # a file of another user stays
                    file.unlink()
            os.close(descriptor)
            if file.parent.name == LOCKS_FOLDER:
                with contextlib.suppress(OSError):  # it has other locks
                    file.parent.rmdir()

    def __enter__(self) -> "Lock":
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()


def is_held(target: Path) -> bool:
    """Return whether another process holds the lock of ``target``, as far as this machine can see.

    Without a lock file, nothing is opened or written. A file that a killed process left is locked for a
    moment, for readers.
    """
    path = target.parent / LOCKS_FOLDER / target.name
    try:
        descriptor = _readable(path)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # a file system without locks
        return False
    finally:
        os.close(descriptor)
    return False


def try_lock(target: Path) -> Lock | None:
    """Return the lock of ``target``, or None if another process holds it.

    The lock file is beside the target. If it cannot be written there, the existing one is locked as well as
    one in the cache folder, which excludes this user's other commands on this machine. The same holds on a
    file system without locks.

    Args:
        target: file or folder to write; the folder that contains it is created.

    Raises:
        OSError: if this folder or the lock cannot be created.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    lock = Lock()
    try:
        is_free = _add_all(lock, target)
    except BaseException:
        lock.close()
        raise
    if is_free:
        return lock
    lock.close()
    return None


def _add_all(lock: Lock, target: Path) -> bool:
    """Lock the files of a target; return whether no other process holds one of them."""
    path = target.parent / LOCKS_FOLDER / target.name
    problem: OSError | None = None
    try:
        if not lock.add(path, _created):
            return False
    except OSError as error:
        if error.errno not in _NOT_WRITABLE:
            raise
        problem = error
        with contextlib.suppress(OSError):  # there is no lock that this user can read
            if not lock.add(path, _readable):
                return False
    if problem is None and lock.files:
        return True
    try:
        return _add_in_cache(lock, target)
    except OSError as error:
        if lock.files:
            return True
        raise problem or error from None


def _is_file(path: Path, descriptor: int) -> bool:
    """Return whether a path leads to the open file. Opening makes a network file system look again."""
    try:
        found = os.open(path, os.O_RDONLY | _OPENS)
    except OSError:
        return False
    try:
        return os.path.sameopenfile(found, descriptor)
    finally:
        os.close(found)


def _readable(path: Path) -> int:
    """Open a lock of another user, which a reader can lock, too; return its descriptor."""
    return os.open(path, os.O_RDONLY | _OPENS)


def _add_in_cache(lock: Lock, target: Path) -> bool:
    """Lock a file of a target in the cache folder; return whether it was free."""
    place = os.path.join(os.path.realpath(target.parent), target.name)
    name = hashlib.blake2b(os.fsencode(place), digest_size=16).hexdigest()
    path = cache_folder() / "locks" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    return lock.add(path, lambda path: os.open(path, os.O_RDWR | os.O_CREAT | _OPENS, 0o600))


def _created(path: Path) -> int:
    """Open a lock file, which is created if it is missing; return its descriptor.

    The folders are created again if another holder, or a user, deletes them meanwhile.

    Users who may write the folder of the target may write the lock: folder and file have its owner and mode.

    Raises:
        OSError: if it cannot be created, or is a link.
    """
    while True:
        with contextlib.suppress(FileNotFoundError):
            return _created_once(path)
        path.parent.parent.mkdir(parents=True, exist_ok=True)


def _created_once(path: Path) -> int:
    about = path.parent.parent.stat()
    try:
        path.parent.mkdir()
    except FileExistsError:
        if path.parent.is_symlink():
            raise OSError(
                errno.ELOOP, "a link in place of the folder of locks", str(path.parent)
            ) from None
    else:
        _own_like(path.parent, about)
        path.parent.chmod(stat.S_IMODE(about.st_mode) | stat.S_IRWXU)
    mode = stat.S_IMODE(about.st_mode) & 0o666 | 0o600
    is_new = not path.exists()
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | _OPENS, mode)
    if is_new:
        _own_like(descriptor, about)
        os.fchmod(descriptor, mode)  # whatever the umask
    return descriptor


def _own_like(file: Path | int, about: os.stat_result) -> None:
    """Give a new file of root's the owner of the folder, who writes there as well."""
    if os.geteuid() == 0:
        os.chown(file, about.st_uid, about.st_gid)


def lock_when_free(target: Path) -> Lock | None:
    """Return the lock of ``target``, or None if another process holds it for longer than ``PATIENCE``.

    Raises:
        ValueError: if the folder of ``target`` cannot be written.
    """
    deadline = time.monotonic() + float(os.environ.get(PATIENCE, "0"))
    lock: Lock | None = None
    try:
        lock = try_lock(target)
        while lock is None and time.monotonic() < deadline:
            time.sleep(spread(POLL_SECONDS))
            lock = try_lock(target)
        # The lock does not show whether the folder of the target can be written.
        tempfile.TemporaryFile(dir=target.parent).close()
    except OSError as error:
        if lock is not None:
            lock.close()
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
