"""Ids that occur twice: all records but the first one in the order of the input are left out.

Ids are compared by their hashes first. Only if hashes repeat, the files are read again to locate the records.
Memory is about 30 bytes for each repeated id and for each record that is left out.
"""

import hashlib
import itertools
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from functools import partial

import numpy as np
import numpy.typing as npt

from seqlm.proteins.reading.policies import Kind
from seqlm.training.data.spill import (
    SPLIT_SALT,
    SpillReader,
    UInt64s,
    cell_ranges,
    hash_all,
)

from .blocks import AnyBlock, end_position, located_ids, parts_of, repeated_id
from .collected_rejects import SHOWN_EXAMPLES, Rejects
from .inputs import ProteinInput
from .job import Job, Plan, Spilled
from .shards import load_runs, save_runs

IDS_FILE = "ids.runs"
"""List of the runs of ids in the folder of spilled data."""
_IDS_PER_TASK = 2_000_000
_POSITION_BITS = 40
"""Bits of a place for the position in the file. The bits above them are the number of the file."""
_digest = partial(hashlib.blake2b, digest_size=8)


@dataclass(frozen=True)
class InBlock:
    """Records of a block whose ids were used before."""

    positions: UInt64s
    """Positions of the records, sorted."""
    first_places: UInt64s
    """Place at which the id of each was used before."""
    inputs: Sequence[ProteinInput]

    def within(self, block: AnyBlock) -> dict[int, str]:
        """Return the places of the first uses, by the positions of the records in a part of the block."""
        begin, end = _bounds(self.positions, block)
        places = zip(
            self.positions[begin:end].tolist(), self.first_places[begin:end].tolist(), strict=True
        )
        return {position: place_of(self.inputs, place) for position, place in places}


def _bounds(positions: UInt64s, block: AnyBlock) -> tuple[int, int]:
    """Return the indices of the sorted positions that are in a block, as a range."""
    bounds = np.array([block.first_line, end_position(block)], np.uint64)
    begin, end = np.searchsorted(positions, bounds).tolist()
    return begin, end


def place_of(inputs: Sequence[ProteinInput], place: int) -> str:
    """Return a place as text for messages."""
    return inputs[place >> _POSITION_BITS].where(place & ((1 << _POSITION_BITS) - 1))


@dataclass(frozen=True)
class Repeated:
    """Records of the whole input whose ids were used before."""

    inputs: Sequence[ProteinInput]
    of_input: Sequence[tuple[UInt64s, UInt64s]]
    """Positions of the records and places of the first uses, for each file."""
    rejects: Rejects
    """Their number, and the first ones."""

    def in_block(self, number: int, block: AnyBlock) -> InBlock:
        """Return those in a block of a file.

        Args:
            number: place of the file among the inputs.
            block: block of its records.
        """
        positions, first_places = self.of_input[number]
        begin, end = _bounds(positions, block)
        return InBlock(positions[begin:end], first_places[begin:end], self.inputs)


def repeated_hashes(job: Job, spilled: Spilled) -> UInt64s:
    """Return the hashes that several ids have, sorted."""
    cells = cell_ranges(spilled.records // _IDS_PER_TASK + 1)
    runs = job.merged("merged-ids", spilled.id_runs, len(cells))
    save_runs(runs, job.plan.spill / IDS_FILE)
    return np.concatenate(list(job.run(_repeated, cells)))


def _repeated(plan: Plan, first_cell: int, next_cell: int) -> UInt64s:
    """Return the hashes in a range of cells that several ids have."""
    with SpillReader(load_runs(plan.spill / IDS_FILE)) as reader:
        slices = reader.rows(first_cell, next_cell)
    if not slices:
        return np.zeros(0, np.uint64)
    keys = np.sort(np.concatenate([part.keys for part in slices]))
    return np.unique(keys[1:][keys[1:] == keys[:-1]])


class _FirstUses:
    """First places of ids.

    An id is known by two hashes, 128 bits in all.

    Args:
        hashes: hashes that several ids have, sorted.
    """

    def __init__(self, hashes: UInt64s) -> None:
        self._hashes = hashes
        self._checks: UInt64s = np.zeros(len(hashes), np.uint64)
        self._places: UInt64s = np.zeros(len(hashes), np.uint64)
        self._is_used: npt.NDArray[np.bool_] = np.zeros(len(hashes), bool)
        self._others: dict[tuple[int, int], int] = {}
        """Places of ids that share their first hash with another id."""

    def candidates(self, id_hashes: UInt64s) -> list[tuple[int, int]]:
        """Return the number of the record and the index of the hash, for each id that may be repeated."""
        index = np.searchsorted(self._hashes, id_hashes)
        index[index == len(self._hashes)] = 0
        found = np.flatnonzero(self._hashes[index] == id_hashes)
        return list(zip(found.tolist(), index[found].tolist(), strict=True))

    def first_use(self, index: int, record_id: bytes, place: int) -> int | None:
        """Return the place at which an id was used before; None if this is the first one.

        Args:
            index: index of its hash.
            record_id: id.
            place: place of the record.
        """
        check = int.from_bytes(_digest(record_id).digest(), "little")
        if not self._is_used[index]:
            self._is_used[index] = True
            self._checks[index] = check
            self._places[index] = place
            return None
        if int(self._checks[index]) == check:
            return int(self._places[index])
        first = self._others.setdefault((index, check), place)
        return None if first == place else first


def _repeats(part: AnyBlock, uses: _FirstUses, file_number: int) -> list[tuple[bytes, int, int]]:
    """Return the id, the position and the place of the first use of each record whose id was used before."""
    located = list(located_ids(part))
    id_hashes = hash_all([record_id for record_id, _ in located], SPLIT_SALT)
    found: list[tuple[bytes, int, int]] = []
    for number, index in uses.candidates(id_hashes):
        record_id, position = located[number]
        first = uses.first_use(index, record_id, file_number << _POSITION_BITS | position)
        if first is not None:
            found.append((record_id, position, first))
    return found


def find_repeated(job: Job, inputs: Sequence[ProteinInput], hashes: UInt64s) -> Repeated:
    """Read the files again to find the records whose ids were used before."""
    uses = _FirstUses(hashes)
    numbers = itertools.count(1)
    rejects = Rejects()
    of_input: list[tuple[UInt64s, UInt64s]] = []
    for file_number, source in enumerate(inputs):
        positions: list[UInt64s] = []
        first_places: list[UInt64s] = []
        with closing(source.reader(numbers)) as reader:
            limits = job.plan.limits
            for block in reader.blocks(limits):
                for part in parts_of(block, limits.block_records):
                    found = _repeats(part, uses, file_number)
                    for record_id, position, first in found[:SHOWN_EXAMPLES]:
                        place = source.where(position)
                        rejects.show(repeated_id(place, record_id, place_of(inputs, first)))
                    rejects.counts[Kind.REPEATED_ID] += len(found)
                    positions.append(np.array([one[1] for one in found], np.uint64))
                    first_places.append(np.array([one[2] for one in found], np.uint64))
        of_input.append((np.concatenate(positions), np.concatenate(first_places)))
    return Repeated(inputs, of_input, rejects)
