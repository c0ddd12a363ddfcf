"""One training at a time in a run's folder: two would overwrite each other's checkpoints."""

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
"""Environment variable: how long to wait for a folder that the last start of the run may still hold."""


@contextmanager
def exclusive(run_dir: Path, here: Processes) -> Iterator[None]:
    """Hold the folder while training; the kernel lets go of it when the process ends, however it ends.

    Raises:
        ValueError: on every process, if another run holds the folder for longer than ``PATIENCE`` says.
    """
    is_held = False
    if here.is_first:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / "lock").open("w")
        deadline = time.monotonic() + float(os.environ.get(PATIENCE, "0"))
        while (is_held := _is_held(lock)) and time.monotonic() < deadline:
            time.sleep(0.5)
    if here.sum_on_host(is_held)[0]:
        raise ValueError(
            f"{run_dir} is being trained by another process; wait for it, stop it (its workers too), "
            "or choose another 'name'"
        )
    yield
    if here.is_first:
        lock.close()


def _is_held(lock: IO[str]) -> bool:
    """Whether by somebody else; if not, it is ours from now on."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:
        pass  # a file system without locks (Lustre mounted without flock): nothing to go by
    return False
