"""Assignment of records to packs, a pure function of (seed, epoch, step).

An epoch visits every unit of the split once. Blocks of consecutive units are permuted. The units of a block
are shuffled and filled into packs of a constant token count. A step is a fixed number of consecutive packs,
whatever the number of processes. A plan needs only the lengths of the records, and a resumed run only its
position in the epoch, which names a block. A resume therefore plans one block, however long the epoch is.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np
import numpy.typing as npt

from .hashing import below, hash64
from .records import RecordSplit

SPECIAL_TOKENS = 2
"""Number of tokens around a record's own, such as <cls> before and <eos> after it."""
BLOCK_UNITS = 16_384
"""Units that are shuffled and packed together. They are read in one sweep of about 5 MB."""
FILLER_SHARE = 4
"""One unit in this many is held back to fill the ends of packs."""

# Salts keep the hashes of one number for different purposes apart.
_BLOCK_SALT = 1
_ORDER_SALT = 2
_CROP_SALT = 3
_PACK_SALT = 4
MASK_SALT = 5
"""Salt of the hash that chooses the tokens to mask."""


@dataclass(frozen=True)
class PackShape:
    """Shape of a run's packs, which is constant."""

    num_tokens: int
    """Length of a pack in tokens, padding included."""
    max_record_tokens: int
    """Length to which records are cropped, without special tokens."""
    max_segments: int
    """Largest number of segments in a pack: records and stretches of padding."""
    special_tokens: int = SPECIAL_TOKENS
    """Number of tokens of a segment besides those of its record."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest segment."""
        return self.max_record_tokens + self.special_tokens

    @staticmethod
    def of(
        split: RecordSplit,
        num_tokens: int,
        max_record_tokens: int,
        special_tokens: int = SPECIAL_TOKENS,
    ) -> "PackShape":
        """Return a shape with room for twice the average number of records, and for a pack of padding."""
        mean_record_tokens = min(max_record_tokens, split.num_tokens / split.num_records)
        mean_length = max(1.0, mean_record_tokens) + special_tokens
        max_records = int(2 * num_tokens / mean_length) + 1
        max_paddings = -(-num_tokens // (max_record_tokens + special_tokens))
        return PackShape(num_tokens, max_record_tokens, max_records + max_paddings, special_tokens)


@dataclass(frozen=True)
class PlannedPack:
    """Records of one pack. Arrays have one entry per record."""

    epoch: int
    units: npt.NDArray[np.int64]
    """Units that the records represent in this epoch."""
    places: list[tuple[int, int]]
    """Places of the records in the split, as ``RecordSplit.draw`` gives them."""
    starts: npt.NDArray[np.int64]
    """Index of each crop's first token within its record."""
    lengths: npt.NDArray[np.int64]
    """Number of tokens of each crop, without special tokens."""
    special_tokens: int = SPECIAL_TOKENS

    @property
    def num_record_tokens(self) -> int:
        """Tokens of the records, without special tokens and padding."""
        return int(self.lengths.sum())

    @property
    def num_attended_pairs(self) -> int:
        """Sum of the squared segment lengths, to which the FLOPs of attention are proportional."""
        return int(((self.lengths + self.special_tokens) ** 2).sum())


@dataclass(frozen=True)
class HostPack:
    """One micro-batch on the host, before masking. Its T tokens and S segments are constant over a run."""

    tokens: npt.NDArray[np.uint8] | npt.NDArray[np.int32]
    """(T,) segment after segment, each a record with its special tokens, padded at the end."""
    cumulative: npt.NDArray[np.int32]
    """(S + 1,) bounds of the segments. Padding is cut into segments of the largest length; spare segments are
    empty."""
    keys: npt.NDArray[np.int64]
    """(S,) hashes of (seed, epoch, unit) as int64: each record's part of the mask hash."""
    starts: npt.NDArray[np.int64]
    """(S,) index of each crop's first token within its record."""


@dataclass(frozen=True)
class Position:
    """Position of a run in its data."""

    epoch: int = 0
    pack: int = 0
    """Number of packs of this epoch that the run has consumed."""
    block: int = 0
    """Number of the block of the last of these packs, in the order of the epoch."""
    block_packs: int = 0
    """Number of packs of this block that the run has consumed. 0 with a consumed pack means that the block is
    not known, as in checkpoints of earlier versions; the epoch is then planned from its start."""


@dataclass(frozen=True)
class PlannedBlock:
    """Packs of one block. It has no places of records, which a process needs only for its own packs."""

    epoch: int
    first_unit: int
    """First unit of the block."""
    members: npt.NDArray[np.uint16]
    """(units,) units of the block, counted from its first one, pack after pack."""
    bounds: npt.NDArray[np.int64]
    """(packs + 1,) first member of each pack, and the number of members."""
    token_bounds: npt.NDArray[np.int64]
    """(packs + 1,) tokens of the records before each pack, without special tokens, and of all packs."""
    pair_bounds: npt.NDArray[np.int64]
    """(packs + 1,) sum of the squared segment lengths before each pack, and of all packs."""

    def __len__(self) -> int:
        return len(self.bounds) - 1


@dataclass(frozen=True)
class PackRange:
    """Consecutive packs of one block."""

    block: PlannedBlock
    index: int
    """Number of the block in the order of the epoch."""
    num_before: int
    """Number of packs of the epoch before the block."""
    first: int
    """First pack of the range, counted from the block's first one."""
    stop: int
    """Pack of the block that follows the range."""

    def __len__(self) -> int:
        return self.stop - self.first

    @property
    def num_records(self) -> int:
        """Number of records of all packs of the range."""
        return self._between(self.block.bounds)

    @property
    def num_record_tokens(self) -> int:
        """Tokens of the records, without special tokens and padding."""
        return self._between(self.block.token_bounds)

    @property
    def num_attended_pairs(self) -> int:
        """Sum of the squared segment lengths."""
        return self._between(self.block.pair_bounds)

    def _between(self, bounds: npt.NDArray[np.int64]) -> int:
        return int(bounds[self.stop] - bounds[self.first])

    def position_after(self, number: int) -> Position:
        """Return the position of a run after a pack of the block."""
        num_consumed = number + 1
        return Position(self.block.epoch, self.num_before + num_consumed, self.index, num_consumed)

    def split_at(self, num_packs: int) -> tuple["PackRange", "PackRange"]:
        """Return the first packs of the range and the others; either may be empty."""
        middle = min(self.stop, self.first + num_packs)
        return replace(self, stop=middle), replace(self, first=middle)


class SharedPlans(Protocol):
    """Plans of blocks that several processes make in turns."""

    def planned(
        self, stream: "PackStream", epoch: int, blocks: Sequence[int], index: int
    ) -> PlannedBlock:
        """Return the plan of a block, equal to ``stream.plan(epoch, blocks[index])``."""


class PackStream(ABC):
    """Endless sequence of packs of a split.

    Args:
        split: records to pack.
        shape: shape of the packs.
        seed: seed of the order, of the crops and of the members that represent clusters.
    """

    def __init__(self, split: RecordSplit, shape: PackShape, seed: int) -> None:
        self.split = split
        self.shape = shape
        self.seed = seed
        self.shared_plans: SharedPlans | None = None
        """Plans that the processes of a node share; None lets each process plan every block."""

    def packs(self, position: Position = Position()) -> Iterator[tuple[PlannedPack, Position]]:
        """Yield packs from ``position`` on, each with the position after it. Never ends.

        Raises:
            ValueError: if the epoch of ``position`` has fewer packs than the run has consumed.
        """
        for left in self.ranges(position):
            for number in range(left.first, left.stop):
                yield self.pack(left.block, number), left.position_after(number)

    def ranges(self, position: Position = Position()) -> Iterator["PackRange"]:
        """Yield the packs from ``position`` on, block by block. Never ends.

        Raises:
            ValueError: if the epoch of ``position`` has fewer packs than the run has consumed.
        """
        while True:
            yield from self._rest(position)
            position = Position(position.epoch + 1)

    def _rest(self, position: Position) -> Iterator["PackRange"]:
        """Yield the packs of one epoch from a position on."""
        epoch = position.epoch
        blocks = self._blocks(epoch)
        num_before = position.pack - position.block_packs if position.block_packs else 0
        first = position.block if position.block_packs else 0
        for index in range(first, len(blocks)):
            block = self._planned(epoch, blocks, index)
            num_consumed = min(len(block), max(0, position.pack - num_before))
            if num_consumed < len(block):
                yield PackRange(block, index, num_before, num_consumed, len(block))
            num_before += len(block)
            if position.block_packs and num_before < position.pack:
                break
        if num_before < position.pack:
            raise ValueError(
                f"epoch {epoch} has {num_before} packs, fewer than the {position.pack} already consumed; "
                "the data or its packing changed since the checkpoint was written"
            )

    def epoch(self, epoch: int) -> Iterator[PlannedPack]:
        """Yield the packs of one epoch. Each unit is in exactly one of them."""
        for left in self._rest(Position(epoch)):
            for number in range(left.first, left.stop):
                yield self.pack(left.block, number)

    def _blocks(self, epoch: int) -> list[int]:
        """Return the blocks of an epoch in their order."""
        num_blocks = -(-self.split.num_units // BLOCK_UNITS)
        hashes = hash64(_BLOCK_SALT, self.seed, epoch, np.arange(num_blocks))
        return ascending(hashes).tolist()

    def _planned(self, epoch: int, blocks: Sequence[int], index: int) -> PlannedBlock:
        """Return the plan of a block.

        Args:
            epoch: epoch, from 0 on.
            blocks: blocks of the epoch in their order.
            index: number of the block in this order.
        """
        if self.shared_plans is None:
            return self.plan(epoch, blocks[index])
        return self.shared_plans.planned(self, epoch, blocks, index)

    def plan(self, epoch: int, block: int) -> PlannedBlock:
        """Assign the units of a block to packs."""
        first = block * BLOCK_UNITS
        units = np.arange(first, min(first + BLOCK_UNITS, self.split.num_units), dtype=np.int64)
        full_lengths = self.split.drawn(units, self.seed, epoch).lengths
        lengths = np.minimum(full_lengths, self.shape.max_record_tokens)
        order = ascending(hash64(_ORDER_SALT, self.seed, epoch, units))
        max_paddings = -(-self.shape.num_tokens // self.shape.max_length)
        packed = pack_lengths(
            lengths[order] + self.shape.special_tokens,
            self.shape.num_tokens,
            self.shape.max_segments - max_paddings,
        )
        # The last packs hold what did not fit elsewhere. Shuffled, they do not make up whole steps.
        hashes = hash64(_PACK_SALT, self.seed, epoch, block, np.arange(packed.num_packs))
        shuffled = packed.in_order(ascending(hashes))
        members = order[shuffled.items]
        bounds = shuffled.bounds
        in_order = lengths[members]
        segments = in_order + self.shape.special_tokens
        return PlannedBlock(
            epoch=epoch,
            first_unit=first,
            members=members.astype(np.uint16),
            bounds=bounds,
            token_bounds=_sums_at(bounds, in_order),
            pair_bounds=_sums_at(bounds, segments * segments),
        )

    def pack(self, block: PlannedBlock, number: int) -> PlannedPack:
        """Return a pack of a block with the places of its records.

        Args:
            block: plan of the block.
            number: number of the pack in the block, from 0.
        """
        members = block.members[block.bounds[number] : block.bounds[number + 1]]
        units = block.first_unit + members.astype(np.int64)
        drawn = self.split.drawn(units, self.seed, block.epoch)
        lengths = np.minimum(drawn.lengths, self.shape.max_record_tokens)
        return PlannedPack(
            block.epoch,
            units,
            drawn.places,
            self.crop_starts(block.epoch, units, drawn.lengths - lengths),
            lengths,
            self.shape.special_tokens,
        )

    def crop_starts(
        self, epoch: int, units: npt.NDArray[np.int64], excess: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """Return the index of the first token of each record's crop, shape (units,).

        Args:
            epoch: epoch, from 0 on.
            units: units that the records represent.
            excess: (units,) number of tokens of each record that do not fit.
        """
        return below(hash64(_CROP_SALT, self.seed, epoch, units), excess + 1)

    @abstractmethod
    def load(self, pack: PlannedPack | None) -> HostPack:
        """Read the records of a planned pack. None gives a pack of padding, for a process without a pack."""


def ascending(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.int64]:
    """Return the order of hashes, in which equal ones keep theirs.

    Sorting numbers takes a third of the time of sorting their indices. So the low bits of each hash make room
    for its index. Two hashes of a block hardly ever have the same high bits.
    """
    low_bits = np.uint64((1 << max(0, len(hashes) - 1).bit_length()) - 1)
    indices = np.arange(len(hashes), dtype=np.uint64)
    keys = np.sort((hashes & ~low_bits) | indices)
    if ((keys[1:] ^ keys[:-1]) <= low_bits).any():
        return np.argsort(hashes, kind="stable")
    return (keys & low_bits).astype(np.int64)


def _sums_at(bounds: npt.NDArray[np.int64], values: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the sum of the values before each bound."""
    sums = np.zeros(len(values) + 1, dtype=np.int64)
    np.cumsum(values, out=sums[1:])
    return sums[bounds]


@dataclass(frozen=True)
class PackedItems:
    """Packs of items. Those of one pack follow each other."""

    items: npt.NDArray[np.int64]
    """(N,) items, pack after pack."""
    bounds: npt.NDArray[np.int64]
    """(packs + 1,) first item of each pack, and the number of items."""

    @property
    def num_packs(self) -> int:
        return len(self.bounds) - 1

    def in_order(self, packs: npt.NDArray[np.int64]) -> "PackedItems":
        """Return the same packs in another order."""
        sizes = np.diff(self.bounds)[packs]
        bounds = _bounds_of(sizes)
        within = np.arange(len(self.items)) - np.repeat(bounds[:-1], sizes)
        return PackedItems(self.items[np.repeat(self.bounds[packs], sizes) + within], bounds)


def pack_lengths(lengths: npt.NDArray[np.int64], capacity: int, max_items: int) -> PackedItems:
    """Fill packs with items in order, and their ends with the best fitting of the items held back.

    Args:
        lengths: (N,) lengths of the items in tokens, each at most ``capacity``.
        capacity: length of a pack in tokens.
        max_items: largest number of items in a pack.

    Returns:
        Indices into ``lengths``, each in exactly one pack.
    """
    index_bits = len(lengths).bit_length()
    index_mask = (1 << index_bits) - 1
    items: list[npt.NDArray[np.int64]] = []
    packs: list[npt.NDArray[np.int64]] = []
    num_packs = 0
    remaining = np.arange(len(lengths), dtype=np.int64)
    while len(remaining):
        num_fillers = len(remaining) // FILLER_SHARE
        fillers = remaining[:num_fillers]
        # One number for the length of a filler and its place in the order, so that equal lengths keep theirs.
        keys = np.sort((lengths[fillers] << index_bits) | np.arange(num_fillers))
        unused: list[int] = keys.tolist()
        streamed = remaining[num_fillers:]
        ends = np.cumsum(lengths[streamed]).data  # a view, whose numbers are those of Python
        num_streamed = len(streamed)
        sizes: list[int] = []  # of the packs, without fillers
        chosen: list[int] = []
        num_chosen: list[int] = [0]  # fillers of all packs up to each one
        first = 0
        used = 0  # length of the stream's items that are packed
        while first < num_streamed:
            last = bisect_right(ends, used + capacity, first, min(first + max_items, num_streamed))
            before = used
            used = ends[last - 1]
            room = capacity - (used - before)
            num_free = max_items - (last - first)
            while num_free and unused:
                # The longest one that fits, and of equal ones the last.
                best = bisect_right(unused, (room << index_bits) | index_mask)
                if not best:
                    break
                key = unused.pop(best - 1)
                chosen.append(key & index_mask)
                room -= key >> index_bits
                num_free -= 1
            sizes.append(last - first)
            num_chosen.append(len(chosen))
            first = last
        numbers = np.arange(num_packs, num_packs + len(sizes))
        items += [streamed, fillers[chosen]]
        packs += [np.repeat(numbers, sizes), np.repeat(numbers, np.diff(num_chosen))]
        num_packs += len(sizes)
        # Fillers that were not needed are packed in the same way, in their shuffled order.
        is_unused = np.ones(num_fillers, dtype=bool)
        is_unused[chosen] = False
        remaining = fillers[is_unused]
    return _grouped(items, packs, num_packs)


def _grouped(
    items: Sequence[npt.NDArray[np.int64]], packs: Sequence[npt.NDArray[np.int64]], num_packs: int
) -> PackedItems:
    """Return items pack after pack; those of one pack keep their order.

    Args:
        items: parts of the items.
        packs: pack of each item, in the same parts.
        num_packs: number of packs.
    """
    if not items:
        return PackedItems(np.empty(0, np.int64), np.zeros(1, np.int64))
    # Numpy sorts numbers of 16 bits by counting, which keeps the order and takes a tenth of the time.
    numbers = np.concatenate(packs)
    is_small = num_packs <= np.iinfo(np.uint16).max
    order = np.argsort(numbers.astype(np.uint16) if is_small else numbers, kind="stable")
    sizes = np.bincount(numbers, minlength=num_packs)
    return PackedItems(np.concatenate(items)[order], _bounds_of(sizes))


def _bounds_of(sizes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the first place of each group, and the number of places."""
    bounds = np.zeros(len(sizes) + 1, dtype=np.int64)
    np.cumsum(sizes, out=bounds[1:])
    return bounds
