"""Add up known numbers over all processes: ``torchrun ... -m seqlm.launch.network.check``.

The exit status is 0, or 1 after a message about the failure.
"""

import threading
from datetime import timedelta

import torch

from seqlm.training.processes import Processes, processes

from .all_reduce import Point, measure, new_buffer, verified_all_reduce
from .nccl_log import NcclLog

SECONDS = {"cpu": 30.0, "cuda": 90.0}
"""Time limit from the import of torch to the end, by the type of the device. Usually the check takes seconds.
Hundreds of GPUs need time to connect, and to load kernels from a cold file system."""
COLLECTIVE_SHARE = {"cpu": 2 / 3, "cuda": 2.0}
"""Time limit of one collective, as a share of ``SECONDS``. With gloo it is reached first, and the error names
what gloo waited for. With NCCL, torch would end the process without a message, so ``SECONDS`` comes first."""
SMALL_BYTES = 4 << 10
"""Size of the small buffer. NCCL sends small and large messages by different protocols."""
LARGE_BYTES = {"cuda": 64 << 20, "cpu": 1 << 20}
"""Size of the large buffer, by the type of the device."""


def check(here: Processes) -> Point:
    """Add up a small and a large buffer, and time the large one.

    Raises:
        WrongSum: if a sum is wrong.
        RuntimeError: from torch, if the processes cannot exchange data.
    """
    verified_all_reduce(new_buffer(SMALL_BYTES, here), here)
    large = new_buffer(LARGE_BYTES[here.device.type], here)
    verified_all_reduce(large, here)
    return measure(large, here)


def main(seconds: float | None = None) -> None:
    """Run the check.

    Args:
        seconds: time limit; by default that of the device.
    """
    log = NcclLog()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    seconds = seconds or SECONDS[device]
    # No exception reaches code that hangs in NCCL, so a timer ends the process.
    timer = threading.Timer(
        seconds, lambda: log.fail(f"all-reduce did not end within {seconds:g} s")
    )
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
