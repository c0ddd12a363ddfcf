"""The proteins of a pre-training run: what its configuration names is fetched and prepared."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from workloads.run_file import RunFile
from workloads.training.data.manifest import MANIFEST_FILE, Manifest, Settings
from workloads.training.data.transfer import fetch, local_files

from .prepare import prepare
from .sources import PROTEINS


def prepare_proteins(config: RunFile) -> Manifest:
    """Fetch and prepare the proteins of a pre-training run."""
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
        Path(data.path),
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        allow_nucleotides=data.allow_nucleotides,
        members=files if data.members else (),
        membership=membership,
        source_names=names,
    )


def is_prepared(config: RunFile) -> bool:
    """Tell whether data are there that were made of what the run file names, in the way it says."""
    data, folder = config.data, Path(config.data.path)
    if not (folder / MANIFEST_FILE).exists():
        return False
    manifest = Manifest.load(folder)
    wanted = Settings(
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        members=bool(data.members),
    )
    locations = {*(data.members or data.source)}
    if data.members and data.membership:
        locations.add(data.membership)
    # A file of a folder is called <folder>/<file> there.
    made_of = {
        source.name if source.name in locations else source.name.rpartition("/")[0]
        for source in manifest.sources
    }
    return manifest.settings == wanted and made_of == locations


def paths_read(config: RunFile) -> list[str]:
    """Files and folders that preparing the proteins reads, besides what is fetched or the code brings."""
    data = config.data
    return local_files([*(data.members or data.source), data.membership], PROTEINS)


def _fetched(locations: Iterable[str], downloads: Path) -> tuple[list[Path], list[str]]:
    """Local files, and for each its name in the manifest: as configured, with the file's own in a folder."""
    files, names = [], []
    for location in locations:
        found = fetch(location, downloads, PROTEINS)
        files += found
        names += [location] if len(found) == 1 else [f"{location}/{path.name}" for path in found]
    return files, names
