"""First stages of a preparation: scatter records to sorted runs on disk, and join cluster members.

Real UniRef90 headers do not carry their UniRef50 cluster, so it comes from a table: UniProt's
``idmapping_selected`` (tab-separated; many proteins, hence rows, per UniRef90 id) or two columns
``member<TAB>cluster``. FASTA and table are both scattered to runs sorted by member; each range of
the hash is then joined by itself and scattered again by cluster.
"""

import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np

from seqlm.training.data.limits import MIB
from seqlm.training.data.spill import (
    SPLIT_SALT,
    RowSlice,
    Run,
    SpillReader,
    UInt64s,
    cell_ranges,
    hash_all,
    without_duplicates,
    write_run,
)

from .blocks import AnyBlock, parts_of, usable_records
from .collected_rejects import RejectWriter
from .fasta import LINE_START, Block
from .inputs import ProteinInput
from .job import Job, Plan, Spilled
from .plausibility import Implausible
from .repeated import InBlock, Repeated
from .shards import load_runs, save_runs

FASTA_FILE = "fasta.runs"
TABLE_FILE = "table.runs"
"""Lists of runs in the folder of spilled data."""
JOINED_BYTES = MIB
"""Text of small files that is parsed at a time and shares a run."""
_LOOKED_AT = 300
"""Records of a block that are checked for being plausible proteins. In a file's first block all are."""


class TableColumns(NamedTuple):
    """Positions of the columns of a membership table, from 0."""

    member: int
    cluster: int


IDMAPPING_COLUMNS = TableColumns(8, 9)
"""Columns 9 and 10 of UniProt's idmapping_selected.tab, counted from 1, are UniRef90 and UniRef50
(https://ftp.uniprot.org/pub/databases/uniprot/current_release/knowledgebase/idmapping/README)."""
TWO_COLUMNS = TableColumns(0, 1)
SHOWN_IDS = 5


@dataclass(frozen=True)
class _BlockTask:
    """Block of records, and what is known of it."""

    block: AnyBlock
    is_first: bool
    """Whether it is the first one of its file, of which all records are checked for plausibility."""
    repeated: InBlock | None
    """Records to leave out, because their ids are repeated; None if this is not known yet."""


def scatter_proteins(
    job: Job, inputs: Sequence[ProteinInput], repeated: Repeated | None
) -> Spilled:
    """Spill the usable records of all files.

    Args:
        job: processes.
        inputs: files.
        repeated: records to leave out, because their ids are repeated; None if this is not known yet.
    """
    blocks = (
        _BlockTask(block, is_first, repeated.in_block(number, block) if repeated else None)
        for number, block, is_first in job.records(inputs)
    )
    most_bytes = min(JOINED_BYTES, job.plan.limits.block_bytes)
    total = Spilled()
    for part in job.run(_scatter_blocks, ((group,) for group in _joined(blocks, most_bytes))):
        total.add(part)
    return total


def _joined(blocks: Iterable[_BlockTask], most_bytes: int) -> Iterator[list[_BlockTask]]:
    """Yield consecutive blocks in groups, each of one block or of at most ``most_bytes``.

    Without this, each of many small files would have runs of its own, whose index alone takes 64 KiB.
    """
    group: list[_BlockTask] = []
    num_bytes = 0
    for task in blocks:
        size = task.block.num_bytes
        if group and num_bytes + size > most_bytes:
            yield group
            group = []
            num_bytes = 0
        group.append(task)
        num_bytes += size
    if group:
        yield group


