"""One of several pods prepares data, and the others wait."""

from __future__ import annotations

import time
from collections.abc import Callable

from workloads.training.data.transfer import BeingFetched
from workloads.training.data.workspace import BeingPrepared

POLL_SECONDS = 5.0


def once(is_done: Callable[[], bool], do: Callable[[], object], when_waiting: str) -> None:
    """Have one of several pods do it, and the others wait; ``when_waiting`` is said by these, once."""
    is_told = False
    while not is_done():
        try:
            do()
            return
        except (BeingPrepared, BeingFetched):
            if not is_told:
                print(when_waiting, flush=True)
            is_told = True
            time.sleep(POLL_SECONDS)
