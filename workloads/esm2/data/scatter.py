"""First stage: FASTA blocks become sorted runs on disk. Also the check that no id occurs twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from workloads.training.data.spill import (
    SPLIT_SALT,
    Ints,
    SpillReader,
    UInt64s,
    cell_ranges,
    hash_all,
    without_duplicates,
    write_run,
)

from .fasta import (
    RECORD_START,
    Block,
    SourceReader,
    check_fasta_start,
    parse_block,
    record_lines,
    split_block,
)
from .job import Job, Spilled
from .plausibility import Implausible
from .shards import load_runs, save_runs

_IDS_PER_TASK = 2_000_000
_LOOKED_AT = 300
"""Records of each block but a file's first that are checked for being plausible proteins."""


@dataclass(frozen=True)
class _ScatterTask:
    block: Block
    spill: str
    seed: int
    by_id: bool
    """Cluster members are sorted by id, to be joined with their clusters; others by sequence."""
    max_records: int
    is_first: bool
    """Of its file: all of its records are checked for being plausible proteins."""
    allow_nucleotides: bool


def scatter_fasta(job: Job, paths: Sequence[Path], names: Sequence[str], *, by_id: bool) -> Spilled:
    """Spill the records of all files."""

    def tasks() -> Iterator[_ScatterTask]:
        for path, name in zip(paths, names, strict=True):
            for first, block in job.read(path, name, RECORD_START):
                if first:
                    check_fasta_start(block)
                yield _ScatterTask(
                    block,
                    str(job.spill),
                    job.seed,
                    by_id,
                    job.limits.block_records,
                    first,
                    job.allow_nucleotides,
                )

    total = Spilled()
    for part in job.run(_scatter_block, tasks()):
        total.add(part)
    return total


def _scatter_block(task: _ScatterTask) -> Spilled:
    spill, result = Path(task.spill), Spilled()
    for block in split_block(task.block, task.max_records):
        ids, tokens = parse_block(block)
        every = 1 if task.is_first else max(1, len(ids) // _LOOKED_AT)
        implausible = Implausible()
        implausible.look_at(ids[::every], tokens[::every])
        if not task.allow_nucleotides:
            implausible.refuse_nucleotides(f"{block.file}:{block.first_line}")
        result.implausible.add(implausible)
        id_hashes = hash_all(ids, SPLIT_SALT)
        if task.by_id:
            result.runs.append(write_run(spill, "fasta", id_hashes, id_hashes, [ids, tokens]))
        else:
            keys = hash_all(tokens, task.seed)
            # Here already, so that a sequence repeated a million times is never gathered as a million rows.
            order = _without_duplicates(keys, ids, tokens)
            result.runs.append(write_run(spill, "records", keys, id_hashes, [ids, tokens], order))
            result.id_runs.append(write_run(spill, "ids", id_hashes, id_hashes, []))
            result.duplicates_dropped += len(ids) - len(order)
        result.count(ids, tokens)
    return result


def _without_duplicates(keys: UInt64s, ids: list[bytes], tokens: list[bytes]) -> Ints:
    return without_duplicates(keys, np.argsort(keys), lambda row: (b"", ids[row], tokens[row]))


@dataclass(frozen=True)
class _IdTask:
    first_cell: int
    next_cell: int
    runs_file: str


def check_ids(job: Job, paths: Sequence[Path], spilled: Spilled) -> None:
    """Raise a ValueError if an id occurs twice, in one file or in several."""
    runs_file = job.spill / "ids.runs"
    save_runs(spilled.id_runs, runs_file)
    tasks = [_IdTask(*cells, str(runs_file)) for cells in cell_ranges(spilled.records // _IDS_PER_TASK + 1)]
    raise_for_repeated(job, paths, [id_hash for found in job.run(_repeated, tasks) for id_hash in found])


def _repeated(task: _IdTask) -> list[int]:
    """Hashes that two ids have."""
    with SpillReader(load_runs(task.runs_file)) as reader:
        slices = reader.rows(task.first_cell, task.next_cell)
    if not slices:
        return []
    keys = np.sort(np.concatenate([part.keys for part in slices]))
    return [int(key) for key in np.unique(keys[1:][keys[1:] == keys[:-1]])]


def raise_for_repeated(job: Job, paths: Sequence[Path], hashes: Sequence[int]) -> None:
    """Read the files again to tell where an id occurs twice; ids that only share a hash are fine."""
    if not hashes:
        return
    wanted, places = set(hashes), dict[bytes, str]()
    for path in paths:
        reader = SourceReader(path)
        for block in reader.blocks(RECORD_START, job.limits.block_bytes, job.limits.record_bytes):
            located = list(record_lines(block))
            id_hashes = hash_all([record_id for record_id, _ in located], SPLIT_SALT).tolist()
            for (record_id, line), id_hash in zip(located, id_hashes, strict=True):
                if id_hash not in wanted:
                    continue
                if record_id in places:
                    raise ValueError(
                        f"{path}:{line}: the id {record_id.decode()[:60]} was used before, at "
                        f"{places[record_id]} ({len(wanted)} repeated id(s) in all); ids must be unique: "
                        "rename or remove one"
                    )
                places[record_id] = f"{path}:{line}"
        reader.close()
