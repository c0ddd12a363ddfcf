"""Prepare a run's data (``seqlm data``)."""

from workloads import run_kinds
from workloads.run_file import RunFile


def main(config: RunFile) -> None:
    kind = run_kinds.kind_of(config)
    for name, split in run_kinds.prepare(config).splits.items():
        counts = f"{split.records:>12,} {kind.records} {split.residues:>15,} {kind.tokens}"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")
