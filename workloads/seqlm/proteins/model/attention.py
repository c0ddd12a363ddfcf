"""Bidirectional attention within the proteins of a pack, never across them.

Shapes: T tokens of the pack, H heads, D head size, L length of one protein.

* bf16 on CUDA: torch's varlen flash kernel.
* fp32 on a CPU: torch's flash kernel for CPUs, one protein at a time. It takes 0.82 of the time of the
  products below in training, and 0.63 to 0.75 of it without a backward pass (one Zen 3 core, head size 16,
  torch 2.13).
* XLA: products of constant shapes (``window_attention.py``).
* Everything else: matrix products over the heads of one protein, whose tiles of scores stay in the cache. For
  bf16 on a CPU they are about twice as fast as the flash kernel at ESM-2's head sizes (16 to 64).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from seqlm.training.device_runtime import uses_flash
from seqlm.training.layered_model import Segments

from .window_attention import window_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch 2.9, the last one for XLA on Trainium
    varlen_attn = None  # type: ignore[assignment]

SCORE_TILE_BYTES = 2 << 20
"""Largest number of bytes of scores of a tile, which holds several heads. Two tiles stay in a server core's
share of the L2 and L3 caches. On a Zen 4 core at head size 16, 1 to 2 MiB is best at 150 to 1024 residues."""
FORWARD_TILE_BYTES = 1 << 20
"""Largest number of bytes of a tile without a backward pass, which needs one tile at a time."""
LENGTH_STEP = 32
"""Number to a multiple of which lengths are rounded up. oneDNN compiles a kernel for each new shape of a
product (1.5 ms and 0.7 MB each); kernels for 32 lengths fit its cache, and those for a thousand do not."""
BUFFER_STEP_ELEMENTS = 4 << 20
"""Number to a multiple of which sizes of buffers are rounded up."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return the rotary embedding (Su et al. 2021) of x (T, H, D), in its type.

    The arithmetic is that of the wider type.

    Args:
        x: (T, H, D) queries or keys.
        cos: (T, 1, D / 2) cosines of the angles.
        sin: (T, 1, D / 2) sines of the angles.
    """
    first, second = x.chunk(2, dim=-1)
    new_first = first * cos - second * sin
    new_second = second * cos + first * sin
    return torch.cat((new_first, new_second), dim=-1).to(x.dtype)


def uses_cpu_kernel(x: Tensor) -> bool:
    """Return whether torch's flash kernel for CPUs computes attention for the device and type of ``x``."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def takes_rows(x: Tensor) -> bool:
    """Return whether attention takes queries of some tokens only, as the loops over proteins do."""
    return x.device.type == "cpu" and not uses_flash(x)


def packed_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    segments: Segments,
    rows: Tensor | None = None,
) -> Tensor:
    """Compute the softmax attention of rotated queries and keys, scaled by D ** -0.5.

    For flash attention the rotation is computed in fp32, which costs nothing in a compiled layer and lowers
    the error of scores by a third. Elsewhere it is computed in the operands' type: on a CPU, fp32 takes
    longer.

    Args:
        q: (T, H, D) queries before rotation; (K, H, D) with ``rows``.
        k: (T, H, D) keys before rotation.
        v: (T, H, D) values.
        cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
        sin: (T, 1, D / 2) fp32 sines of the rotary angles.
        segments: boundaries of the proteins.
        rows: (K,) tokens of the queries, in any order; only if ``takes_rows``. None: all.

    Returns:
        (T, H, D) or (K, H, D) in the operands' type.
    """
    if uses_flash(q):
        bounds = segments.cumulative
        longest = segments.max_length
        q = rotate(q, cos, sin)
        k = rotate(k, cos, sin)
        context = varlen_attn(q, k, v, bounds, bounds, longest, longest)
        assert isinstance(context, Tensor)  # a tuple is returned only with further options
        return context
    if q.device.type == "xla":
        assert segments.of_token is not None
        cos = cos.to(q.dtype)
        sin = sin.to(q.dtype)
        q = rotate(q, cos, sin) * q.shape[-1] ** -0.5
        return window_attention(q, rotate(k, cos, sin), v, segments.of_token, segments.max_length)
    return _segment_attention(q, k, v, cos, sin, segments.cumulative, rows)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the loop's length changes with every pack
