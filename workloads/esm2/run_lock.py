"""One training at a time in a run's folder: two would overwrite each other's checkpoints."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from .parallel import Processes


@contextmanager
def exclusive(run_dir: Path, here: Processes) -> Iterator[None]:
    """Hold the folder while training; the kernel lets go of it when the process ends, however it ends.

    Raises:
        ValueError: on every process, if another run holds the folder.
    """
    is_held = False
    if here.is_first:
        run_dir.mkdir(parents=True, exist_ok=True)
        lock = (run_dir / "lock").open("w")
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            is_held = True
        except OSError:
            pass  # a file system without locks (Lustre mounted without flock): nothing to go by
    if here.sum_on_host(is_held)[0]:
        raise ValueError(
            f"{run_dir} is being trained by another process; wait for it, stop it (its workers too), "
            "or choose another 'name'"
        )
    yield
    if here.is_first:
        lock.close()
