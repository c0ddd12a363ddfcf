"""``torchrun ... -m workloads.esm2.network.check``: add up known numbers over all processes, within seconds.

Ends with 0, or with a message of what went wrong.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import NoReturn

import torch

from ..command_line import tell
from ..parallel import Processes, processes
from .all_reduce import Point, WrongSum, measure, new_buffer, verified_all_reduce
from .nccl_log import NcclLog

SECONDS = 45.0
"""From the import of torch to the end. Hundreds of GPUs need some 10 of them to find each other."""
COLLECTIVE_SHARE = {"cpu": 2 / 3, "cuda": 2.0}
"""Bound of a single collective. gloo then says what it waited for. torch ends a process that waits for NCCL
without a word, so there the bound of all comes first."""
SMALL_BYTES = 4 << 10
"""NCCL sends small and large messages by different protocols."""
LARGE_BYTES = {"cuda": 64 << 20, "cpu": 1 << 20}
FAILED = 1


def check(here: Processes) -> Point:
    """Add up a small and a large buffer; how long the large one took.

    Raises:
        WrongSum: if something else came out.
        RuntimeError: if processes could not exchange data; from torch.
    """
    verified_all_reduce(new_buffer(SMALL_BYTES, here), here)
    large = new_buffer(LARGE_BYTES[here.device.type], here)
    verified_all_reduce(large, here)
    return measure(large, here)


def main(seconds: float = SECONDS) -> None:
    log = NcclLog()
    share = COLLECTIVE_SHARE["cuda" if torch.cuda.is_available() else "cpu"]
    with _deadline(seconds, log):
        try:
            with processes(timedelta(seconds=seconds * share)) as here:
                point = check(here)
                if here.is_first:
                    print(_told(point, log.network or "gloo"), flush=True)
        except WrongSum as error:
            _fail(str(error), log)
        except RuntimeError as error:
            _fail(f"all-reduce failed: {_first_line(error)}", log)


def _told(point: Point, network: str) -> str:
    return (
        f"all-reduce over {point.num_processes} process(es) is right: {point.size_bytes >> 20} MiB in "
        f"{point.seconds * 1e3:.3g} ms, network {network}"
    )


@contextmanager
def _deadline(seconds: float, log: NcclLog) -> Iterator[None]:
    """End the process if it takes longer: what hangs in NCCL's own code, no exception reaches."""
    timer = threading.Timer(seconds, lambda: _fail(f"all-reduce did not end within {seconds:g} s", log))
    timer.daemon = True
    timer.start()
    yield
    timer.cancel()


def _fail(message: str, log: NcclLog) -> NoReturn:
    tell("\n".join([message, *log.warnings()]))
    # At once: threads of the process group may wait for processes that never come.
    os._exit(FAILED)


def _first_line(error: Exception) -> str:
    return next(iter(str(error).splitlines()), type(error).__name__)


if __name__ == "__main__":
    main()