def _segment_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cos: Tensor,
    sin: Tensor,
    cumulative: Tensor,
    rows: Tensor | None,
) -> Tensor:
    """Compute ``packed_attention`` for one protein after another."""
    cos = cos.to(q.dtype)
    sin = sin.to(q.dtype)
    of_keys = cumulative.long().unique_consecutive()  # without empty segments
    of_queries = of_keys
    if rows is not None:  # a protein's queries lie together once they are sorted
        rows, order = rows.sort(stable=True)
        q = q[order]
        of_queries = torch.searchsorted(rows, of_keys)
    rotated: tuple[Tensor, Tensor] = _Rotation.apply(q, k, cos, sin, rows)
    q, k = rotated
    bounds = _bounds(of_queries, of_keys)
    needs_grad = torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad)
    context: Tensor
    if uses_cpu_kernel(q):
        context = _FlashAttention.apply(q, k, v, bounds)
    elif rows is None and not needs_grad:
        context = _forward_only(q, k, v, bounds)
    else:
        context = _SegmentAttention.apply(q, k, v, _Slots.of(of_queries), _Slots.of(of_keys))
    return context if rows is None else context[order.argsort()]


class _Bounds(NamedTuple):
    """Tokens of one protein."""

    queries: slice
    keys: slice


def _bounds(of_queries: Tensor, of_keys: Tensor) -> list[_Bounds]:
    """Return the bounds of each protein that has queries."""
    queries = itertools.pairwise(of_queries.tolist())
    keys = itertools.pairwise(of_keys.tolist())
    return [
        _Bounds(slice(first_query, next_query), slice(first_key, next_key))
        for (first_query, next_query), (first_key, next_key) in zip(queries, keys, strict=True)
        if first_query < next_query
    ]


class _Rotation(torch.autograd.Function):
    """``rotate`` for queries at ``rows`` (None: at all tokens) and for keys.

    It works on long rows, because halves of a head are a few numbers and make a slow inner loop.
    """

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, rows: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        ctx.save_for_backward(cos, sin, rows)
        heads = k.shape[1]
        wide_cos = torch.cat((cos, cos), dim=-1).repeat(1, heads, 1)  # (T, H, D)
        wide_sin = torch.cat((-sin, sin), dim=-1).repeat(1, heads, 1)  # (T, H, D)
        keys = _rotated(k, wide_cos, wide_sin)
        if rows is None:
            return _rotated(q, wide_cos, wide_sin), keys
        return _rotated(q, wide_cos[rows], wide_sin[rows]), keys

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dq: Tensor, dk: Tensor) -> tuple[Tensor | None, ...]:
        cos, sin, rows = ctx.saved_tensors
        # A rotation's transpose is the rotation by the opposite angle.
        return *_Rotation.apply(dq, dk, cos, -sin, rows), None, None, None


def _rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Return x * cos + x with its halves swapped * sin, all of them (T, H, D)."""
    # The halves are moved 8 bytes at a time if their size is a multiple of that.
    word = torch.float64 if x.shape[-1] // 2 * x.element_size() % 8 == 0 else x.dtype
    halves = x.view(word).unflatten(-1, (2, -1))
    swapped = torch.empty(halves.shape, dtype=word, device=x.device)
    swapped[..., 0, :] = halves[..., 1, :]
    swapped[..., 1, :] = halves[..., 0, :]
    return torch.addcmul(x * cos, swapped.flatten(-2).view(x.dtype), sin)


def _forward_only(q: Tensor, k: Tensor, v: Tensor, bounds: list[_Bounds]) -> Tensor:
    """Compute attention on views of rotated operands, which are not copied, and keep nothing.

    oneDNN compiles products in bf16, so a protein is read up to a rounded length. The keys behind it belong
    to the next protein and are masked; the results of the queries behind it are dropped.
    """
    num_tokens, heads, size = q.shape
    context = torch.empty_like(q)
    q = (q * size**-0.5).transpose(0, 1)  # (H, T, D)
    k = k.transpose(0, 1)  # (H, T, D)
    v = v.transpose(0, 1)  # (H, T, D)
    for place, _ in bounds:
        length = place.stop - place.start
        reach = min(_rounded(length), num_tokens - place.start)
        here = slice(place.start, place.start + reach)
        step = max(1, min(heads, FORWARD_TILE_BYTES // (reach * reach * q.element_size())))
        scores = buffers.take(step * reach * reach, q)
        for first in range(0, heads, step):
            group = slice(first, min(first + step, heads))
            s = scores[: (group.stop - first) * reach * reach].view(-1, reach, reach)
            torch.bmm(q[group, here], k[group, here].transpose(1, 2), out=s)
            s[:, :, length:] = -torch.inf
            torch.softmax(s, dim=-1, out=s)
            result = torch.bmm(s, v[group, here])
            context[place, group] = result[:, :length].transpose(0, 1)
        buffers.give_back(scores)
    return context


def _rounded(length: Any) -> Any:
    """Round a length, or a tensor of them, up to ``LENGTH_STEP``."""
    return -(-length // LENGTH_STEP) * LENGTH_STEP


class _FlashAttention(torch.autograd.Function):
    """Attention in fp32 on a CPU by torch's flash kernel, one protein after another.

    The kernel is called without autograd, which would fill a gradient of the whole pack for each protein.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, bounds: list[_Bounds]) -> Tensor:
        context = torch.empty_like(q)
        sums: list[Tensor] = []
        queries = _heads_first(q)
        keys = _heads_first(k)
        values = _heads_first(v)
        out = _heads_first(context)
        for of_queries, of_keys in bounds:
            found, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                queries[:, :, of_queries], keys[:, :, of_keys], values[:, :, of_keys]
            )
            out[:, :, of_queries] = found
            sums.append(logsumexp)
        ctx.save_for_backward(q, k, v, context, *sums)
        ctx.bounds = bounds
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, context, *sums = ctx.saved_tensors
        dq = torch.empty_like(q)
        dk = torch.zeros_like(k)  # zeros, because a protein may have no queries
        dv = torch.zeros_like(v)
        queries = _heads_first(q)
        keys = _heads_first(k)
        values = _heads_first(v)
        out = _heads_first(context)
        out_grad = _heads_first(grad)
        query_grad = _heads_first(dq)
        key_grad = _heads_first(dk)
        value_grad = _heads_first(dv)
        for (of_queries, of_keys), logsumexp in zip(ctx.bounds, sums, strict=True):
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                out_grad[:, :, of_queries],
                queries[:, :, of_queries],
                keys[:, :, of_keys],
                values[:, :, of_keys],
                out[:, :, of_queries],
                logsumexp,
                dropout_p=0.0,
                is_causal=False,
            )
            query_grad[:, :, of_queries] = found[0]
            key_grad[:, :, of_keys] = found[1]
            value_grad[:, :, of_keys] = found[2]
        return dq, dk, dv, None


