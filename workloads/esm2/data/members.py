"""Cluster members: which cluster each record belongs to, joined on disk by the hash of the member id.

Real UniRef90 headers do not carry their UniRef50 cluster, so it comes from a table: UniProt's
``idmapping_selected`` (tab-separated; many proteins, hence rows, per UniRef90 id) or two columns
``member<TAB>cluster``. FASTA and table are both scattered to runs sorted by member; each range of
the hash is then joined by itself and scattered again by cluster.
"""

import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

from workloads.training.data.spill import (
    SPLIT_SALT,
    RowSlice,
    Run,
    SpillReader,
    cell_ranges,
    hash_all,
    write_run,
)

from .fasta import LINE_START, Block
from .job import Job, Plan, Spilled
from .scatter import raise_for_repeated
from .shards import load_runs, save_runs

# https://ftp.uniprot.org/pub/databases/uniprot/current_release/knowledgebase/idmapping/README:
# columns 9 and 10 of idmapping_selected.tab, counted from 1, are UniRef90 and UniRef50.
IDMAPPING_COLUMNS = (8, 9)
TWO_COLUMNS = (0, 1)
SHOWN_IDS = 5


def scatter_table(job: Job, path: Path, name: str) -> list[Run]:
    """Spill the membership table by member."""

    def tasks() -> Iterator[tuple[Block, tuple[int, int]]]:
        columns = TWO_COLUMNS
        for block, first in job.read(path, name, LINE_START):
            if first:
                columns = table_columns(block)
            yield block, columns

    return [run for run in job.run(_scatter_table_block, tasks()) if run is not None]


def join_members(job: Job, paths: Sequence[Path], fasta: Spilled, table: list[Run]) -> Spilled:
    """Spill the members anew, by cluster.

    Raises:
        ValueError: for members without a cluster or with two, and for repeated ids.
    """
    save_runs(fasta.runs, job.plan.spill / "fasta.runs")
    save_runs(table, job.plan.spill / "table.runs")
    # Ids become Python objects here, several times their size.
    table_bytes = sum(run.num_bytes for run in table)
    cells = cell_ranges((fasta.num_bytes + 2 * table_bytes) // job.plan.limits.block_bytes + 1)
    joined, orphans = Spilled(), 0
    first_orphans: list[bytes] = []
    repeated: list[int] = []
    with job.bar("joining members", len(cells), "part") as bar:
        for spilled, number, some_orphans, some_repeated in job.run(_join, cells):
            bar.update()
            orphans += number
            first_orphans = sorted([*first_orphans, *some_orphans])[:SHOWN_IDS]
            repeated += some_repeated
            joined.add(spilled)
    raise_for_repeated(job, paths, repeated)
    if orphans:
        raise ValueError(
            f"{orphans} member(s) have no cluster in the membership table, the first are "
            f"{', '.join(member.decode() for member in first_orphans)}; give the table of the same UniProt "
            "release, or remove these members from the FASTA"
        )
    for spill_file in {run.path for run in (*fasta.runs, *table)}:
        Path(spill_file).unlink()
    return joined


def table_columns(block: Block) -> tuple[int, int]:
    """Return the columns of member and cluster, given the number of columns in the first row."""
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


def parse_table(block: Block, columns: tuple[int, int]) -> list[tuple[bytes, bytes]]:
    """Distinct (member, cluster) pairs of a block of table rows."""
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


def _scatter_table_block(plan: Plan, block: Block, columns: tuple[int, int]) -> Run | None:
    """Spill the pairs of a block, sorted by the hash of the member."""
    try:
        block.data.decode()
    except UnicodeDecodeError as error:
        line = block.first_line + block.data.count(b"\n", 0, error.start)
        raise ValueError(
            f"{block.file}:{line}: not UTF-8 text; save the table as UTF-8, and end the name of a compressed "
            "table in .gz"
        ) from None
    pairs = parse_table(block, columns)
    if not pairs:
        return None
    members, clusters = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    keys = hash_all(members, SPLIT_SALT)
    return write_run(plan.spill, "table", keys, keys, [members, clusters])


def _join(plan: Plan, first_cell: int, next_cell: int) -> tuple[Spilled, int, list[bytes], list[int]]:
    """Give the members of one key range their clusters and spill them by the seeded hash of the cluster.

    Returns:
        What is spilled; the number of members that the table does not name, and the first ones; hashes of ids
        that occur twice among the members.
    """
    with SpillReader(load_runs(plan.spill / "table.runs")) as reader:
        table = reader.rows(first_cell, next_cell)
        cluster_of = _cluster_of(_texts(reader, table, 0), _texts(reader, table, 1))
    with SpillReader(load_runs(plan.spill / "fasta.runs")) as reader:
        slices = reader.rows(first_cell, next_cell)
        members, tokens = _texts(reader, slices, 0), _texts(reader, slices, 1)
    spilled = Spilled()
    if not members:
        return spilled, 0, [], []
    orphans = [member for member in members if member not in cluster_of]
    repeated: list[bytes] = []
    if len(set(members)) < len(members):
        repeated = [a for a, b in itertools.pairwise(sorted(members)) if a == b][:SHOWN_IDS]
    if not orphans and not repeated:
        clusters = [cluster_of[member] for member in members]
        keys, tags = hash_all(clusters, plan.settings.seed), hash_all(clusters, SPLIT_SALT)
        columns = [members, tokens, clusters]
        spilled.runs.append(write_run(plan.spill, "members", keys, tags, columns))
        spilled.count(*columns)
    return spilled, len(orphans), sorted(orphans)[:SHOWN_IDS], hash_all(repeated, SPLIT_SALT).tolist()


def _texts(reader: SpillReader, slices: list[RowSlice], column: int) -> list[bytes]:
    if not slices:
        return []
    values, offsets = reader.column(slices, column)
    raw, edges = values.tobytes(), offsets.tolist()
    return [raw[start:stop] for start, stop in itertools.pairwise(edges)]


def _cluster_of(members: list[bytes], clusters: list[bytes]) -> dict[bytes, bytes]:
    mapping: dict[bytes, bytes] = {}
    for member, cluster in zip(members, clusters, strict=True):
        other = mapping.setdefault(member, cluster)
        if other != cluster:
            one, two = sorted((other, cluster))
            raise ValueError(
                f"the membership table puts member {member.decode()} in two clusters, {one.decode()} and "
                f"{two.decode()}; a member belongs to one: correct the table"
            )
    return mapping
