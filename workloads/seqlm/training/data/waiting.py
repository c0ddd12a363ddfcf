"""Work that one of several processes does, in pods without a common process group."""

import time
from collections.abc import Callable

from .pauses import spread
from .transfer import BeingFetched
from .workspace import BeingPrepared

POLL_SECONDS = 5.0
"""Mean time between two looks."""


def once(is_done: Callable[[], bool], do: Callable[[], object], when_waiting: str) -> None:
    """Return when the work is done, by this process or by another one. There is no time limit.

    Args:
        is_done: function that returns whether the result exists.
        do: function that does the work, or raises ``BeingPrepared`` or
            ``BeingFetched`` if another process is doing it.
        when_waiting: message that is printed once if another process is doing it.
    """
    has_printed = False
    while not is_done():
        try:
            do()
            return
        except (BeingPrepared, BeingFetched):
            if not has_printed:
                print(when_waiting, flush=True)
                has_printed = True
            time.sleep(spread(POLL_SECONDS))
