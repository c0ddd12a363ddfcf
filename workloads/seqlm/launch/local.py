"""Processes of a stage on this machine: one for each GPU.

Without a GPU, two processes share the cores, so that a laptop runs the same distributed code as a cluster.
torchrun is called as a library, so that a run that fails ends with its own message.
"""

import os
import sys
import tempfile
import uuid
from collections.abc import Sequence
from pathlib import Path

from seqlm.training.command_line import ERROR_FILE, importing
from seqlm.training.tracking.console import lines_may_be_lost

from .job_file import SHUTDOWN_TIMEOUT_SECONDS

CPU_PROCESSES = 2
"""Processes on a machine without a GPU."""


def processes_and_threads() -> tuple[int, int]:
    """Return the number of processes for this machine, and the number of threads per process."""
    import torch

    cores = (
        len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    )
    processes = torch.cuda.device_count() or min(CPU_PROCESSES, cores)
    return processes, max(1, cores // processes)


def on_every_device(title: str, program: Sequence[str] = ()) -> int:
    """Run a module on every device, and return the status of the first process that failed.

    Args:
        title: title of the work, which is printed.
        program: module and its arguments; by default the subcommand of this process.
    """
    with importing():
        from .torchrun import elastic_config, run_processes

    processes, threads = processes_and_threads()
    with lines_may_be_lost(), tempfile.TemporaryDirectory(prefix="esm2-") as folder:
        print(f"{title}: processes {processes}, threads each {threads}", file=sys.stderr)
        message = Path(folder) / "message"
        os.environ[ERROR_FILE] = str(message)
        os.environ.setdefault("OMP_NUM_THREADS", str(threads))
        config = elastic_config(
            num_nodes=1,
            nproc_per_node=processes,
            run_id=uuid.uuid4().hex,
            rdzv_endpoint="localhost:0",
            shutdown_timeout=SHUTDOWN_TIMEOUT_SECONDS,
        )
        module = program or ["seqlm", *sys.argv[1:]]
        status = run_processes(config, ["-m", *module]).status
        if message.exists():
            print(message.read_text(), file=sys.stderr)
    return status
