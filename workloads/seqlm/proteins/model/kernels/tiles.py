"""Tiles of the attention kernels: their sizes for each head size, and which ones a pack has.

Shapes: T tokens of the pack, S segments, N tiles.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from seqlm.training.layered_model import Segments


@dataclass(frozen=True)
class Tuning:
    """Sizes of a kernel's tiles and how a GPU runs it."""

    queries: int
    """Queries of a tile."""
    keys: int
    """Keys of a tile."""
    warps: int
    """Warps of 32 threads that compute a tile together."""
    stages: int
    """Loads of the inner loop that are under way at once, plus one."""


@dataclass(frozen=True, kw_only=True)
class Tilings:
    """Tunings of the three kernels for one head size."""

    forward: Tuning
    of_queries: Tuning
    """Tuning of the gradients of queries."""
    of_keys: Tuning
    """Tuning of the gradients of keys and values."""

    def __post_init__(self) -> None:
        assert self.of_queries.queries == self.of_keys.keys, "both passes have one list of tiles"

    @property
    def forward_rows(self) -> int:
        """Tokens of a tile of the forward pass."""
        return self.forward.queries

    @property
    def backward_rows(self) -> int:
        """Tokens of a tile of both backward passes."""
        return self.of_keys.keys


def _square(stages: int) -> Tuning:
    return Tuning(queries=64, keys=64, warps=4, stages=stages)


_LARGER_HEADS = Tilings(forward=_square(3), of_queries=_square(3), of_keys=_square(3))
TILINGS: Mapping[int, Tilings] = {
    16: Tilings(
        forward=_square(1),
        of_queries=_square(3),
        of_keys=Tuning(queries=32, keys=64, warps=4, stages=1),
    ),
    24: Tilings(forward=_square(1), of_queries=_square(3), of_keys=_square(3)),
    32: _LARGER_HEADS,
    64: _LARGER_HEADS,
}
"""Tilings by head size, for the head sizes that have kernels. They are the fastest of 8 to 11 tunings of each
kernel on an H200 (``benchmarks/tunings.py``; torch 2.11, triton 3.6), at head size 24 within 1 %."""


@dataclass(frozen=True)
class AttentionTiles:
    """Tiles of a pack's proteins, in the order of the tokens.

    A list is int32 of shape (3, N): first token of the tile's segment, tokens of the segment, and first token
    of the tile within the segment. Spare entries are behind the others, with segments of 0 tokens.
    """

    forward: Tensor
    """List for the forward pass."""
    backward: Tensor
    """List for both backward passes."""


def attention_tiles(segments: Segments, num_tokens: int, head_size: int) -> AttentionTiles:
    """List the tiles of a pack on its device, without a value for the host.

    Args:
        segments: boundaries of the proteins. They cover all tokens.
        num_tokens: tokens of the pack.
        head_size: a head size of ``TILINGS``.
    """
    tilings = TILINGS[head_size]
    forward = tile_list(segments.cumulative, num_tokens, tilings.forward_rows)
    if tilings.backward_rows == tilings.forward_rows:
        return AttentionTiles(forward, forward)
    return AttentionTiles(
        forward, tile_list(segments.cumulative, num_tokens, tilings.backward_rows)
    )


def tile_list(cumulative: Tensor, num_tokens: int, rows: int) -> Tensor:
    """Return the list (3, N) of the tiles of ``rows`` tokens.

    Args:
        cumulative: (S + 1,) bounds of the proteins, from 0 to the number of tokens.
        num_tokens: T, on which N depends together with S.
        rows: tokens of a tile.
    """
    starts = cumulative[:-1]
    lengths = cumulative.diff()
    counts = (lengths + (rows - 1)) // rows  # empty segments have no tile
    ends = counts.cumsum(0, dtype=torch.int32)
    most = num_tokens // rows + len(lengths)
    number = torch.arange(most, dtype=torch.int32, device=cumulative.device)
    segment = torch.searchsorted(ends, number, right=True).clamp(max=len(lengths) - 1)
    first = (number - (ends - counts)[segment]) * rows
    is_spare = number >= ends[-1]
    return torch.stack([starts[segment], lengths[segment].masked_fill(is_spare, 0), first])
