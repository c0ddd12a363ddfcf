"""``python -m workloads.esm2.data --config RUN.yaml [section.field=value ...]``: prepare a run's data."""

from __future__ import annotations

from workloads.training.command_line import run_command
from workloads.training.config import RunConfig

from .run_data import prepare_run


def main(config: RunConfig) -> None:
    records, tokens = ("proteins", "residues") if config.chat is None else ("conversations", "tokens")
    for name, split in prepare_run(config).splits.items():
        counts = f"{split.records:>12,} {records} {split.residues:>15,} {tokens}"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")


if __name__ == "__main__":
    run_command(main)
