"""Waiting for something that another process does."""

from __future__ import annotations

import time
from collections.abc import Callable


def wait_until(
    is_so: Callable[[], object], what: str, *, seconds: float, pause_seconds: float = 0.1
) -> None:
    """Ask again and again until it is so.

    Asking a machine starts programs there, on cores that are short: pause longer where it takes long anyway.

    Raises:
        TimeoutError: if it was not within ``seconds``; the message says what was waited for.
    """
    deadline = time.monotonic() + seconds
    while not is_so():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {seconds:.0f} s in vain for {what}")
        time.sleep(pause_seconds)
