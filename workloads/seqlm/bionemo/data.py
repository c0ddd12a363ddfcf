"""Export a run's data for BioNeMo: ``python -m seqlm.bionemo.data --config RUN.yaml [...]``.

Prepares them as for our trainer and exports the result. Several pods may run it at once: one works, the
others wait.
"""

from seqlm.runs.kinds import prepare_once
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.training.data.waiting import once

from .export import export_run, is_exported


def main(config: RunFile) -> None:
    """Export, or wait for another process that exports.

    Raises:
        ValueError: if the data cannot be had, or BioNeMo could not read them.
    """
    prepare_once(config)
    once(lambda: is_exported(config), lambda: export_run(config), f"another pod exports {config.data.path}")


if __name__ == "__main__":
    run_stage(main)
