"""Prepare a run's data: ``seqlm data``, and in pods ``python -m seqlm.commands.prepare --config RUN.yaml``.

Every pod of a training job runs the second one before the training. The first pod fetches and prepares
missing data, and the others wait. Data that are already prepared are used without their sources, which may be
gone when a job starts again.
"""

from seqlm.runs import kinds as run_kinds
from seqlm.runs.run_file import RunFile, run_stage


def main(config: RunFile) -> None:
    """Prepare the data and print the size of each split."""
    kind = run_kinds.kind_of(config)
    for name, split in run_kinds.prepare(config).splits.items():
        counts = f"{split.records:>12,} {kind.records} {split.residues:>15,} {kind.tokens}"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")


if __name__ == "__main__":
    run_stage(run_kinds.prepare_once)
