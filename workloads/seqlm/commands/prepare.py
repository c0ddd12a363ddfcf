"""Prepare a run's data: ``seqlm data``, and in pods ``python -m seqlm.commands.prepare --config RUN.yaml``.

Every pod of a training job runs the second one before the training. The first pod fetches and prepares
missing data, and the others wait. Data that are already prepared are used without their sources, which may be
gone when a job starts again.
"""

from seqlm.commands import kinds
from seqlm.runs.run_file import RunFile, run_stage
from seqlm.training.data.waiting import once


def main(config: RunFile) -> None:
    """Prepare the data and print the size of each split."""
    kind = kinds.kind_of(config)
    for name, split in kinds.prepare(config).splits.items():
        counts = f"{split.records:>12,} {kind.records} {split.residues:>15,} {kind.tokens}"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")


def in_pod(config: RunFile) -> None:
    """Return when the data are prepared. There is no time limit, because downloads can be slow.

    Raises:
        ValueError: if the data cannot be fetched or prepared, or the folder holds other data.
    """
    once(
        lambda: kinds.kind_of(config).is_prepared(config),
        lambda: kinds.prepare(config),
        f"another pod prepares {config.data.path}",
    )


if __name__ == "__main__":
    run_stage(in_pod)
