"""Convert FASTA files and tables to a folder of shuffled, deduplicated, split Arrow shards.

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
from dataclasses import dataclass
from pathlib import Path

from seqlm.proteins.alphabet import TOKENS
from seqlm.proteins.reading.counts import Counts
from seqlm.proteins.reading.policies import Kind
from seqlm.runs.run_file import RunFile
from seqlm.training.config import DataConfig
from seqlm.training.data.limits import Limits, default_workers
from seqlm.training.data.manifest import (
    MANIFEST_FILE,
    MAX_REJECTED_SHARE,
    SPLITS,
    Manifest,
    Settings,
    Split,
)
from seqlm.training.data.spill import UInt64s, cell_ranges
from seqlm.training.data.split_shards import split_of
from seqlm.training.data.transfer import SourceKind, fetch, local_files
from seqlm.training.data.workspace import check_free_space, existing_manifest, say, workspace
from seqlm.training.report.page import size_text

from .collected_rejects import (
    REJECTS_FILE,
    Found,
    Rejects,
    refuse_many,
    refuse_unused,
)
from .disk import needed_disk, text_bytes_of
from .inputs import ProteinInput, inputs_of
from .job import Job, Plan, Spilled, worker_pool
from .repeated import Repeated, find_repeated, repeated_hashes
from .scatter import join_members, scatter_proteins, scatter_table
from .shards import RECORDS_FILE, SplitShard, save_runs, write_shard
from .similarity import similar_across_splits, similarity_warning
from .sources import PROTEINS, SOURCES, NamedColumns, ProteinFiles


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Settings of a preparation on which its result does not depend."""

    workers: int | None = None
    """Number of processes; by default one per core, up to 8."""
    limits: Limits | None = None
    """Sizes that bound memory; by default those for the number of workers. (The sizes of shards and batches
    shape the result; they differ in tests alone.)"""
    progress: bool = True
    """Whether progress bars and messages are printed on stderr."""