def _heads_first(x: Tensor) -> Tensor:
    """Return a view (1, H, T, D) of (T, H, D)."""
    return x.transpose(0, 1)[None]


@dataclass(frozen=True)
class _Slots:
    """Layout of proteins with their lengths rounded up to ``LENGTH_STEP``: T' slots for T tokens."""

    source: Tensor
    """(T',) token that fills the slot; spare slots repeat their protein's last token."""
    of_token: Tensor
    """(T,) slot of each token."""
    is_spare: Tensor
    """(T', 1) whether no token belongs to the slot."""
    proteins: list[tuple[int, int, int]]
    """First slot, length and rounded length of each protein."""

    @staticmethod
    def of(cumulative: Tensor) -> _Slots:
        """Lay out proteins that begin at ``cumulative``; an empty one gets slots, all of them spare."""
        starts = cumulative[:-1]
        lengths = cumulative.diff()
        rounded = _rounded(lengths.clamp(min=1))
        first = rounded.cumsum(0) - rounded
        protein = torch.repeat_interleave(rounded)  # (T',)
        offset = torch.arange(len(protein), device=cumulative.device) - first[protein]
        is_spare = offset >= lengths[protein]
        return _Slots(
            source=(starts[protein] + torch.minimum(offset, lengths[protein] - 1)).clamp(min=0),
            of_token=torch.nonzero(~is_spare)[:, 0],
            is_spare=is_spare[:, None],
            proteins=list(zip(first.tolist(), lengths.tolist(), rounded.tolist(), strict=True)),
        )

    def spread(self, x: Tensor) -> Tensor:
        """(T, H, D) -> (H, T', D)."""
        return x[self.source].transpose(0, 1).contiguous()

    def collect(self, x: Tensor) -> Tensor:
        """(H, T', D) -> (T, H, D)."""
        return x.transpose(0, 1)[self.of_token]


class _Tile(NamedTuple):
    """Scores of one protein and some heads, which are computed by one batched product."""

    queries: tuple[slice, slice]
    """Heads and slots of the queries."""
    keys: tuple[slice, slice]
    """Heads and slots of the keys."""
    shape: tuple[int, int, int]
    """Shape of the scores: heads, rounded number of queries, rounded number of keys."""
    num_keys: int
    """Number of keys without spare slots."""

    @property
    def num_elements(self) -> int:
        return math.prod(self.shape)


