"""Folder of a job in the memory of a node, for states that outlive a process. Standard library only.

``/dev/shm/seqlm-<user id>-<job>`` has mode 0700. A launcher creates it, holds its lock while the job's
processes run, and deletes it at the end. Slurm kills a launcher that takes too long to end, and its folder
stays. The next start of the same user on the node deletes such leftovers. Pods have other folders
(``seqlm.launch.pod_memory``).
"""

import contextlib
import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator
from pathlib import Path

MEMORY_FOLDER = "ESM2_MEMORY_FOLDER"
"""Environment variable with the folder of the job. Without it, no state is kept in memory."""
MEMORY_PROBLEM = "ESM2_MEMORY_PROBLEM"
"""Environment variable with the reason why a launcher could not create the folder."""
MANAGED_JOB = "ESM2_MANAGED_MEMORY_JOB"
"""Environment variable with the name of a job that keeps its states in HyperPod's managed tier instead."""
IN_MEMORY = Path("/dev/shm")
"""File system in memory."""
LEFTOVER_SECONDS = 1800
"""Age from which a folder without a lock is deleted. A job that starts again needs its folder sooner."""
STEP_PATTERN = "step-" + "[0-9]" * 8
"""Pattern of the folders of states."""
LOCK_FILE = "lock"
"""File in the folder whose lock its users hold."""


def path_of(job: str) -> Path:
    """Return the folder of a job of this user.

    Args:
        job: id of the job.
    """
    return IN_MEMORY / f"{_prefix()}{job}"


def _prefix() -> str:
    return f"seqlm-{os.geteuid()}-"


@contextlib.contextmanager
def held(folder: Path) -> Iterator[None]:
    """Create the folder, and hold its lock during the block, so that other jobs do not delete it.

    Raises:
        ValueError: if the folder is not a folder that only this user can read and write.
    """
    create_private(folder)
    with (folder / LOCK_FILE).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH)
        yield


def create_private(folder: Path) -> None:
    """Create a folder unless it exists.

    Raises:
        ValueError: if it exists and is not a folder that only this user can read and write.
    """
    folder.mkdir(mode=0o700, exist_ok=True)
    # Everybody may create files in /dev/shm, so somebody else may have created this one.
    found = folder.lstat()
    is_private = stat.S_ISDIR(found.st_mode) and not found.st_mode & 0o077
    if not is_private or found.st_uid != os.geteuid():
        raise ValueError(
            f"{folder}: expected a folder of user {os.geteuid()} with mode 700, got one of user "
            f"{found.st_uid} with mode {stat.S_IMODE(found.st_mode):o}; delete it"
        )


def newest_step(folder: Path) -> int:
    """Return the step of the newest state with a complete piece on this node; 0 without one."""
    steps = [0]
    for piece in folder.glob(f"{STEP_PATTERN}/*"):
        if "." not in piece.name:  # no longer being written
            steps.append(int(piece.parent.name.removeprefix("step-")))
    return max(steps)


def remove_leftovers() -> None:
    """Delete the folders of this user's ended jobs on this node.

    A folder that is locked, or was used a short time ago, belongs to a job that runs or starts again.
    """
    for folder in IN_MEMORY.glob(f"{_prefix()}*"):
        with contextlib.suppress(FileNotFoundError):
            if folder.lstat().st_uid == os.geteuid() and _is_leftover(folder):
                remove(folder)


def _is_leftover(folder: Path) -> bool:
    lock_path = folder / LOCK_FILE
    if time.time() - folder.lstat().st_mtime < LEFTOVER_SECONDS:
        return False
    if not lock_path.exists():
        return True
    with lock_path.open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True


def remove(folder: Path) -> None:
    """Delete the folder of a job. A missing one is no error."""
    if not folder.is_symlink():
        shutil.rmtree(folder, ignore_errors=True)