def prepare_proteins(config: RunFile) -> Manifest:
    """Fetch and prepare the proteins of a pre-training run, and those of its guard."""
    if config.guard:
        general = dataclasses.replace(DataConfig(), path=config.guard.path)
        prepare_proteins(dataclasses.replace(config, data=general, guard=None))
    data = config.data
    downloads = Path(data.downloads)
    proteins, names = _fetched(data.members or data.source, downloads)
    membership = one_file("data.membership", data.membership, downloads, PROTEINS)
    if data.membership is not None:
        names.append(data.membership)
    return prepare(
        ProteinFiles(
            proteins,
            membership,
            names,
            data.allow_nucleotides,
            NamedColumns(data.id_column, data.sequence_column),
        ),
        Path(data.path),
        seed=data.seed,
        validation_fraction=data.validation_fraction,
        test_fraction=data.test_fraction,
        max_rejected_share=data.max_rejected_share,
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
    """Return whether there are prepared data with the sources and settings of the run file."""
    data = config.data
    folder = Path(data.path)
    if not (folder / MANIFEST_FILE).exists():
        return False
    manifest = Manifest.load(folder)
    wanted = Settings(
        data.seed,
        data.validation_fraction,
        data.test_fraction,
        members=bool(data.members),
        max_rejected_share=data.max_rejected_share,
        id_column=data.id_column,
        sequence_column=data.sequence_column,
    )
    locations = set(_locations(data))
    # A file of a folder is called <folder>/<file> there.
    made_of = {
        source.name if source.name in locations else source.name.rpartition("/")[0]
        for source in manifest.sources
    }
    return manifest.settings == wanted and made_of == locations


def paths_read(config: RunFile) -> list[str]:
    """Return the files and folders that preparing reads, besides what is fetched or the code brings."""
    return local_files(_locations(config.data), PROTEINS)


def _locations(data: DataConfig) -> list[str]:
    return [*(data.members or data.source), *([data.membership] if data.membership else [])]


def _fetched(locations: Iterable[str], downloads: Path) -> tuple[list[Path], list[str]]:
    """Return local files and their names in the manifest.

    A name is the location as configured. Files of a folder have their own names behind it.
    """
    files: list[Path] = []
    names: list[str] = []
    for location in locations:
        found = fetch(location, downloads, SOURCES)
        files += found
        if len(found) == 1:
            names.append(location)
        else:
            names += [f"{location}/{path.name}" for path in found]
    return files, names


def prepare(
    files: ProteinFiles,
    out: Path,
    *,
    seed: int,
    validation_fraction: float,
    test_fraction: float,
    max_rejected_share: float = MAX_REJECTED_SHARE,
    execution: Execution | None = None,
) -> Manifest:
    """Prepare files of proteins for training, or return at once if ``out`` already holds the result.

    Args:
        files: files of proteins.
        out: folder to create; it appears whole or not at all.
        seed: seed of the shuffle; splits do not depend on it.
        validation_fraction: share of clusters (without members: of records) in the validation split.
        test_fraction: share of clusters in the test split.
        max_rejected_share: share of records that may be bad. Ten always may.
        execution: processes, memory and progress; by default those of this machine.

    Raises:
        ValueError: for anything wrong with the input or the output folder; nothing is left behind.
    """
    execution = execution or Execution()
    tell: Callable[[str], object] = say if execution.progress else (lambda text: None)
    settings = Settings(
        seed,
        validation_fraction,
        test_fraction,
        members=files.membership is not None,
        max_rejected_share=max_rejected_share,
        id_column=files.columns.id,
        sequence_column=files.columns.sequence,
    )
    _refuse_repeated(files.paths)
    named = dict(zip(files.paths, files.manifest_names, strict=True))
    manifest = existing_manifest(out, named, settings)
    if manifest is not None:
        tell(f"{out} is already prepared: {_summary(manifest)}")
        tell(_counts(manifest, out))
        return manifest

    text_bytes = sum(map(text_bytes_of, files.paths))
    workers = execution.workers or default_workers()
    limits = execution.limits or Limits.for_workers(workers)
    needed_bytes = needed_disk(files, text_bytes, limits)
    check_free_space(out, needed_bytes)
    tell(
        f"preparing {out}: needs about {size_text(needed_bytes)} of disk, temporary files included"
    )
    # A process is worth starting for a block of its own.
    workers = min(workers, int(text_bytes / limits.block_bytes) + 1)
    with workspace(out) as folder, worker_pool(workers) as pool, ExitStack() as bars:
        plan = Plan(folder, limits, settings, files.allow_nucleotides)
        job = Job(plan, pool, workers, execution.progress, bars)
        manifest, spilled = _written(job, files)
        manifest.save(folder)
    tell(f"{out} is prepared: {_summary(manifest)}")
    rejects = spilled.found.all_rejects
    if rejects.total:
        tell("\n".join([f"warning: {rejects.total:,} records are left out:", *rejects.listed()]))
    if spilled.num_split:
        tell(
            f"note: records with several chains: {spilled.num_split:,}; each chain is a protein with the id "
            "<id>.<chain>"
        )
    for warning in [*spilled.implausible.warnings(), *similarity_warning(manifest)]:
        tell(warning)
    tell(_counts(manifest, out))
    return manifest


def _refuse_repeated(paths: Sequence[Path]) -> None:
    """Raise ValueError if a file is given twice."""
    for path, count in Counter(paths).items():
        if count > 1:
            raise ValueError(f"{path} is given twice; name each file once")


def _written(job: Job, files: ProteinFiles) -> tuple[Manifest, Spilled]:
    """Write all shards and the list of the bad records; return the manifest, and what was read."""
    spilled = _spilled(job, files)
    rejects = spilled.found.all_rejects
    if rejects.total:
        rejects.save(job.plan.folder / REJECTS_FILE)
    written, dropped = _gather(job, spilled)
    shutil.rmtree(job.plan.spill)
    splits = {name: _split([part for part in written if part.split == name]) for name in SPLITS}
    manifest = Manifest(
        sources=tuple(sorted(job.sources)),
        settings=job.plan.settings,
        duplicates_dropped=spilled.duplicates_dropped + dropped,
        splits=splits,
        vocabulary=TOKENS,
        similar=similar_across_splits(job.plan.folder, splits),
        rejected=rejects.by_kind(),
    )
    return manifest, spilled


def _spilled(job: Job, files: ProteinFiles) -> Spilled:
    """Spill the usable records. If ids are repeated, read the files again without all but the first of them.

    Raises:
        ValueError: if too many records are bad, or all records of a file.
    """
    inputs = inputs_of(files)
    spilled, hashes = _attempt(job, files, inputs, None)
    repeated = find_repeated(job, inputs, hashes) if len(hashes) else None
    _check_found(job.plan, spilled.found, None if repeated is None else repeated.rejects)
    if repeated is None or not repeated.rejects.total:
        return spilled
    shutil.rmtree(job.plan.spill)
    job.start_again()
    spilled, _ = _attempt(job, files, inputs, repeated)
    _check_found(job.plan, spilled.found)
    return spilled


def _attempt(
    job: Job, files: ProteinFiles, inputs: Sequence[ProteinInput], repeated: Repeated | None
) -> tuple[Spilled, UInt64s]:
    """Spill the usable records; return them, and the hashes that several of their ids have.

    Cluster members are spilled by cluster.

    Args:
        job: processes.
        files: files of proteins.
        inputs: files of proteins, as they are read.
        repeated: records to leave out, because their ids are repeated; None if this is not known yet.
    """
    job.plan.spill.mkdir()
    spilled = scatter_proteins(job, inputs, repeated)
    if files.membership is None:
        return spilled, repeated_hashes(job, spilled)
    _check_found(job.plan, spilled.found)  # before members without a cluster are reported
    table = scatter_table(job, files.membership, files.manifest_names[-1])
    return join_members(job, spilled, table)


def _check_found(plan: Plan, found: Found, repeated: Rejects | None = None) -> None:
    """Raise ValueError if too many records are bad.

    Args:
        plan: settings.
        found: records that were found in the files.
        repeated: further bad records, those with repeated ids.
    """
    rejects = found.all_rejects
    if repeated is not None:
        rejects.add(repeated)
    refuse_many(rejects, found.records.total(), plan.settings.max_rejected_share)
    refuse_unused(found)


def _summary(manifest: Manifest) -> str:
    return (
        f"{manifest.residues:,} residues in {manifest.records:,} proteins ({manifest.sizes}), "
        f"{manifest.duplicates_dropped:,} duplicates dropped"
    )


def _counts(manifest: Manifest, out: Path) -> str:
    """Return the line with the numbers of records that were read, used and left out."""
    counts = Counts("proteins", manifest.records)
    counts.left_out.update({Kind(name): count for name, count in manifest.rejected.items()})
    counts.left_out[Kind.REPEATED_SEQUENCE] += manifest.duplicates_dropped
    return counts.line(out / REJECTS_FILE if manifest.rejected else None)


def _gather(job: Job, spilled: Spilled) -> tuple[list[SplitShard], int]:
    """Write the shards, each a range of the hash: consecutive in the shuffled order.

    Returns:
        The shards, and the number of duplicates that were dropped.
    """
    cells = cell_ranges(spilled.num_bytes // job.plan.limits.shard_bytes + 1)
    runs = job.merged("merged", spilled.runs, len(cells))
    save_runs(runs, job.plan.spill / RECORDS_FILE)
    written: list[SplitShard] = []
    dropped = 0
    with job.bar("writing shards", len(cells), "shard") as bar:
        tasks = ((number, *bounds) for number, bounds in enumerate(cells))
        for shards, duplicates in job.run(write_shard, tasks):
            written += shards
            dropped += duplicates
            bar.update()
    return written, dropped


def _split(parts: Sequence[SplitShard]) -> Split:
    """Describe a split by the shards that the tasks wrote."""
    lengths = sum((part.lengths for part in parts), Counter[int]())
    clusters = sum(part.clusters for part in parts)
    return split_of([part.shard for part in parts], clusters, lengths)
