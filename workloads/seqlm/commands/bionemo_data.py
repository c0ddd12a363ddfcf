"""Export a run's data for BioNeMo: ``python -m seqlm.commands.bionemo_data --config RUN.yaml [...]``.

The data are prepared as for the project's own trainer, and then exported. Several pods may run the command at
once: one does the work, and the others wait.
"""

from seqlm.bionemo.export import export_run, is_exported
from seqlm.commands.prepare import in_pod
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.training.data.waiting import once


def main(config: RunFile) -> None:
    """Export, or wait for another process that exports.

    Raises:
        ValueError: if the data cannot be prepared, or BioNeMo could not read them.
    """
    in_pod(config)
    once(
        lambda: is_exported(config),
        lambda: export_run(config),
        f"another pod exports {config.data.path}",
    )


if __name__ == "__main__":
    run_stage(main)
