"""torchrun as a library: the processes of one machine, and what they ended with."""

import logging
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from types import FrameType
from typing import Any

from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.api import PContext, SignalException
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from .python_path import hand_on_python_path

_OTHER_SIGNALS = "SIGINT,SIGHUP,SIGQUIT"
"""Signals that torchrun handles itself; by default it handles SIGTERM, too."""
_FIELDS = {field.name for field in fields(LaunchConfig)}
_HAS_SIGNALS = "signals_to_handle" in _FIELDS


def elastic_config(*, num_nodes: int, shutdown_timeout: int, **values: Any) -> LaunchConfig:
    """A ``LaunchConfig`` of nodes that meet by c10d, whose processes are not started again.

    Releases of torch without a time for the shutdown in it, as 2.8 and 2.9, get it otherwise.
    """
    known: dict[str, Any] = {"shutdown_timeout": shutdown_timeout} if "shutdown_timeout" in _FIELDS else {}
    if not known:
        PContext.close.__defaults__ = (None, shutdown_timeout)
    known |= {"min_nodes": num_nodes, "max_nodes": num_nodes, "rdzv_backend": "c10d", "max_restarts": 0}
    return LaunchConfig(**known, **values)


@dataclass(frozen=True)
class Ending:
    status: int
    """Exit status of the process that failed first, 128 + the number of a signal, or 0."""
    rank: int | None = None
    seconds: float = 0.0
    """Time of the failure, in seconds since 1970."""


def run_processes(config: LaunchConfig, arguments: Sequence[str]) -> Ending:
    """Start ``python -u ARGUMENTS`` in each process and wait for them."""
    hand_on_python_path()
    # The agent's own account of a failure is a page for each process; ours is the message.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if _HAS_SIGNALS:
        config = replace(config, signals_to_handle=_OTHER_SIGNALS)
    else:
        # It takes SIGTERM itself, and at the next one leaves off waiting.
        api._terminate_process_handler = _stop
    try:
        # The processes end at the first SIGTERM, and it is ignored from then on: torchrun would leave them
        # while they save at the third one, and supervisors repeat it.
        try:
            signal.signal(signal.SIGTERM, _stop)
            elastic_launch(config, sys.executable)("-u", *arguments)
        finally:
            # All processes have ended. Their results are still to be reported.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
    except ChildFailedError as error:
        rank, first = error.get_first_failure()
        status = first.exitcode if first.exitcode > 0 else 128 - first.exitcode
        return Ending(status, rank, float(first.timestamp))
    except SignalException as error:
        return Ending(128 + error.sigval, None, time.time())
    return Ending(0)


def _stop(signum: int, frame: FrameType | None) -> None:
    signal.signal(signum, signal.SIG_IGN)
    raise SignalException(f"got signal {signum}", signal.Signals(signum))
