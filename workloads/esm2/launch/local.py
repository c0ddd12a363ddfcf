"""Train on the machine in front of you: prepare the data if need be, then one process a device.

``python -m workloads.esm2.launch.local --config RUN.yaml [section.field=value ...]``

Every GPU gets a process. Without one, two processes share the cores, so that a laptop runs the same
distributed code as a cluster.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import torch

from ..command_line import run_command
from ..config import RunConfig
from ..data.__main__ import prepare_run
from ..pretrained import starting_config
from ..tracking import RESULTS_FILE

CPU_PROCESSES = 2


def processes_and_threads() -> tuple[int, int]:
    """How many processes this machine gets, and threads for each."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    processes = torch.cuda.device_count() or min(CPU_PROCESSES, cores)
    return processes, max(1, cores // processes)


def main(config: RunConfig) -> None:
    """Prepare, then hand over to torchrun; its exit status is ours.

    Raises:
        ValueError: for what can be known to be wrong before processes start.
    """
    starting_config(config.model)
    prepare_run(config)
    processes, threads = processes_and_threads()
    shown = f"{processes} process{'es' if processes > 1 else ''}"
    print(f"training {config.name} on {shown} of {threads} threads each", file=sys.stderr)
    if (config.run_dir / RESULTS_FILE).exists():
        print(
            f"{config.run_dir} holds a finished run: it is scored again, and goes on only if "
            "train.max_steps grew. Choose another name= to start anew",
            file=sys.stderr,
        )
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={processes}", "-m", "workloads.esm2.train", *sys.argv[1:]]
    environment = {"OMP_NUM_THREADS": str(threads), **os.environ}
    with subprocess.Popen(command, env=environment) as torchrun:
        # Ctrl-C reaches torchrun by itself; a SIGTERM to this process has to be handed on.
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, lambda number, frame: torchrun.send_signal(number))
    raise SystemExit(torchrun.returncode)


if __name__ == "__main__":
    run_command(main)