class _RunWriter:
    """Writer of the runs of a task, each with the records of one or more blocks.

    Args:
        plan: settings.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._ids: list[bytes] = []
        self._tokens: list[bytes] = []
        self.spilled = Spilled()
        """Records that have been written."""

    def add(self, ids: list[bytes], tokens: list[bytes]) -> None:
        """Add records. They begin a new run if the last one would have too many."""
        if len(self._ids) + len(ids) > self._plan.limits.block_records:
            self.flush()
        self._ids += ids
        self._tokens += tokens

    def flush(self) -> None:
        """Write the records that are not written yet.

        Cluster members are sorted by id, to be joined with their clusters; others by sequence.
        """
        ids = self._ids
        tokens = self._tokens
        if not ids:
            return
        spill = self._plan.spill
        result = self.spilled
        id_hashes = hash_all(ids, SPLIT_SALT)
        if self._plan.settings.members:
            result.runs.append(write_run(spill, "fasta", id_hashes, id_hashes, [ids, tokens]))
        else:
            keys = hash_all(tokens, self._plan.settings.seed)
            # Dropped here already: a sequence repeated a million times is never gathered as a million rows.
            order = without_duplicates(keys, np.argsort(keys), partial(_content, ids, tokens))
            result.runs.append(write_run(spill, "records", keys, id_hashes, [ids, tokens], order))
            result.id_runs.append(write_run(spill, "ids", id_hashes, id_hashes, []))
            result.duplicates_dropped += len(ids) - len(order)
        result.count(ids, tokens)
        self._ids = []
        self._tokens = []


def _scatter_blocks(plan: Plan, tasks: Sequence[_BlockTask]) -> Spilled:
    """Spill the records of blocks."""
    writer = _RunWriter(plan)
    result = writer.spilled
    for task in tasks:
        file = task.block.file
        rejects = RejectWriter(plan.spill)
        num_used = 0
        for block in parts_of(task.block, plan.limits.block_records):
            repeated = task.repeated.within(block) if task.repeated else {}
            usable = usable_records(block, rejects.add, repeated)
            ids = usable.ids
            result.num_split += usable.num_split
            if not ids:
                continue
            every = 1 if task.is_first else max(1, len(ids) // _LOOKED_AT)
            implausible = Implausible()
            implausible.look_at(ids[::every], usable.tokens[::every])
            if not plan.allow_nucleotides:
                implausible.refuse_nucleotides(f"{file}:{block.first_line}")
            result.implausible += implausible
            num_used += len(ids)
            writer.add(ids, usable.tokens)
        found = rejects.close()
        result.found.add_file(file, num_used + found.total, found)
    writer.flush()
    return result


def _content(ids: list[bytes], tokens: list[bytes], row: int) -> tuple[bytes, bytes, bytes]:
    """Return the cluster, id and tokens of a row; a record by itself has no cluster."""
    return b"", ids[row], tokens[row]


def scatter_table(job: Job, path: Path, name: str) -> list[Run]:
    """Spill the membership table by member."""

    def tasks() -> Iterator[tuple[Block, TableColumns]]:
        columns = TWO_COLUMNS
        for block, first in job.read(path, name, LINE_START):
            if first:
                columns = table_columns(block)
            yield block, columns

    return [run for run in job.run(_scatter_table_block, tasks()) if run is not None]


def join_members(job: Job, fasta: Spilled, table: list[Run]) -> tuple[Spilled, UInt64s]:
    """Spill the members anew, by cluster.

    Returns:
        The members, and the hashes of repeated ids. If there are any, members are missing.

    Raises:
        ValueError: for members without a cluster or with two.
    """
    # Ids become Python objects here, several times their size.
    table_bytes = sum(run.num_bytes for run in table)
    cells = cell_ranges((fasta.num_bytes + 2 * table_bytes) // job.plan.limits.block_bytes + 1)
    fasta_runs = job.merged("merged-fasta", fasta.runs, len(cells))
    table_runs = job.merged("merged-table", table, len(cells))
    save_runs(fasta_runs, job.plan.spill / FASTA_FILE)
    save_runs(table_runs, job.plan.spill / TABLE_FILE)
    joined = Spilled(num_split=fasta.num_split, implausible=fasta.implausible, found=fasta.found)
    num_orphans = 0
    first_orphans: list[bytes] = []
    repeated: list[UInt64s] = []
    with job.bar("joining members", len(cells), "part") as bar:
        for part in job.run(_join, cells):
            bar.update()
            num_orphans += part.num_orphans
            first_orphans = sorted([*first_orphans, *part.first_orphans])[:SHOWN_IDS]
            repeated.append(part.repeated)
            joined.add(part.spilled)
    if num_orphans:
        raise ValueError(
            f"{num_orphans} member(s) have no cluster in the membership table, the first are "
            f"{', '.join(member.decode() for member in first_orphans)}; give the table of the same UniProt "
            "release, or remove these members from the FASTA"
        )
    for spill_file in {run.path for run in (*fasta_runs, *table_runs)}:
        Path(spill_file).unlink()
    return joined, np.sort(np.concatenate(repeated))


def table_columns(block: Block) -> TableColumns:
    """Return the columns of member and cluster, by the number of columns in the first row."""
    line = block.data.partition(b"\n")[0].rstrip(b"\r")
    num_columns = line.count(b"\t") + 1
    if num_columns == 2:
        return TWO_COLUMNS
    if num_columns > max(IDMAPPING_COLUMNS):
        return IDMAPPING_COLUMNS
    raise ValueError(
        f"{block.file}:{block.first_line}: a membership table has 2 tab-separated columns (member, cluster) "
        f"or the columns of UniProt's idmapping_selected.tab, got {num_columns}; give one of these files"
    )


def parse_table(block: Block, columns: TableColumns) -> list[tuple[bytes, bytes]]:
    """Return the distinct (member, cluster) pairs of a block of table rows."""
    member, cluster = columns
    two_columns = columns == TWO_COLUMNS
    pairs: dict[tuple[bytes, bytes], None] = {}
    for number, line in enumerate(block.data.split(b"\n")):
        fields = line.rstrip(b"\r").split(b"\t", cluster + 1)
        if fields == [b""]:
            continue
        where = f"{block.file}:{block.first_line + number}"
        if len(fields) <= cluster or (two_columns and len(fields) != 2):
            expected = "2" if two_columns else f"more than {cluster}"
            num_columns = line.count(b"\t") + 1
            raise ValueError(
                f"{where}: {num_columns} tab-separated columns, the rows before had {expected}; "
                "correct the row or fetch the table again"
            )
        pair = (fields[member], fields[cluster])
        if all(pair):
            pairs[pair] = None
        elif two_columns:
            raise ValueError(f"{where}: member or cluster is empty; every row needs both")
        # idmapping_selected has rows without UniRef ids, for proteins in no cluster yet.
    return list(pairs)


def _scatter_table_block(plan: Plan, block: Block, columns: TableColumns) -> Run | None:
    """Spill the pairs of a block, sorted by the hash of the member."""
    pairs = parse_table(block, columns)
    if not pairs:
        return None
    members = [member for member, _ in pairs]
    clusters = [cluster for _, cluster in pairs]
    keys = hash_all(members, SPLIT_SALT)
    return write_run(plan.spill, "table", keys, keys, [members, clusters])


@dataclass(frozen=True)
class _Joined:
    """Members of one key range with their clusters."""

    spilled: Spilled
    num_orphans: int = 0
    """Number of members that the table does not name."""
    first_orphans: Sequence[bytes] = ()
    """The first of these members."""
    repeated: UInt64s = field(default_factory=lambda: np.zeros(0, np.uint64))
    """Hashes of ids that occur twice among the members."""


def _join(plan: Plan, first_cell: int, next_cell: int) -> _Joined:
    """Give the members of one key range their clusters and spill them by the seeded hash of the cluster."""
    with SpillReader(load_runs(plan.spill / TABLE_FILE)) as reader:
        table = reader.rows(first_cell, next_cell)
        cluster_of = _cluster_of(_texts(reader, table, 0), _texts(reader, table, 1))
    with SpillReader(load_runs(plan.spill / FASTA_FILE)) as reader:
        slices = reader.rows(first_cell, next_cell)
        members = _texts(reader, slices, 0)
        tokens = _texts(reader, slices, 1)
    spilled = Spilled()
    if not members:
        return _Joined(spilled)
    orphans = [member for member in members if member not in cluster_of]
    repeated: list[bytes] = []
    if len(set(members)) < len(members):
        repeated = sorted({a for a, b in itertools.pairwise(sorted(members)) if a == b})
    if not orphans and not repeated:
        clusters = [cluster_of[member] for member in members]
        keys = hash_all(clusters, plan.settings.seed)
        tags = hash_all(clusters, SPLIT_SALT)
        columns = [members, tokens, clusters]
        spilled.runs.append(write_run(plan.spill, "members", keys, tags, columns))
        spilled.count(*columns)
    return _Joined(
        spilled,
        num_orphans=len(orphans),
        first_orphans=sorted(orphans)[:SHOWN_IDS],
        repeated=hash_all(repeated, SPLIT_SALT),
    )


def _texts(reader: SpillReader, slices: list[RowSlice], column: int) -> list[bytes]:
    if not slices:
        return []
    values, offsets = reader.column(slices, column)
    raw = values.tobytes()
    return [raw[start:stop] for start, stop in itertools.pairwise(offsets.tolist())]


def _cluster_of(members: list[bytes], clusters: list[bytes]) -> dict[bytes, bytes]:
    mapping: dict[bytes, bytes] = {}
    for member, cluster in zip(members, clusters, strict=True):
        other = mapping.setdefault(member, cluster)
        if other != cluster:
            first, second = sorted((other, cluster))
            raise ValueError(
                f"the membership table puts member {member.decode()} in two clusters, {first.decode()} and "
                f"{second.decode()}; a member belongs to one: correct the table"
            )
    return mapping
