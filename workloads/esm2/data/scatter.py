"""First stage: FASTA blocks become sorted runs on disk. Also the check that no id occurs twice."""

from collections.abc import Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

import numpy as np

from workloads.training.data.spill import (
    SPLIT_SALT,
    SpillReader,
    cell_ranges,
    hash_all,
    without_duplicates,
    write_run,
)

from .fasta import RECORD_START, Block, SourceReader, parse_block, record_lines, split_block
from .job import Job, Plan, Spilled
from .plausibility import Implausible
from .shards import load_runs, save_runs

_IDS_PER_TASK = 2_000_000
_LOOKED_AT = 300
"""Records of each block but a file's first that are checked for being plausible proteins."""


def scatter_fasta(job: Job, paths: Sequence[Path], names: Sequence[str]) -> Spilled:
    """Spill the records of all files."""
    files = zip(paths, names, strict=True)
    tasks = (task for path, name in files for task in job.read(path, name, RECORD_START))
    total = Spilled()
    for part in job.run(_scatter_block, tasks):
        total.add(part)
    return total


def _scatter_block(plan: Plan, whole: Block, is_first: bool) -> Spilled:
    """Spill the records of a block; all records of a file's first block are checked for plausibility.

    Cluster members are sorted by id, to be joined with their clusters; others by sequence.
    """
    spill, result = plan.spill, Spilled()
    for block in split_block(whole, plan.limits.block_records):
        ids, tokens = parse_block(block)
        every = 1 if is_first else max(1, len(ids) // _LOOKED_AT)
        implausible = Implausible()
        implausible.look_at(ids[::every], tokens[::every])
        if not plan.allow_nucleotides:
            implausible.refuse_nucleotides(f"{block.file}:{block.first_line}")
        result.implausible += implausible
        id_hashes = hash_all(ids, SPLIT_SALT)
        if plan.settings.members:
            result.runs.append(write_run(spill, "fasta", id_hashes, id_hashes, [ids, tokens]))
        else:
            keys = hash_all(tokens, plan.settings.seed)
            # Here already, so that a sequence repeated a million times is never gathered as a million rows.
            order = without_duplicates(keys, np.argsort(keys), partial(_content, ids, tokens))
            result.runs.append(write_run(spill, "records", keys, id_hashes, [ids, tokens], order))
            result.id_runs.append(write_run(spill, "ids", id_hashes, id_hashes, []))
            result.duplicates_dropped += len(ids) - len(order)
        result.count(ids, tokens)
    return result


def _content(ids: list[bytes], tokens: list[bytes], row: int) -> tuple[bytes, bytes, bytes]:
    return b"", ids[row], tokens[row]


def check_ids(job: Job, paths: Sequence[Path], spilled: Spilled) -> None:
    """Raise a ValueError if an id occurs twice, in one file or in several."""
    save_runs(spilled.id_runs, job.plan.spill / "ids.runs")
    cells = cell_ranges(spilled.records // _IDS_PER_TASK + 1)
    raise_for_repeated(job, paths, [id_hash for found in job.run(_repeated, cells) for id_hash in found])


def _repeated(plan: Plan, first_cell: int, next_cell: int) -> list[int]:
    """Hashes that two ids have."""
    with SpillReader(load_runs(plan.spill / "ids.runs")) as reader:
        slices = reader.rows(first_cell, next_cell)
    if not slices:
        return []
    keys = np.sort(np.concatenate([part.keys for part in slices]))
    return [int(key) for key in np.unique(keys[1:][keys[1:] == keys[:-1]])]


def raise_for_repeated(job: Job, paths: Sequence[Path], hashes: Sequence[int]) -> None:
    """Read the files again to tell where an id occurs twice; ids that only share a hash are fine."""
    if not hashes:
        return
    wanted, places, limits = set(hashes), dict[bytes, str](), job.plan.limits
    for path in paths:
        with closing(SourceReader(path)) as reader:
            for block in reader.blocks(RECORD_START, limits.block_bytes, limits.record_bytes):
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
