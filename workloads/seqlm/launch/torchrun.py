"""torchrun as a library: runs the processes of one machine and returns how they ended."""

import contextlib
import logging
import os
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from functools import partial
from types import FrameType
from typing import Any
from unittest import mock

from torch.distributed.elastic.agent.server.api import RunResult, WorkerGroup
from torch.distributed.elastic.agent.server.local_elastic_agent import LocalElasticAgent
from torch.distributed.elastic.multiprocessing import api
from torch.distributed.elastic.multiprocessing.api import (
    PContext,
    SignalException,
    SubprocessContext,
)
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler
from torch.distributed.elastic.rendezvous import dynamic_rendezvous
from torch.distributed.elastic.rendezvous.utils import _delay
from torch.distributed.launcher import api as launcher
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from seqlm.training.command_line import LAUNCHER
from seqlm.training.data.open_files import needed_files, raise_limit

from .forked_processes import ForkingHandler, Template
from .python_path import hand_on_python_path

_OTHER_SIGNALS = "SIGINT,SIGHUP,SIGQUIT"
"""Signals that torchrun handles itself; by default it handles SIGTERM, too."""
_FIELDS = {field.name for field in fields(LaunchConfig)}
"""Settings of the installed release of torch."""
_HAS_SIGNALS = "signals_to_handle" in _FIELDS
_OWN_STORE = "TORCH_DISABLE_SHARE_RDZV_TCP_STORE"
"""Variable with which processes meet at a new store after each restart. The store of the agents would
give them the addresses of ended processes (torch 2.13)."""
_POLL_SECONDS_PER_NODE = 0.01
"""Time between two looks of an agent at whether all have met, per node, so that a store answers a hundred of
them a second."""
_LEAST_POLL_SECONDS = 0.2
"""Least time between two looks. With torch's second, restarts in place of few nodes would take two seconds
longer (torch 2.13)."""
_MOST_POLL_SECONDS = 1.0
"""Most time between two looks, as torch has it."""
_MAX_RESTARTS = 1_000_000
"""Number of restarts in place, which a function limits instead."""


def elastic_config(*, num_nodes: int, shutdown_timeout: int, **values: Any) -> LaunchConfig:
    """Return a ``LaunchConfig`` of nodes that meet by c10d and do not restart their processes.

    Args:
        num_nodes: number of nodes.
        shutdown_timeout: seconds from SIGTERM to SIGKILL.
        values: further fields of ``LaunchConfig``.
    """
    if "shutdown_timeout" in _FIELDS:
        values["shutdown_timeout"] = shutdown_timeout
    else:
        # torch 2.8 and 2.9 have no such field.
        PContext.close.__defaults__ = (None, shutdown_timeout)
    return LaunchConfig(
        min_nodes=num_nodes, max_nodes=num_nodes, rdzv_backend="c10d", max_restarts=0, **values
    )


@dataclass(frozen=True)
class Ending:
    """End of the processes of one machine."""

    status: int
    """Exit status of the process that failed first, 128 + the number of a signal, or 0."""
    rank: int | None = None
    """Rank of that process; None if no process failed by itself."""
    seconds: float = 0.0
    """Time of the failure, in seconds since 1970."""


@dataclass(frozen=True)
class Restarts:
    """Functions that decide when the processes of all machines start again in place."""

    may_restart: Callable[[Ending], bool]
    """Returns whether they start again; called once for each failure on this machine."""
    began: Callable[[], None]
    """Called on each machine when they start again."""


def run_processes(
    config: LaunchConfig, arguments: Sequence[str], restarts: Restarts | None = None
) -> Ending:
    """Start ``python -u ARGUMENTS`` in each process and wait for them.

    Args:
        config: settings of torchrun.
        arguments: arguments of Python.
        restarts: decision about restarts in place, for which a template forks the processes; None never
            restarts them.
    """
    if restarts is None:
        return _run_once(config, arguments)
    with (
        Template() as template,
        # torchrun has no option for another agent, or for other processes.
        mock.patch.object(
            launcher, "LocalElasticAgent", partial(_RestartingAgent, restarts=restarts)
        ),
        mock.patch.object(api, "get_subprocess_handler", partial(ForkingHandler, template)),
        _meeting_soon(config.max_nodes),
        mock.patch.dict(os.environ, {_OWN_STORE: "1"}),
    ):
        return _run_once(replace(config, max_restarts=_MAX_RESTARTS), arguments)


