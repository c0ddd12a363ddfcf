"""Exit of a launcher whose processes were stopped by a signal."""

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from torch.distributed.elastic.multiprocessing.api import SignalException


@contextmanager
def exit_after_signal() -> Iterator[None]:
    """Exit at once with 128 + the signal's number when a signal has stopped the launcher's processes.

    The processes have saved and ended by then, but the launcher's threads have not. Python would wait forever
    for those of HyperPod's agent. torch leaves the thread running that keeps its rendezvous alive. If this
    thread returns from the store while Python shuts down, it aborts the launcher (torch 2.13).
    """
    try:
        yield
    except SignalException as error:
        print(f"ended by signal {error.sigval}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(128 + error.sigval)
