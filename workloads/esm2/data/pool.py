"""Worker processes that end with their parent, and tasks whose results come back in order."""

from __future__ import annotations

import collections
import ctypes
import multiprocessing
import multiprocessing.connection
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import contextmanager
from typing import TypeVar

import pyarrow as pa

from workloads.esm2.command_line import RunError

_M_MMAP_THRESHOLD = -3  # malloc.h of glibc

Task = TypeVar("Task")
Result = TypeVar("Result")


class _InProcess(Executor):
    """Runs a task where it is submitted: no processes to start for a small input."""

    def submit(self, function, /, *arguments, **keywords):  # type: ignore[no-untyped-def]
        future: Future[object] = Future()
        future.set_result(function(*arguments, **keywords))
        return future


@contextmanager
def worker_pool(workers: int) -> Iterator[Executor]:
    """``workers`` processes, or this one for a single worker; queued tasks are dropped on an error."""
    if workers == 1:
        yield _InProcess()
        return
    # Forked from a server that has imported Arrow and numpy but runs no threads: workers share those
    # pages, which spawned ones would each load for themselves (about 60 MiB), and start in milliseconds.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["workloads.esm2.data.shards", "workloads.esm2.data.members"])
    pool = ProcessPoolExecutor(workers, mp_context=context, initializer=_prepare_worker)
    try:
        yield pool
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _prepare_worker() -> None:
    """Leave Ctrl-C to the parent, and end when the parent is gone (killed: it could not say so)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    # Allocators keep freed blocks for later, per process: over eight of them some 500 MiB. Have large ones
    # mapped and unmapped instead, by numpy and Python (through glibc) as well as by Arrow.
    pa.set_memory_pool(pa.system_memory_pool())
    if mallopt := getattr(ctypes.CDLL(None), "mallopt", None):
        mallopt(_M_MMAP_THRESHOLD, 1 << 20)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def watch() -> None:
        multiprocessing.connection.wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


def run_in_order(
    pool: Executor, function: Callable[[Task], Result], tasks: Iterable[Task], max_pending: int
) -> Iterator[Result]:
    """Results of ``function(task)`` in the order of the tasks, of which few are taken ahead.

    Order makes the error that is raised the first one of the input, whatever the timing.
    """
    pending: collections.deque[Future[Result]] = collections.deque()
    try:
        for task in tasks:
            pending.append(pool.submit(function, task))
            while len(pending) >= max_pending:
                yield pending.popleft().result()
        while pending:
            yield pending.popleft().result()
    except BrokenProcessPool:
        raise RunError(
            "a worker process was killed from outside, most often for lack of memory; "
            "free memory or give fewer workers, then run again"
        ) from None
