"""Convert FASTA files to a folder of shuffled, deduplicated, split Arrow shards.

Three stages, each spread over processes: scatter (parse blocks into sorted runs on disk), join (with
cluster members only: find each one's cluster), gather (one shard per range of the hash). The order
of the result is that of a seeded hash of the sequence (of the cluster), so it is the same whatever
the number of processes and the order of files and records.
"""

import dataclasses
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

from seqlm.proteins.alphabet import TOKENS
from seqlm.runs.run_file import RunFile
from seqlm.training.config import DataConfig
from seqlm.training.data.limits import Limits, default_workers
from seqlm.training.data.manifest import MANIFEST_FILE, SPLITS, Manifest, Settings, Split
from seqlm.training.data.source_file import GZIP_MAGIC, reading
from seqlm.training.data.spill import cell_ranges
from seqlm.training.data.split_shards import split_of
from seqlm.training.data.transfer import SourceKind, fetch, local_files
from seqlm.training.data.workspace import check_free_space, existing_manifest, say, workspace
from seqlm.training.report.page import size_text

from .job import Job, Plan, Spilled, worker_pool
from .scatter import check_ids, join_members, scatter_fasta, scatter_table
from .shards import RECORDS_FILE, SplitShard, save_runs, write_shard
from .similarity import similar_across_splits, similarity_warning
from .sources import PROTEINS

# Text over gzip bytes: UniRef50 has 2.2, files without its repetitive headers 1.7.
GZIP_RATIO = 2.5
# Runs and shards each take about as many bytes as the text; joining members keeps them twice for a while.
DISK_PER_TEXT = 2.2
DISK_PER_MEMBER_TEXT = 3.2


def prepare_proteins(config: RunFile) -> Manifest:
    """Fetch and prepare the proteins of a pre-training run, and those of its guard."""
    if config.guard:
        general = dataclasses.replace(DataConfig(), path=config.guard.path)
        prepare_proteins(dataclasses.replace(config, data=general, guard=None))
    data, downloads = config.data, Path(config.data.downloads)
    paths, names = _fetched(data.members or data.source, downloads)
    names += [data.membership] if data.membership is not None else []
    return prepare(
        paths,
        Path(data.path),
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        membership=one_file("data.membership", data.membership, downloads, PROTEINS),
        allow_nucleotides=data.allow_nucleotides,
        source_names=names,
    )


def one_file(field: str, location: str | None, downloads: Path, kind: SourceKind) -> Path | None:
    """Fetch a table that is a single file; raise ValueError if it is several."""
    if location is None:
        return None
    path, *others = fetch(location, downloads, kind)
    if others:
        raise ValueError(f"{field}: {location} is {len(others) + 1} files; give one table")
    return path


def is_prepared(config: RunFile) -> bool:
    """Return whether prepared data exist that have the sources and the settings of the run file."""
    data, folder = config.data, Path(config.data.path)
    if not (folder / MANIFEST_FILE).exists():
        return False
    manifest = Manifest.load(folder)
    wanted = Settings(data.seed, data.validation_fraction, data.test_fraction, members=bool(data.members))
    locations = set(_locations(data))
    # A file of a folder is called <folder>/<file> there.
    made_of = {
        source.name if source.name in locations else source.name.rpartition("/")[0]
        for source in manifest.sources
    }
    return manifest.settings == wanted and made_of == locations


def paths_read(config: RunFile) -> list[str]:
    """Files and folders that preparing the proteins reads, besides what is fetched or the code brings."""
    return local_files(_locations(config.data), PROTEINS)


def _locations(data: DataConfig) -> list[str]:
    return [*(data.members or data.source), *([data.membership] if data.membership else [])]


def _fetched(locations: Iterable[str], downloads: Path) -> tuple[list[Path], list[str]]:
    """Local files, and for each its name in the manifest: as configured, with the file's own in a folder."""
    files, names = [], []
    for location in locations:
        found = fetch(location, downloads, PROTEINS)
        files += found
        names += [location] if len(found) == 1 else [f"{location}/{path.name}" for path in found]
    return files, names


