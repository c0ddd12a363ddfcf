"""Bounds of time and memory for Python code that may need any amount, such as the template of a model."""

import contextlib
import os
import resource
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

_REPEAT_SECONDS = 1.0
"""Time between two interruptions. Python ignores one that meets a destructor."""
_PAGES = Path("/proc/self/statm")
"""File of Linux with the size of this process in pages, which is its first number."""


class _OutOfTimeError(BaseException):
    """The time has passed. Code that handles each Exception, as Jinja does, lets it through."""


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds. Only the main thread can be interrupted.

    A timer that runs already, such as one of a test, continues after the block.

    Raises:
        TimeoutError: if the block takes longer.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise _OutOfTimeError

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, interrupt)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds, _REPEAT_SECONDS)
    try:
        try:
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except _OutOfTimeError:
        raise TimeoutError(f"not finished within {seconds:g} s") from None
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
        signal.signal(signal.SIGALRM, handler)


@contextlib.contextmanager
def memory_limit(num_bytes: int) -> Iterator[None]:
    """Let this process grow by at most so many bytes during the block. Only Linux can do this.

    Raises:
        MemoryError: within the block, if it takes more.
    """
    if not sys.platform.startswith("linux"):
        yield
        return
    size = int(_PAGES.read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    bound = size + num_bytes
    if soft != resource.RLIM_INFINITY:
        bound = min(bound, soft)
    resource.setrlimit(resource.RLIMIT_AS, (bound, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
