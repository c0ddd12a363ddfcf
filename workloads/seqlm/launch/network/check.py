"""``torchrun ... -m seqlm.launch.network.check``: add up known numbers over all processes.

Ends with 0, or with a message of what went wrong.
"""

import threading
from datetime import timedelta

import torch

from seqlm.training.processes import Processes, processes

from .all_reduce import Point, measure, new_buffer, verified_all_reduce
from .nccl_log import NcclLog

SECONDS = {"cpu": 30.0, "cuda": 90.0}
"""Time limit from the import of torch to the end. Usually it takes seconds. Hundreds of GPUs need time to
connect, and kernels to load from a cold file system."""
COLLECTIVE_SHARE = {"cpu": 2 / 3, "cuda": 2.0}
"""Bound of a single collective. gloo then says what it waited for. torch ends a process that waits for NCCL
without a word, so there the bound of all comes first."""
SMALL_BYTES = 4 << 10
"""NCCL sends small and large messages by different protocols."""
LARGE_BYTES = {"cuda": 64 << 20, "cpu": 1 << 20}


def check(here: Processes) -> Point:
    """Add up a small and a large buffer, and time the large one.

    Raises:
        WrongSum: if something else came out.
        RuntimeError: from torch, if processes could not exchange data.
    """
    verified_all_reduce(new_buffer(SMALL_BYTES, here), here)
    large = new_buffer(LARGE_BYTES[here.device.type], here)
    verified_all_reduce(large, here)
    return measure(large, here)


def main(seconds: float | None = None) -> None:
    log = NcclLog()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = seconds or SECONDS[device]
    # What hangs in NCCL's own code, no exception reaches: a timer ends the process.
    timer = threading.Timer(seconds, lambda: log.fail(f"all-reduce did not end within {seconds:g} s"))
    timer.daemon = True
    timer.start()
    try:
        with processes(timedelta(seconds=seconds * COLLECTIVE_SHARE[device])) as here:
            point = check(here)
            if here.is_first:
                print(
                    f"all-reduce over {point.num_processes} process(es) is right: {point.size_bytes >> 20} "
                    f"MiB in {point.seconds * 1e3:.3g} ms, network {log.network or 'gloo'}",
                    flush=True,
                )
    except RuntimeError as error:
        log.fail(error)
    timer.cancel()


if __name__ == "__main__":
    main()
