"""Asked to stop: a flag that training reads between steps, and evaluation between packs."""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
"""SIGUSR1 is that of HyperPod's agent, before a job on Kubernetes goes on with another number of nodes
(hyperpod_elastic_agent 1.1.3, ``plr_hyperpod_elastic_agent.py``)."""
STOPPED_BY_SIGNAL = 143
"""Exit status after a graceful stop (128 + SIGTERM): not finished, to be started again."""


class Stopped(SystemExit):
    """One of the processes was asked to stop; raised on every process at the same place."""

    def __init__(self) -> None:
        super().__init__(STOPPED_BY_SIGNAL)


class StopSignal:
    """Whether this process was asked to stop, and by what."""

    def __init__(self) -> None:
        self.received = False
        self.name = "a signal to another process"

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.received = True
        self.name = signal.Signals(number).name
        if number == signal.SIGINT:
            # A second Ctrl-C ends the process at once; supervisors repeat SIGTERM, so that one waits.
            signal.signal(number, signal.SIG_DFL)


@contextmanager
def signals_to(stop: StopSignal) -> Iterator[None]:
    """Turn SIGTERM, SIGUSR1 and Ctrl-C into a flag."""
    before = {number: signal.signal(number, stop) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