def _tiles(of_queries: _Slots, of_keys: _Slots, heads: int, element_size: int) -> list[_Tile]:
    """Divide proteins and heads into tiles of as many heads as fit ``SCORE_TILE_BYTES``."""
    tiles = []
    for (query, _, height), (key, num_keys, width) in zip(
        of_queries.proteins, of_keys.proteins, strict=True
    ):
        step = max(1, min(heads, SCORE_TILE_BYTES // (height * width * element_size)))
        for first in range(0, heads, step):
            group = slice(first, min(first + step, heads))
            tile = _Tile(
                queries=(group, slice(query, query + height)),
                keys=(group, slice(key, key + width)),
                shape=(group.stop - first, height, width),
                num_keys=num_keys,
            )
            tiles.append(tile)
    return tiles


def _by_tile(probabilities: Tensor, tiles: list[_Tile]) -> Iterator[tuple[_Tile, Tensor]]:
    """Yield each tile with its part of the probabilities."""
    parts = probabilities.split([tile.num_elements for tile in tiles])
    return ((tile, part.view(tile.shape)) for tile, part in zip(tiles, parts, strict=True))


class _SegmentAttention(torch.autograd.Function):
    """Attention by batched products for each protein; it keeps the probabilities for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any, q: Tensor, k: Tensor, v: Tensor, of_queries: _Slots, of_keys: _Slots
    ) -> Tensor:
        _, heads, size = q.shape
        q = of_queries.spread(q).mul_(size**-0.5)  # (H, T', D)
        k = of_keys.spread(k)
        v = of_keys.spread(v)
        out = torch.empty_like(q)
        tiles = _tiles(of_queries, of_keys, heads, q.element_size())
        total = sum(tile.num_elements for tile in tiles)
        largest = max(tile.num_elements for tile in tiles)
        scores = buffers.take(largest, q)
        # Only the used part is saved: when the layer is recomputed, the buffer may have another size.
        probabilities = buffers.take(total, q)[:total]
        for tile, p in _by_tile(probabilities, tiles):
            s = scores[: tile.num_elements].view(tile.shape)
            torch.bmm(q[tile.queries], k[tile.keys].transpose(1, 2), out=s)
            s[:, :, tile.num_keys :] = -torch.inf
            torch.softmax(s, dim=-1, out=p)
            torch.bmm(p, v[tile.keys], out=out[tile.queries])
        buffers.give_back(scores)
        ctx.save_for_backward(q, k, v, out, probabilities)
        ctx.of_queries = of_queries
        ctx.of_keys = of_keys
        ctx.tiles = tiles
        ctx.is_used = False
        return of_queries.collect(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor, None, None]:
        q, k, v, out, probabilities = ctx.saved_tensors
        of_queries: _Slots = ctx.of_queries
        of_keys: _Slots = ctx.of_keys
        assert not ctx.is_used, "the probabilities' buffer serves one backward pass"
        ctx.is_used = True
        # Spare queries get no gradient; spare keys have probability 0.
        grad = of_queries.spread(grad).masked_fill_(of_queries.is_spare, 0)  # (H, T', D)
        # Softmax backward: dS = P * (dP - rowsum(dO * O)) (Dao et al. 2022, FlashAttention, eq. 4).
        rowsum = (grad * out).sum(dim=-1, keepdim=True)  # (H, T', 1)
        dq = torch.empty_like(q)
        dk = torch.empty_like(k)
        dv = torch.empty_like(v)
        scores = buffers.take(max(tile.num_elements for tile in ctx.tiles), q)
        for tile, p in _by_tile(probabilities, ctx.tiles):
            here = tile.queries
            there = tile.keys
            s = scores[: tile.num_elements].view(tile.shape)
            torch.bmm(p.transpose(1, 2), grad[here], out=dv[there])
            torch.bmm(grad[here], v[there].transpose(1, 2), out=s)
            s.sub_(rowsum[here]).mul_(p)
            torch.bmm(s, k[there], out=dq[here])
            torch.bmm(s.transpose(1, 2), q[here], out=dk[there])
        buffers.give_back(scores)
        buffers.give_back(probabilities.new_empty(0).set_(probabilities.untyped_storage()))
        dq = of_queries.collect(dq).mul_(q.shape[-1] ** -0.5)
        return dq, of_keys.collect(dk), of_keys.collect(dv), None, None


class Buffers:
    """A few buffers that are used again, because malloc would map new pages for packs of each size."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, num_elements: int, like: Tensor) -> Tensor:
        """Return a flat buffer.

        Args:
            num_elements: least number of elements.
            like: tensor with the type and device.
        """
        fitting = [
            (buffer.numel(), index)
            for index, buffer in enumerate(self._free)
            if buffer.numel() >= num_elements
            and buffer.dtype == like.dtype
            and buffer.device == like.device
        ]
        if fitting:
            return self._free.pop(min(fitting)[1])
        if len(self._free) > 1:
            self._free.pop(0)  # too small for the present packs
        rounded = -(-num_elements // BUFFER_STEP_ELEMENTS) * BUFFER_STEP_ELEMENTS
        return torch.empty(rounded, dtype=like.dtype, device=like.device)

    def give_back(self, buffer: Tensor) -> None:
        """Return a whole buffer for further use."""
        self._free.append(buffer)


buffers = Buffers()
"""Buffers of this process."""
