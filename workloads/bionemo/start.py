"""Train by BioNeMo on this machine (``seqlm train-bionemo``).

Needs BioNeMo's image; a process for each GPU.
"""

import sys

from workloads.launch.local import on_every_device
from workloads.run_file import RunFile

from .command import unsupported
from .installed import require


def main(config: RunFile) -> None:
    """Prepare, export, then train; the exit status is that of the processes.

    Raises:
        RunError: if BioNeMo is not installed.
        ValueError: for what can be known to be wrong before processes start.
    """
    from . import data  # imports pyarrow

    require()
    if problems := unsupported(config):
        raise ValueError("BioNeMo cannot train this run:\n" + "\n".join(f"  {line}" for line in problems))
    data.main(config)
    program = ["workloads.bionemo.train", *sys.argv[2:]]
    raise SystemExit(on_every_device(f"training {config.name} by BioNeMo", program))
