"""``python -m workloads.esm2.data --config RUN.yaml [section.field=value ...]``: prepare a run's data."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from workloads.esm2.config import load_config
from workloads.esm2.data.prepare import prepare
from workloads.esm2.data.sources import fetch


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m workloads.esm2.data", description=__doc__)
    parser.add_argument("--config", required=True, help="run configuration")
    parser.add_argument("overrides", nargs="*", metavar="section.field=value")
    parsed = parser.parse_args(arguments)
    data = load_config(parsed.config, parsed.overrides).data
    downloads = Path(data.downloads)
    if data.members and data.membership is None:
        raise ValueError(
            "data.members is given without data.membership; give the table of the members' clusters"
        )

    def fetched(locations: tuple[str, ...]) -> tuple[list[Path], list[str]]:
        """Local files, and for each the name that the manifest gets."""
        files, names = [], []
        for location in locations:
            found = fetch(location, downloads)
            files += found
            names += [location] if len(found) == 1 else [f"{location}/{path.name}" for path in found]
        return files, names

    files, names = fetched(data.members or data.source)
    membership = None
    if data.members and data.membership is not None:
        (membership, *others), table_names = fetched((data.membership,))
        if others:
            raise ValueError(f"data.membership: {data.membership} is {len(others) + 1} files; give one table")
        names += table_names
    manifest = prepare(
        [] if data.members else files,
        Path(data.path),
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        members=files if data.members else (),
        membership=membership,
        source_names=names,
    )
    for name, split in manifest.splits.items():
        counts = f"{split.records:>12,} proteins {split.residues:>15,} residues"
        print(f"{name:10} {counts} {len(split.shards):>5} shards")


if __name__ == "__main__":
    try:
        main()
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        sys.exit(2)
