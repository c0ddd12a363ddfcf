"""Time limit of Python code that may not end, such as the template of a model folder."""

import contextlib
import signal
import threading
from collections.abc import Iterator
from types import FrameType


@contextlib.contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Interrupt the block after some seconds. Only the main thread can be interrupted.

    A timer that runs already, such as one of a test, continues after the block.

    Raises:
        TimeoutError: within the block, if it takes longer.
    """

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"not finished within {seconds:g} s")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handler = signal.signal(signal.SIGALRM, interrupt)
    remaining, interval = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, remaining, interval)
        signal.signal(signal.SIGALRM, handler)