@contextlib.contextmanager
def _meeting_soon(num_nodes: int) -> Iterator[None]:
    """Let agents look more often at whether others wait for them, and at whether all have met.

    Args:
        num_nodes: number of the job's nodes.
    """
    # Besides its waits, torch answers for a second from what it saw last.
    holder = partial(
        dynamic_rendezvous._BackendRendezvousStateHolder,
        cache_duration=_poll_seconds(num_nodes),  # type: ignore[arg-type]  # torch subtracts it from a time
    )
    with (
        mock.patch.object(dynamic_rendezvous, "_delay", partial(_short_delay, num_nodes=num_nodes)),
        mock.patch.object(dynamic_rendezvous, "_BackendRendezvousStateHolder", holder),
    ):
        yield


def _poll_seconds(num_nodes: int) -> float:
    """Return the time between two looks of an agent."""
    seconds = max(_LEAST_POLL_SECONDS, num_nodes * _POLL_SECONDS_PER_NODE)
    return min(seconds, _MOST_POLL_SECONDS)


def _short_delay(seconds: float | tuple[float, float], *, num_nodes: int) -> None:
    """Wait as torch's function does, but less long between two checks of few nodes.

    Args:
        seconds: torch's time between two checks, or the range of its time before the first one.
        num_nodes: number of the job's nodes.
    """
    if not isinstance(seconds, tuple):
        seconds = min(seconds, _poll_seconds(num_nodes))
    _delay(seconds)


class _RestartingAgent(LocalElasticAgent):
    """Agent of torchrun that asks a function whether failed processes start again.

    The other agents notice that this one waits for them, and start their processes again, too.
    """

    def __init__(self, *arguments: Any, restarts: Restarts, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self._restarts = restarts

    def _monitor_workers(self, worker_group: WorkerGroup) -> RunResult:
        first = self._first_failure(worker_group)
        if first is not None:
            if self._restarts.may_restart(first):
                # They wait for the failed one, and would take long to end themselves.
                self._kill()
            else:
                self._remaining_restarts = 0
        return super()._monitor_workers(worker_group)

    def _restart_workers(self, worker_group: WorkerGroup) -> None:
        self._kill()
        self._restarts.began()
        super()._restart_workers(worker_group)

    def _first_failure(self, worker_group: WorkerGroup) -> Ending | None:
        for local_rank, handler in self._handlers().items():
            status = handler.proc.poll()
            if status:
                rank = worker_group.workers[local_rank].global_rank
                return Ending(status if status > 0 else 128 - status, rank, time.time())
        return None

    def _kill(self) -> None:
        for handler in self._handlers().values():
            if handler.proc.poll() is None:
                handler.proc.kill()

    def _handlers(self) -> dict[int, SubprocessHandler]:
        """Return the processes of this machine by local rank."""
        assert isinstance(self._pcontext, SubprocessContext)  # the entry point is a program
        return self._pcontext.subprocess_handlers


def _run_once(config: LaunchConfig, arguments: Sequence[str]) -> Ending:
    # On the first node, this process keeps a connection to each process of the job.
    raise_limit(needed_files(config.max_nodes * config.nproc_per_node))
    hand_on_python_path()
    os.environ[LAUNCHER] = str(os.getpid())
    # torchrun would print a page about each failed process; our processes report a message themselves.
    logging.getLogger("torch.distributed.elastic").setLevel(logging.CRITICAL)
    if _HAS_SIGNALS:
        config = replace(config, signals_to_handle=_OTHER_SIGNALS)
    else:
        # This torchrun handles SIGTERM itself, and would stop waiting at the second one.
        api._terminate_process_handler = _stop
    try:
        # The first SIGTERM ends the processes, and later ones are ignored: supervisors repeat the signal, and
        # at the third one torchrun would exit while the processes save.
        try:
            signal.signal(signal.SIGTERM, _stop)
            elastic_launch(config, sys.executable)("-u", *arguments)
        finally:
            # All processes have ended, but their results are not reported yet.
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            del os.environ[LAUNCHER]
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
