"""Prepare a run's data: ``python -m workloads.prepare --config RUN.yaml [section.field=value ...]``."""

from __future__ import annotations

from workloads import families
from workloads.run_file import RunFile, run_stage


def main(config: RunFile) -> None:
    family = families.family_of(config)
    for name, split in families.prepare(config).splits.items():
        counts = f"{split.records:>12,} {family.records} {split.residues:>15,} {family.tokens}"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")


if __name__ == "__main__":
    run_stage(main)
