"""From FASTA files to a folder of shuffled, deduplicated, split Arrow shards.

Three stages, each spread over processes: scatter (parse blocks into sorted runs on disk), join (with
cluster members only: find each one's cluster), gather (one shard per range of the hash). The order
of the result is that of a seeded hash of the sequence (of the cluster), so it is the same whatever
the number of processes and the order of files and records.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from workloads.esm2.alphabet import TOKENS
from workloads.training.data.limits import MAX_WORKERS, Limits, default_workers
from workloads.training.data.manifest import SPLITS, Manifest, Settings, Split
from workloads.training.data.source_file import GZIP_MAGIC, reading
from workloads.training.data.spill import cell_ranges
from workloads.training.data.workspace import check_free_space, existing_manifest, size_text, workspace

from .job import Job, Spilled, worker_pool
from .members import join_members, scatter_table
from .scatter import check_ids, scatter_fasta
from .shards import ShardResult, ShardTask, save_runs, write_shard
from .similarity import similar_across_splits, similarity_warning

# Text over gzip bytes: UniRef50 has 2.2, files without its repetitive headers 1.7.
GZIP_RATIO = 2.5
# Runs and shards each take about as many bytes as the text; joining members keeps them twice for a while.
DISK_PER_TEXT = 2.2
DISK_PER_MEMBER_TEXT = 3.2


def prepare(
    paths: Sequence[Path],
    out: Path,
    *,
    seed: int,
    validation_fraction: float,
    test_fraction: float,
    members: Sequence[Path] = (),
    membership: Path | None = None,
    allow_nucleotides: bool = False,
    workers: int | None = None,
    progress: bool = True,
    source_names: Sequence[str] | None = None,
    limits: Limits | None = None,
) -> Manifest:
    """Prepare FASTA files for training, or return at once if ``out`` already holds the result.

    Args:
        paths: FASTA files, plain or gzip.
        out: folder to make; appears whole or not at all.
        seed: of the shuffle; splits do not depend on it.
        validation_fraction: share of clusters (without members: of records) held out.
        test_fraction: likewise, for the final test.
        members: FASTA files of cluster members; when given, ``paths`` is not read.
        membership: table of the members' clusters, required with ``members``.
        allow_nucleotides: take DNA and RNA for proteins.
        workers: processes; by default one per core, up to 8.
        progress: bars and messages on stderr.
        source_names: of the files read (FASTA, then the table) in the manifest; by default the file names.
        limits: sizes that bound memory, by default chosen for the number of workers.

    Raises:
        ValueError: for anything wrong with the input or the output folder; nothing is left behind.
    """
    fasta_files = list(members) if members else list(paths)
    files = fasta_files + ([membership] if members and membership else [])
    _check_arguments(files, members, membership, validation_fraction, test_fraction, workers, source_names)
    names = list(source_names) if source_names is not None else [path.name for path in files]
    settings = Settings(
        seed=seed,
        validation_fraction=validation_fraction,
        test_fraction=test_fraction,
        members=bool(members),
    )
    manifest = existing_manifest(out, dict(zip(files, names, strict=True)), settings)
    if manifest is not None:
        _say(f"{out} is already prepared: {_summary(manifest)}", progress)
        return manifest

    text_bytes = sum(_text_bytes(path) for path in files)
    needed_bytes = int(text_bytes * (DISK_PER_MEMBER_TEXT if members else DISK_PER_TEXT))
    check_free_space(out, needed_bytes)
    _say(
        f"preparing {out}: needs about {size_text(needed_bytes)} of disk, temporary files included", progress
    )
    workers = workers or default_workers()
    limits = limits or Limits.for_workers(workers)
    # A process is worth starting for a block of its own.
    workers = min(workers, int(text_bytes / limits.block_bytes) + 1)
    with workspace(out) as folder, worker_pool(workers) as pool, ExitStack() as bars:
        job = Job(pool, workers, limits, folder, seed, allow_nucleotides, progress, bars)
        job.spill.mkdir()
        spilled = scatter_fasta(job, fasta_files, names[: len(fasta_files)], by_id=bool(members))
        if members:
            assert membership is not None
            table = scatter_table(job, membership, names[-1])
            spilled = join_members(job, fasta_files, spilled, *table)
        else:
            check_ids(job, fasta_files, spilled)
        implausible = spilled.implausible
        results = _gather(job, spilled, settings)
        shutil.rmtree(job.spill)
        splits = {name: _split(name, results) for name in SPLITS}
        manifest = Manifest(
            sources=tuple(sorted(job.sources)),
            settings=settings,
            duplicates_dropped=spilled.duplicates_dropped + sum(r.duplicates_dropped for r in results),
            splits=splits,
            vocabulary=TOKENS,
            similar=similar_across_splits(folder, splits),
        )
        manifest.save(folder)
    _say(f"{out} is prepared: {_summary(manifest)}", progress)
    for warning in [*implausible.warnings(), *similarity_warning(manifest)]:
        _say(warning, progress)
    return manifest


def _check_arguments(
    files: Sequence[Path],
    members: Sequence[Path],
    membership: Path | None,
    validation_fraction: float,
    test_fraction: float,
    workers: int | None,
    source_names: Sequence[str] | None,
) -> None:
    if not files:
        raise ValueError("no FASTA file to read; data.source must name at least one")
    if members and membership is None:
        raise ValueError(
            "data.members is given without data.membership; give the table that tells each member's cluster"
        )
    for path in files:
        if not path.is_file():
            raise ValueError(f"no file at {path}; give existing FASTA files (and table)")
    if len(set(files)) < len(files):
        twice = next(path for path in files if files.count(path) > 1)
        raise ValueError(f"{twice} is given twice; name each file once")
    if min(validation_fraction, test_fraction) < 0 or validation_fraction + test_fraction >= 1:
        raise ValueError(
            f"validation_fraction {validation_fraction} and test_fraction {test_fraction}: "
            "allowed are values of at least 0 with a sum below 1"
        )
    if workers is not None and not 1 <= workers <= MAX_WORKERS:
        raise ValueError(
            f"workers: got {workers}; allowed are 1 to {MAX_WORKERS}, which share 1 GiB of memory"
        )
    if source_names is not None and len(source_names) != len(files):
        raise ValueError(f"{len(source_names)} source_names for {len(files)} files; give one for each")


def _text_bytes(path: Path) -> int:
    with reading(path), path.open("rb") as file:
        return int(path.stat().st_size * (GZIP_RATIO if file.read(2) == GZIP_MAGIC else 1))


def _say(text: str, progress: bool) -> None:
    if progress:
        print(text, file=sys.stderr)


def _summary(manifest: Manifest) -> str:
    return (
        f"{manifest.residues:,} residues in {manifest.records:,} proteins ({manifest.sizes}), "
        f"{manifest.duplicates_dropped:,} duplicates dropped"
    )


def _gather(job: Job, spilled: Spilled, settings: Settings) -> list[ShardResult]:
    """Write the shards, each a range of the hash: consecutive in the shuffled order."""
    runs_file = job.spill / "records.runs"
    save_runs(spilled.runs, runs_file)
    shards = cell_ranges(spilled.num_bytes // job.limits.shard_bytes + 1)
    held_out = settings.test_fraction, settings.test_fraction + settings.validation_fraction
    tasks = [
        ShardTask(
            number=number,
            first_cell=first_cell,
            next_cell=next_cell,
            runs_file=str(runs_file),
            out=str(job.folder),
            members=settings.members,
            test_below=int(held_out[0] * 2**64),
            validation_below=int(held_out[1] * 2**64),
            piece_bytes=job.limits.piece_bytes,
            batch_residues=job.limits.batch_residues,
        )
        for number, (first_cell, next_cell) in enumerate(shards)
    ]
    results = []
    with job.bar("writing shards", len(tasks), "shard") as bar:
        for result in job.run(write_shard, tasks):
            results.append(result)
            bar.update()
    return results


def _split(name: str, results: Sequence[ShardResult]) -> Split:
    parts = [part for result in results for part in result.written if part.split == name]
    shards = tuple(part.shard for part in parts)
    histogram: dict[str, int] = {}
    for part in parts:
        for first_length, count in part.length_histogram():
            histogram[str(first_length)] = histogram.get(str(first_length), 0) + count
    return Split(
        records=sum(shard.records for shard in shards),
        clusters=sum(part.clusters for part in parts),
        residues=sum(shard.residues for shard in shards),
        length_histogram=dict(sorted(histogram.items(), key=lambda item: int(item[0]))),
        shards=shards,
    )
