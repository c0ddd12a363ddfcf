"""A run's data for BioNeMo: ``python -m workloads.bionemo.data --config RUN.yaml [...]``.

Prepares them as for our trainer and exports the result. Several pods may run it at once: one works, the
others wait.
"""

from __future__ import annotations

from workloads.launch import pod_data
from workloads.training.command_line import run_command
from workloads.training.config import RunConfig

from .export import export_run, is_exported


def main(config: RunConfig) -> None:
    """Return when the export is there.

    Raises:
        ValueError: if the data cannot be had, or BioNeMo could not read them.
    """
    pod_data.main(config)
    pod_data.once(
        lambda: is_exported(config), lambda: export_run(config), f"another pod exports {config.data.path}"
    )


if __name__ == "__main__":
    run_command(main)
