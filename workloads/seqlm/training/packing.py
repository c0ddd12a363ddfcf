"""Assignment of proteins to packs, a pure function of (seed, epoch, step).

An epoch visits every unit of the split once. Blocks of consecutive units are permuted, shuffled inside and
filled into packs of a constant token count; a step is a fixed number of consecutive packs, whatever the
number of processes. Nothing but lengths is needed to plan, and nothing but (epoch, pack) to resume.
"""

import bisect
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from .hashing import below, hash64
from .records import RecordSplit

SPECIAL_TOKENS = 2
"""Tokens before and after a unit's own, as <cls> and <eos> around a protein."""
BLOCK_UNITS = 16_384
"""Units shuffled and packed together: about 5 MB of residues, read in one sweep."""
FILLER_SHARE = 4
"""One unit in this many is held back to fill the ends of packs."""

_BLOCK_SALT, _ORDER_SALT, _CROP_SALT, _PACK_SALT, MASK_SALT = range(1, 6)


@dataclass(frozen=True)
class PackShape:
    """The constant shape of a run's packs."""

    num_tokens: int
    max_residues: int
    max_segments: int
    """Segments that ``cumulative`` has room for: proteins and stretches of padding."""
    special_tokens: int = SPECIAL_TOKENS
    """Tokens of a segment besides its residues."""

    @property
    def max_length(self) -> int:
        """Tokens of the longest segment."""
        return self.max_residues + self.special_tokens

    @staticmethod
    def of(
        split: RecordSplit, num_tokens: int, max_residues: int, special_tokens: int = SPECIAL_TOKENS
    ) -> "PackShape":
        """Room for twice the average number of proteins, and for a pack of padding only."""
        mean = max(1.0, min(max_residues, split.num_residues / split.num_records)) + special_tokens
        padding = -(-num_tokens // (max_residues + special_tokens))
        return PackShape(num_tokens, max_residues, int(2 * num_tokens / mean) + 1 + padding, special_tokens)


@dataclass(frozen=True)
class PlannedPack:
    """The proteins of one pack; arrays have one entry per protein."""

    epoch: int
    units: npt.NDArray[np.int64]
    places: list[tuple[int, int]]
    starts: npt.NDArray[np.int64]
    """First residue of the crop."""
    residues: npt.NDArray[np.int64]
    """Residues of the crop."""
    special_tokens: int = SPECIAL_TOKENS

    @property
    def num_residues(self) -> int:
        return int(self.residues.sum())

    @property
    def num_attended_pairs(self) -> int:
        """Sum of squared segment lengths: what attention costs, for the count of FLOPs."""
        return int(((self.residues + self.special_tokens) ** 2).sum())


@dataclass(frozen=True)
class HostPack:
    """One micro-batch on the host, before masking; shapes are constant over a run."""

    tokens: npt.NDArray[np.uint8] | npt.NDArray[np.int32]
    """(T,) CLS residues EOS, protein after protein, padded at the end."""
    cumulative: npt.NDArray[np.int32]
    """(S + 1,) segment bounds; padding is cut into segments of the largest length, spare ones are empty."""
    keys: npt.NDArray[np.int64]
    """(S,) bits of a hash of (seed, epoch, unit): the protein's part of the mask hash."""
    starts: npt.NDArray[np.int64]
    """(S,) place in the full protein of the crop's first residue."""


@dataclass(frozen=True)
class Position:
    """Position of a run in its data."""

    epoch: int = 0
    pack: int = 0
    """Packs of this epoch that are consumed."""


class PackStream(ABC):
    """The endless sequence of packs of a split."""

    def __init__(self, split: RecordSplit, shape: PackShape, seed: int) -> None:
        self.split, self.shape, self.seed = split, shape, seed

    def packs(self, position: Position = Position()) -> Iterator[tuple[PlannedPack, Position]]:
        """Packs from ``position`` on, each with the position after it. Never ends."""
        epoch, skip = position.epoch, position.pack
        while True:
            taken = 0
            for pack in self.epoch(epoch):
                taken += 1
                if taken > skip:
                    yield pack, Position(epoch, taken)
            if skip > taken:
                raise ValueError(
                    f"epoch {epoch} has {taken} packs, fewer than the {skip} already consumed; "
                    "the data or its packing changed since the checkpoint was written"
                )
            epoch, skip = epoch + 1, 0

    def epoch(self, epoch: int) -> Iterator[PlannedPack]:
        """The packs of one epoch, each unit in exactly one of them."""
        num_blocks = -(-self.split.num_units // BLOCK_UNITS)
        order = np.argsort(hash64(_BLOCK_SALT, self.seed, epoch, np.arange(num_blocks)), kind="stable")
        for block in order.tolist():
            yield from self._block(block, epoch)

    def _block(self, block: int, epoch: int) -> Iterator[PlannedPack]:
        first = block * BLOCK_UNITS
        units = np.arange(first, min(first + BLOCK_UNITS, self.split.num_units), dtype=np.int64)
        places, full = self.split.draw(first, len(units), self.seed, epoch)
        residues = np.minimum(full, self.shape.max_residues)
        starts = self.crop_starts(epoch, units, full - residues)
        order = np.argsort(hash64(_ORDER_SALT, self.seed, epoch, units), kind="stable")
        padding_segments = -(-self.shape.num_tokens // self.shape.max_length)
        packs = pack_lengths(
            residues[order] + self.shape.special_tokens,
            self.shape.num_tokens,
            self.shape.max_segments - padding_segments,
        )
        # The last packs hold what would not fit elsewhere; shuffled, no step is made of them alone.
        shuffled = np.argsort(
            hash64(_PACK_SALT, self.seed, epoch, block, np.arange(len(packs))), kind="stable"
        )
        for index in shuffled.tolist():
            chosen = order[packs[index]]
            yield PlannedPack(
                epoch,
                units[chosen],
                [places[i] for i in chosen.tolist()],
                starts[chosen],
                residues[chosen],
                self.shape.special_tokens,
            )

    def crop_starts(
        self, epoch: int, units: npt.NDArray[np.int64], spare: npt.NDArray[np.int64]
    ) -> npt.NDArray[np.int64]:
        """First residue of each protein's crop, (units,), of which ``spare`` residues do not fit."""
        return below(hash64(_CROP_SALT, self.seed, epoch, units), spare + 1)

    @abstractmethod
    def load(self, pack: PlannedPack | None) -> HostPack:
        """Read a planned pack's units; None gives a pack of padding, for a rank with nothing to do."""


def pack_lengths(
    lengths: npt.NDArray[np.int64], capacity: int, max_items: int
) -> list[npt.NDArray[np.int64]]:
    """Fill packs with items in order, their ends with the best fitting of the items held back.

    Args:
        lengths: (N,) token counts, each at most ``capacity``.
        capacity: tokens of a pack.
        max_items: items of a pack.

    Returns:
        Indices into ``lengths``, each in exactly one pack.
    """
    packs: list[npt.NDArray[np.int64]] = []
    remaining = np.arange(len(lengths), dtype=np.int64)
    while len(remaining):
        held_back = len(remaining) // FILLER_SHARE
        stream, fillers = remaining[held_back:], remaining[:held_back]
        fillers = fillers[np.argsort(lengths[fillers], kind="stable")]
        filler_lengths: list[int] = lengths[fillers].tolist()
        filler_items: list[int] = fillers.tolist()
        ends = np.cumsum(lengths[stream])
        first, used = 0, 0
        while first < len(stream):
            last = min(int(np.searchsorted(ends, used + capacity, side="right")), first + max_items)
            chosen = stream[first:last]
            room = capacity - (int(ends[last - 1]) - used)
            extra: list[int] = []
            while filler_lengths and len(chosen) + len(extra) < max_items:
                best = bisect.bisect_right(filler_lengths, room) - 1
                if best < 0:
                    break
                room -= filler_lengths.pop(best)
                extra.append(filler_items.pop(best))
            packs.append(np.concatenate([chosen, np.array(extra, dtype=np.int64)]))
            first, used = last, int(ends[last - 1])
        # What was held back and not needed is packed in the same way, in its shuffled order.
        remaining = np.sort(np.array(filler_items, dtype=np.int64))
    return packs
