"""A command of inference on this machine, one process a device; or one process of it, under torchrun."""

from __future__ import annotations

import os
from collections.abc import Callable

from ..command_line import run_command
from ..config import RunConfig
from ..heartbeat import beat
from ..launch.local import on_every_device
from ..processes import Processes, processes


def start(name: str, command: Callable[[RunConfig, Processes], None]) -> None:
    """Run the module ``workloads.esm2.inference.<name>``, which calls this when it is run as a program."""

    def main(config: RunConfig) -> None:
        if "RANK" not in os.environ:
            raise SystemExit(on_every_device(f"workloads.esm2.inference.{name}", f"{name} {config.name}"))
        beat("starting", slow=True)
        with processes() as here:
            command(config, here)

    run_command(main)
