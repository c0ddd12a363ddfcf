"""The data of a run: what its configuration names is fetched and prepared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workloads.esm2.finetune.prepare import TABLES, prepare_table
from workloads.training.config import RunConfig
from workloads.training.data.manifest import MANIFEST_FILE, Manifest
from workloads.training.data.transfer import SourceKind, fetch
from workloads.training.data.workspace import check_place

from .prepare import prepare
from .sources import PROTEINS


def prepare_run(config: RunConfig) -> Manifest:
    """Fetch and prepare the data that a run's configuration names."""
    out = Path(config.data.path)
    if not (out / MANIFEST_FILE).exists():
        check_place(out)  # before a download of hours
    if config.chat is not None:
        from workloads.causal_lm.prepare import prepare_chat  # brings torch

        return prepare_chat(config)
    if config.task is not None:
        return prepare_table(config)
    data = config.data
    downloads = Path(data.downloads)
    files, names = _fetched(data.members or data.source, downloads)
    membership = None
    if data.members and data.membership is not None:
        (membership, *others), table_names = _fetched([data.membership], downloads)
        if others:
            raise ValueError(f"data.membership: {data.membership} is {len(others) + 1} files; give one table")
        names += table_names
    return prepare(
        [] if data.members else files,
        out,
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        members=files if data.members else (),
        membership=membership,
        source_names=names,
    )


def paths_read(config: RunConfig) -> list[str]:
    """Files and folders that preparing a run's data reads, besides what it fetches or the code brings."""
    data, task = config.data, config.task
    if config.chat is not None:
        return local_files(config.chat.table, PROTEINS)
    if task is None:
        return local_files([*(data.members or data.source), data.membership], PROTEINS)
    return local_files([*task.table, task.labels, task.split.clusters], TABLES)


def local_files(locations: Iterable[str | None], kind: SourceKind) -> list[str]:
    """Select the locations that are neither an address nor a word for one."""
    return [
        location
        for location in locations
        if location and location != "sample" and location not in kind.addresses and "://" not in location
    ]


def _fetched(locations: Iterable[str], downloads: Path) -> tuple[list[Path], list[str]]:
    """Local files, and for each its name in the manifest: as configured, with the file's own in a folder."""
    files, names = [], []
    for location in locations:
        found = fetch(location, downloads, PROTEINS)
        files += found
        names += [location] if len(found) == 1 else [f"{location}/{path.name}" for path in found]
    return files, names