def prepare(
    paths: Sequence[Path],
    out: Path,
    *,
    seed: int,
    validation_fraction: float,
    test_fraction: float,
    membership: Path | None = None,
    allow_nucleotides: bool = False,
    workers: int | None = None,
    progress: bool = True,
    source_names: Sequence[str] | None = None,
    limits: Limits | None = None,
) -> Manifest:
    """Prepare FASTA files for training, or return at once if ``out`` already holds the result.

    Args:
        paths: existing FASTA files, plain or gzip.
        out: folder to make; appears whole or not at all.
        seed: of the shuffle; splits do not depend on it.
        validation_fraction: share of clusters (without members: of records) held out.
        test_fraction: likewise, for the final test.
        membership: table of clusters, whose members the proteins are; None: each stands for itself.
        allow_nucleotides: take DNA and RNA for proteins.
        workers: processes; by default one per core, up to 8.
        progress: bars and messages on stderr.
        source_names: of the files read (FASTA, then the table) in the manifest; by default the file names.
        limits: sizes that bound memory, by default chosen for the number of workers.

    Raises:
        ValueError: for anything wrong with the input or the output folder; nothing is left behind.
    """
    files = [*paths, *([membership] if membership else [])]
    if len(set(files)) < len(files):
        twice = next(path for path in files if files.count(path) > 1)
        raise ValueError(f"{twice} is given twice; name each file once")
    tell: Callable[[str], object] = say if progress else (lambda text: None)
    names = list(source_names) if source_names is not None else [path.name for path in files]
    settings = Settings(seed, validation_fraction, test_fraction, members=membership is not None)
    manifest = existing_manifest(out, dict(zip(files, names, strict=True)), settings)
    if manifest is not None:
        tell(f"{out} is already prepared: {_summary(manifest)}")
        return manifest

    text_bytes = sum(_text_bytes(path) for path in files)
    needed_bytes = int(text_bytes * (DISK_PER_MEMBER_TEXT if membership else DISK_PER_TEXT))
    check_free_space(out, needed_bytes)
    tell(f"preparing {out}: needs about {size_text(needed_bytes)} of disk, temporary files included")
    workers = workers or default_workers()
    limits = limits or Limits.for_workers(workers)
    # A process is worth starting for a block of its own.
    workers = min(workers, int(text_bytes / limits.block_bytes) + 1)
    with workspace(out) as folder, worker_pool(workers) as pool, ExitStack() as bars:
        plan = Plan(folder, limits, settings, allow_nucleotides)
        job = Job(plan, pool, workers, progress, bars)
        plan.spill.mkdir()
        spilled = scatter_fasta(job, paths, names[: len(paths)])
        if membership:
            spilled = join_members(job, paths, spilled, scatter_table(job, membership, names[-1]))
        else:
            check_ids(job, paths, spilled)
        written, dropped = _gather(job, spilled)
        shutil.rmtree(plan.spill)
        splits = {name: _split([part for part in written if part.split == name]) for name in SPLITS}
        manifest = Manifest(
            sources=tuple(sorted(job.sources)),
            settings=settings,
            duplicates_dropped=spilled.duplicates_dropped + dropped,
            splits=splits,
            vocabulary=TOKENS,
            similar=similar_across_splits(folder, splits),
        )
        manifest.save(folder)
    tell(f"{out} is prepared: {_summary(manifest)}")
    for warning in [*spilled.implausible.warnings(), *similarity_warning(manifest)]:
        tell(warning)
    return manifest


def _text_bytes(path: Path) -> int:
    with reading(path), path.open("rb") as file:
        return int(path.stat().st_size * (GZIP_RATIO if file.read(2) == GZIP_MAGIC else 1))


def _summary(manifest: Manifest) -> str:
    return (
        f"{manifest.residues:,} residues in {manifest.records:,} proteins ({manifest.sizes}), "
        f"{manifest.duplicates_dropped:,} duplicates dropped"
    )


def _gather(job: Job, spilled: Spilled) -> tuple[list[SplitShard], int]:
    """Write the shards, each a range of the hash: consecutive in the shuffled order."""
    save_runs(spilled.runs, job.plan.spill / RECORDS_FILE)
    cells = cell_ranges(spilled.num_bytes // job.plan.limits.shard_bytes + 1)
    written: list[SplitShard] = []
    dropped = 0
    with job.bar("writing shards", len(cells), "shard") as bar:
        for shards, duplicates in job.run(write_shard, ((n, *bounds) for n, bounds in enumerate(cells))):
            written += shards
            dropped += duplicates
            bar.update()
    return written, dropped


def _split(parts: Sequence[SplitShard]) -> Split:
    lengths = sum((part.lengths for part in parts), Counter[int]())
    return split_of((part.shard for part in parts), sum(part.clusters for part in parts), lengths)
