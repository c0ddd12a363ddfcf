"""Train by BioNeMo on this machine: ``python -m workloads.bionemo.start --config RUN.yaml [...]``.

Needs BioNeMo's image; a process for each GPU.
"""

from __future__ import annotations

from workloads.launch.local import on_every_device
from workloads.run_file import RunFile, run_stage

from . import data
from .command import unsupported
from .installed import require


def main(config: RunFile) -> None:
    """Prepare, export, then train; the exit status is that of the processes.

    Raises:
        RunError: if BioNeMo is not installed.
        ValueError: for what can be known to be wrong before processes start.
    """
    require()
    if problems := unsupported(config):
        raise ValueError("BioNeMo cannot train this run:\n" + "\n".join(f"  {line}" for line in problems))
    data.main(config)
    raise SystemExit(on_every_device("workloads.bionemo.train", f"training {config.name} by BioNeMo"))


if __name__ == "__main__":
    run_stage(main)
