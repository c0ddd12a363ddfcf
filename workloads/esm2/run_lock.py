"""One command at a time on what it writes: two would overwrite each other's checkpoints or parts."""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from .processes import Processes

PATIENCE = "ESM2_LOCK_SECONDS"
"""Environment variable: how long to wait for a lock that the last start of a job may still hold."""


@contextmanager
def exclusive(lock_file: Path, here: Processes, when_held: str) -> Iterator[None]:
    """Hold a lock; the kernel lets go of it when the process ends, however it ends.

    Args:
        lock_file: made if it is not there.
        here: this process; all of them call this.
        when_held: message for who finds the lock held.

    Raises:
        ValueError: on every process, if others hold the lock for longer than ``PATIENCE`` says; on the first
            one, if the lock's folder cannot be written.
    """
    lock = take(lock_file) if here.is_first else None
    if here.sum_on_host(here.is_first and lock is None)[0]:
        raise ValueError(when_held)
    yield
    if lock is not None:
        lock.close()


def take(lock_file: Path) -> IO[str] | None:
    """The lock, until it is closed; None if others hold it for longer than ``PATIENCE`` says.

    Raises:
        ValueError: if the lock's folder cannot be written.
    """
    try:
        lock_file.parent.mkdir(parents=True, exist_ok=True)
        lock = lock_file.open("w")
    except OSError as error:
        raise ValueError(
            f"{lock_file.parent} cannot be written: {error.strerror}; name a folder of yours"
        ) from None
    deadline = time.monotonic() + float(os.environ.get(PATIENCE, "0"))
    while _is_held(lock):
        if time.monotonic() >= deadline:
            lock.close()
            return None
        time.sleep(0.5)
    return lock


def _is_held(lock: IO[str]) -> bool:
    """Whether by somebody else; if not, it is ours from now on."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # a file system without locks (Lustre mounted without flock): nothing to go by
    return False
