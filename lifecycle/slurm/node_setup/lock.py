"""Lock that allows one run at a time: the platform's and `make apply-lifecycle` may coincide on a node."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from node_setup.host import Host

LOCK = "/run/node-setup.lock"
SECONDS_FOR_OTHER_RUN = 1800
"""Time limit, longer than a run that waits for a mount and for Slurm."""


def open_lock(host: Host, path: str) -> TextIO:
    """Open a lock file for root alone, because any user who can read a file can lock it."""
    lock = host.path(path)
    lock.parent.mkdir(parents=True, exist_ok=True)
    file = open(lock, "a", opener=lambda name, flags: os.open(name, flags, mode=0o600))  # noqa: SIM115
    lock.chmod(0o600)
    return file


@contextmanager
def only_run(host: Host) -> Iterator[None]:
    """Hold the lock, which the system releases when the process ends.

    Raises:
        SetupError: if another run does not end in time.
    """
    with open_lock(host, LOCK) as file:
        host.wait_for(
            lambda: take(file),
            timeout_seconds=SECONDS_FOR_OTHER_RUN,
            what=f"another run of this script still holds {LOCK}",
            remedy=f"`fuser {LOCK}` shows its process: see in the log what it waits for",
        )
        yield


def take(file: TextIO) -> bool:
    """Lock the file, and return False if another process holds the lock."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
