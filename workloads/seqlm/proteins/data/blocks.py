"""Blocks of records, of FASTA or of a table, and their usable records.

A record has a position in its file: the line of its header or row, or the number of a row in a file without
lines.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from seqlm.proteins.reading.chains import Complex, chain_texts
from seqlm.proteins.reading.policies import Kind
from seqlm.proteins.reading.rejects import Reject

from .chained import chained_record, chained_text
from .fasta import (
    Block,
    are_ids,
    bad_record,
    id_of,
    parsed,
    problem_of,
    protein_of,
    record_lines,
    single_records,
    split_block,
    tokens_of,
    without_stops,
)

LINE_MARK = ":"
ROW_MARK = " row "
"""Texts between a file and a position in messages."""
SHOWN_CHARACTERS = 60
"""Length to which ids are cut in messages."""


@dataclass(frozen=True)
class RowBlock:
    """Rows of a table of proteins."""

    file: str
    mark: str
    """Text between the file and the position of a row in messages."""
    positions: list[int] = field(default_factory=list)
    ids: list[bytes] = field(default_factory=list)
    """Id of each row; empty if it has none."""
    sequences: list[bytes] = field(default_factory=list)
    """Sequence of each row; empty if it has none."""
    uneven: dict[int, str] = field(default_factory=dict)
    """Reasons by the positions of rows that have too few or too many cells."""

    @property
    def num_bytes(self) -> int:
        """Size of the ids and sequences."""
        return sum(map(len, self.ids)) + sum(map(len, self.sequences))

    @property
    def first_line(self) -> int:
        """Position of the first row."""
        return self.positions[0]

    def bad_row(self, index: int) -> Reject | None:
        """Return what is wrong with a row; None if it is usable."""
        position = self.positions[index]
        where = f"{self.file}{self.mark}{position}"
        if position in self.uneven:
            return Reject(Kind.FIELDS, where, self.uneven[position])
        return bad_row(where, self.ids[index], self.sequences[index])


def bad_row(where: str, record_id: bytes, sequence: bytes) -> Reject | None:
    """Return the reject of a row of a table; None if it is usable.

    Args:
        where: place of the row.
        record_id: id of the row; empty if it has none.
        sequence: sequence of the row; empty if it has none.
    """
    if not record_id:
        return Reject(Kind.NO_ID, where, "row without an id; give it one")
    problem = problem_of(record_id, sequence)
    return None if problem is None else Reject(problem.kind, where, problem.reason)


AnyBlock: TypeAlias = Block | RowBlock


@dataclass(frozen=True)
class Record:
    """Record of a block, before its sequence is parsed."""

    position: int
    where: str
    id: bytes
    sequence: bytes
    bad: Reject | None
    """Reason why it is not usable; None if it is."""
    chain: int | None = None
    """Number of the chain, from 0, of a record with several, each of which becomes a record; else None."""


@dataclass(frozen=True)
class Usable:
    """Usable records of a block."""

    ids: list[bytes]
    tokens: list[bytes]
    """Token string of each record."""
    num_split: int = 0
    """Number of records with several chains, which were split into these."""


def parts_of(block: AnyBlock, max_records: int) -> Iterator[AnyBlock]:
    """Yield parts of a block with about ``max_records`` records."""
    if isinstance(block, Block):
        yield from split_block(block, max_records)
    else:
        yield block  # the reader of the table has bounded it


def end_position(block: AnyBlock) -> int:
    """Return the first position behind the records of a block."""
    if isinstance(block, RowBlock):
        return block.positions[-1] + 1
    last_line = 0 if block.data.endswith(b"\n") else 1
    return block.first_line + block.data.count(b"\n") + last_line


def usable_records(
    block: AnyBlock,
    add_bad: Callable[[Reject], object],
    repeated: Mapping[int, str],
) -> Usable:
    """Return the usable records of a block. Each chain of a record with several is one.

    Args:
        block: block of records.
        add_bad: function that gets each of the other records, in their order.
        repeated: places where ids were used before, by the positions of the records that repeat them.
    """
    if not repeated:
        records = _all_records(block)
        if records is not None:
            return Usable(*records)
    ids: list[bytes] = []
    tokens: list[bytes] = []
    num_split = 0
    for record in each_record(block):
        bad = record.bad
        if bad is None and record.position in repeated:
            bad = repeated_id(record.where, record.id, repeated[record.position])
        if bad is None:
            ids.append(record.id)
            tokens.append(protein_of(record.sequence))
            num_split += record.chain == 0
        else:
            add_bad(bad)
    return Usable(ids, tokens, num_split)


def repeated_id(where: str, record_id: bytes, first_place: str) -> Reject:
    """Return the reject of a record whose id was used before.

    Args:
        where: place of the record.
        record_id: id of the record.
        first_place: place at which the id was used before.
    """
    name = record_id.decode()
    reason = (
        f"the id {name[:SHOWN_CHARACTERS]} was used before, at {first_place}; rename or remove one"
    )
    return Reject(Kind.REPEATED_ID, where, reason, name)


def located_ids(block: AnyBlock) -> Iterator[tuple[bytes, int]]:
    """Yield the id and the position of each usable record."""
    if _all_records(block) is None:
        yield from ((each.id, each.position) for each in each_record(block) if each.bad is None)
    elif isinstance(block, Block):
        yield from record_lines(block)
    else:
        yield from zip(block.ids, block.positions, strict=True)


def each_record(block: AnyBlock) -> Iterator[Record]:
    """Yield every record of a block, with what is wrong with it. This is slow, and only for bad blocks."""
    if isinstance(block, Block):
        for single in single_records(block):
            record = Record(
                single.first_line,
                f"{block.file}{LINE_MARK}{single.first_line}",
                id_of(single),
                single.data.partition(b"\n")[2],
                bad_record(single),
            )
            yield from _by_chain(record, chained_record(single))
        return
    for index, position in enumerate(block.positions):
        record = Record(
            position,
            f"{block.file}{block.mark}{position}",
            block.ids[index],
            block.sequences[index],
            block.bad_row(index),
        )
        yield from by_chain(record, block.file)


def by_chain(record: Record, file: str) -> Iterator[Record]:
    """Yield the record of a row of a table, or one for each of its chains.

    Args:
        record: record of the row.
        file: file of the table.
    """
    found: Complex | Reject | None = None
    if record.bad is not None and record.bad.kind is Kind.CHAINS:
        text = record.sequence.decode(errors="replace")
        found = chained_text(record.id.decode(), text, None, where=record.where, file=file)
    yield from _by_chain(record, found)


def _by_chain(record: Record, found: Complex | Reject | None) -> Iterator[Record]:
    """Yield a record for each chain, or the record itself if it has only one.

    Args:
        record: record.
        found: chains of the record, or the reason why they cannot be used; None if it has only one.
    """
    if found is None:
        yield record
    elif isinstance(found, Reject):
        yield replace(record, bad=found)
    else:
        texts = chain_texts(record.sequence.decode())
        for number, (chain, text) in enumerate(zip(found.chains, texts, strict=True)):
            name = f"{found.id}.{chain.name}".encode()
            sequence = text.encode()
            bad = bad_row(record.where, name, sequence)
            yield replace(record, id=name, sequence=sequence, bad=bad, chain=number)


def _all_records(block: AnyBlock) -> tuple[list[bytes], list[bytes]] | None:
    """Return the ids and token strings of a block; None if it has a bad record."""
    if isinstance(block, Block):
        return parsed(block)
    tokens = without_stops([tokens_of(sequence) for sequence in block.sequences])
    if tokens is None or block.uneven or b"" in block.ids or not are_ids(block.ids):
        return None
    return block.ids, tokens
