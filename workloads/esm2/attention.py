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

from .window_attention import window_attention

try:
    from torch.nn.attention.varlen import varlen_attn
except ImportError:  # torch 2.9, the last one for XLA on Trainium
    varlen_attn = None  # type: ignore[assignment]

SCORE_TILE_BYTES = 2 << 20
"""Heads are taken together up to this many bytes of scores: two tiles stay in a server core's L2/L3 share.
Measured on a Zen 4 core at head size 16: 1 to 2 MiB is best from 150 to 1024 residues."""
FORWARD_TILE_BYTES = 1 << 20
"""The same where nothing is kept for a backward pass, so that one tile does."""
LENGTH_STEP = 32
"""Lengths are rounded up to this: oneDNN compiles a kernel for every new shape of a product (1.5 ms and
0.7 MB each), and 32 lengths fit its cache where a thousand do not."""


@dataclass(frozen=True)
class Segments:
    """Positions of the proteins in a pack.

    ``cumulative`` is int32 of shape (S + 1,), starting with 0 and ending with T; trailing segments may be
    empty. ``max_length`` bounds every segment and is constant over a run (it is a compile-time constant).
    """

    cumulative: Tensor
    max_length: int
    of_token: Tensor | None = None
    """(T,) int64 number of each token's segment; XLA devices alone read it."""


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x (T, H, D) with cos and sin (T, 1, D / 2), in x's type.

    The arithmetic is that of the wider type.
    """
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1).to(x.dtype)


def uses_flash(x: Tensor) -> bool:
    """Return whether torch's varlen flash kernel computes attention for the device and type of ``x``."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def uses_cpu_kernel(x: Tensor) -> bool:
    """Return whether torch's flash kernel for CPUs computes attention for the device and type of ``x``."""
    return x.device.type == "cpu" and x.dtype == torch.float32


def packed_attention(qkv: Tensor, cos: Tensor, sin: Tensor, segments: Segments) -> Tensor:
    """Softmax attention of rotated queries and keys, scaled by D ** -0.5.

    For flash attention the rotation is computed in fp32, which costs nothing in a compiled layer and lowers
    the error of scores by a third. Elsewhere it is computed in qkv's type: on a CPU, fp32 takes longer.

    Args:
        qkv: (T, 3, H, D) queries, keys and values before rotation.
        cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
        sin: (T, 1, D / 2) fp32 sines.
        segments: where the proteins lie.

    Returns:
        (T, H, D) in qkv's type.
    """
    if uses_flash(qkv):
        q, k, v = qkv.unbind(1)
        context = varlen_attn(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            segments.cumulative,
            segments.cumulative,
            segments.max_length,
            segments.max_length,
        )
        assert isinstance(context, Tensor)  # a tuple is returned only with further options
        return context
    cos, sin = cos.to(qkv.dtype), sin.to(qkv.dtype)
    if qkv.device.type == "xla":
        assert segments.of_token is not None
        q, k, v = qkv.unbind(1)
        q = rotate(q, cos, sin) * q.shape[-1] ** -0.5
        return window_attention(q, rotate(k, cos, sin), v, segments.of_token, segments.max_length)
    if not (torch.is_grad_enabled() and qkv.requires_grad):
        return _forward_only(qkv, cos, sin, segments.cumulative)
    return _segment_attention(qkv, cos, sin, segments.cumulative)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the loop's length changes with every pack
def _forward_only(qkv: Tensor, cos: Tensor, sin: Tensor, cumulative: Tensor) -> Tensor:
    """One protein after another on views of ``qkv``: nothing is laid out anew, nothing kept.

    oneDNN compiles products in bf16, so a protein is read on to a rounded length. The keys behind it belong
    to the next one and are masked, the queries' results are dropped.
    """
    num_tokens, _, heads, size = qkv.shape
    rotated = _rotate_all(qkv[:, :2], cos, sin)  # (T, 2, H, D)
    bounds = _bounds(cumulative)
    if uses_cpu_kernel(qkv):
        return _flash(rotated, qkv, bounds)[0]
    q, k, v = (x.transpose(0, 1) for x in (rotated[:, 0], rotated[:, 1], qkv[:, 2]))  # (H, T, D)
    context = torch.empty_like(qkv[:, 0])
    rotated[:, 0].mul_(size**-0.5)
    for start, stop in bounds:
        length = stop - start
        reach = min(-(-length // LENGTH_STEP) * LENGTH_STEP, num_tokens - start)
        here = slice(start, start + reach)
        step = max(1, min(heads, FORWARD_TILE_BYTES // (reach * reach * qkv.element_size())))
        scores = _buffers.take(step * reach * reach, qkv)
        for first in range(0, heads, step):
            group = slice(first, min(first + step, heads))
            s = scores[: (group.stop - first) * reach * reach].view(-1, reach, reach)
            torch.bmm(q[group, here], k[group, here].transpose(1, 2), out=s)
            s[:, :, length:] = -torch.inf
            torch.softmax(s, dim=-1, out=s)
            context[start:stop, group] = torch.bmm(s, v[group, here])[:, :length].transpose(0, 1)
        _buffers.give_back(scores)
    return context


def _rotate_all(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """``rotate`` for x (T, N, H, D), in long rows: halves of a head are a few numbers, a slow inner loop."""
    heads = x.shape[2]
    # The halves swapped, moved 8 bytes at a time where they have as many.
    word = torch.float64 if x.shape[3] // 2 * x.element_size() % 8 == 0 else x.dtype
    wide = x.view(word).unflatten(-1, (2, -1))
    swapped = torch.empty(wide.shape, dtype=wide.dtype, device=x.device)
    swapped[..., 0, :] = wide[..., 1, :]
    swapped[..., 1, :] = wide[..., 0, :]
    swapped = swapped.flatten(-2).view(x.dtype)
    both_cos = torch.cat((cos, cos), dim=-1).repeat(1, heads, 1)[:, None]  # (T, 1, H, D)
    both_sin = torch.cat((-sin, sin), dim=-1).repeat(1, heads, 1)[:, None]
    return torch.addcmul(x * both_cos, swapped, both_sin)


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the loop's length changes with every pack
def _segment_attention(qkv: Tensor, cos: Tensor, sin: Tensor, cumulative: Tensor) -> Tensor:
    if uses_cpu_kernel(qkv):
        result: Tensor = _FlashAttention.apply(qkv, cos, sin, _bounds(cumulative))
    else:
        result = _SegmentAttention.apply(qkv, cos, sin, _Slots.of(cumulative))
    return result


def _bounds(cumulative: Tensor) -> list[tuple[int, int]]:
    """First token of each protein and the one behind its last, without empty segments."""
    return [(start, stop) for start, stop in itertools.pairwise(cumulative.tolist()) if start < stop]


def _flash(rotated: Tensor, qkv: Tensor, bounds: list[tuple[int, int]]) -> tuple[Tensor, list[Tensor]]:
    """Return the context (T, H, D), and what each protein's backward pass needs of its softmax."""
    context = torch.empty_like(qkv[:, 0])
    q, k, v, out = _heads_first(rotated[:, 0], rotated[:, 1], qkv[:, 2], context)
    sums = []
    for start, stop in bounds:
        one = (x[:, :, start:stop] for x in (q, k, v))
        out[:, :, start:stop], logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(*one)
        sums.append(logsumexp)
    return context, sums


def _heads_first(*tensors: Tensor) -> list[Tensor]:
    """Views (1, H, T, D) of (T, H, D)."""
    return [x.transpose(0, 1)[None] for x in tensors]


class _FlashAttention(torch.autograd.Function):
    """Attention in fp32 on a CPU by torch's flash kernel, one protein after another.

    The kernel is called without autograd, which would fill a gradient of the whole pack for each protein.
    """

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, bounds: list[tuple[int, int]]) -> Tensor:
        rotated = _rotate_all(qkv[:, :2], cos, sin)  # (T, 2, H, D)
        context, sums = _flash(rotated, qkv, bounds)
        ctx.save_for_backward(rotated, qkv, context, cos, sin, *sums)
        ctx.bounds = bounds
        return context

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        rotated, qkv, context, cos, sin, *sums = ctx.saved_tensors
        dqkv = torch.empty_like(qkv)
        q, k, v, out, dout = _heads_first(rotated[:, 0], rotated[:, 1], qkv[:, 2], context, grad)
        gradients = _heads_first(dqkv[:, 0], dqkv[:, 1], dqkv[:, 2])
        for (start, stop), logsumexp in zip(ctx.bounds, sums, strict=True):
            one = (x[:, :, start:stop] for x in (dout, q, k, v, out))
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
                *one, logsumexp, dropout_p=0.0, is_causal=False
            )
            for gradient, part in zip(gradients, found, strict=True):
                gradient[:, :, start:stop] = part
        # A rotation's transpose is the rotation by the opposite angle.
        dqkv[:, :2] = _rotate_all(dqkv[:, :2], cos, -sin)
        return dqkv, None, None, None


@dataclass(frozen=True)
class _Slots:
    """Proteins laid out with their lengths rounded up to ``LENGTH_STEP``: T' slots for T tokens."""

    source: Tensor
    """(T',) token that fills the slot; spare slots repeat their protein's last token."""
    of_token: Tensor
    """(T,) slot of each token."""
    is_spare: Tensor
    """(T', 1) whether no token belongs there."""
    proteins: list[tuple[int, int, int]]
    """First slot, length and rounded length of each protein."""

    @staticmethod
    def of(cumulative: Tensor) -> _Slots:
        lengths = cumulative.diff().long()
        starts = cumulative[:-1].long()[lengths > 0]
        lengths = lengths[lengths > 0]
        rounded = (lengths + LENGTH_STEP - 1) // LENGTH_STEP * LENGTH_STEP
        first = rounded.cumsum(0) - rounded
        protein = torch.repeat_interleave(rounded)  # (T',)
        offset = torch.arange(len(protein), device=cumulative.device) - first[protein]
        is_spare = offset >= lengths[protein]
        return _Slots(
            source=starts[protein] + torch.minimum(offset, lengths[protein] - 1),
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

    def tiles(self, heads: int, element_size: int) -> list[_Tile]:
        """Proteins times groups of heads, as many heads at a time as fit ``SCORE_TILE_BYTES``."""
        tiles = []
        for first, length, rounded in self.proteins:
            step = max(1, min(heads, SCORE_TILE_BYTES // (rounded * rounded * element_size)))
            for h in range(0, heads, step):
                shape = (min(step, heads - h), rounded, rounded)
                place = (slice(h, h + shape[0]), slice(first, first + rounded))
                tiles.append(_Tile(place, shape, length, math.prod(shape)))
        return tiles


class _Tile(NamedTuple):
    place: tuple[slice, slice]
    """Heads and slots."""
    shape: tuple[int, int, int]
    """Heads, rounded length, rounded length of the scores."""
    length: int
    num_elements: int


def _by_tile(probabilities: Tensor, tiles: list[_Tile]) -> Iterator[tuple[_Tile, Tensor]]:
    parts = probabilities.split([tile.num_elements for tile in tiles])
    return ((tile, part.view(tile.shape)) for tile, part in zip(tiles, parts, strict=True))


class _SegmentAttention(torch.autograd.Function):
    """Attention as three batched products per protein, probabilities kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, slots: _Slots) -> Tensor:
        _, _, heads, size = qkv.shape
        q = slots.spread(rotate(qkv[:, 0], cos, sin).mul_(size**-0.5))  # (H, T', D)
        k = slots.spread(rotate(qkv[:, 1], cos, sin))
        v = slots.spread(qkv[:, 2])
        out = torch.empty_like(v)
        tiles = slots.tiles(heads, q.element_size())
        total, largest = (f(tile.num_elements for tile in tiles) for f in (sum, max))
        scores = _buffers.take(largest, q)
        # The used part, whose size is the pack's: recomputing the layer may find a buffer of another.
        probabilities = _buffers.take(total, q)[:total]
        for tile, p in _by_tile(probabilities, tiles):
            here = tile.place
            s = scores[: tile.num_elements].view(tile.shape)
            torch.bmm(q[here], k[here].transpose(1, 2), out=s)
            s[:, :, tile.length :] = -torch.inf
            torch.softmax(s, dim=-1, out=p)
            torch.bmm(p, v[here], out=out[here])
        _buffers.give_back(scores)
        ctx.save_for_backward(q, k, v, out, cos, sin, probabilities)
        ctx.slots, ctx.tiles, ctx.is_used = slots, tiles, False
        return slots.collect(out)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v, out, cos, sin, probabilities = ctx.saved_tensors
        slots = ctx.slots
        assert not ctx.is_used, "the probabilities' buffer serves one backward pass"
        ctx.is_used = True
        # Spare queries get no gradient; spare keys have probability 0.
        grad = slots.spread(grad).masked_fill_(slots.is_spare, 0)  # (H, T', D)
        # Softmax backward: dS = P * (dP - rowsum(dO * O)) (Dao et al. 2022, FlashAttention, eq. 4).
        rowsum = (grad * out).sum(dim=-1, keepdim=True)  # (H, T', 1)
        dq, dk, dv = torch.empty(3, *q.shape, dtype=q.dtype, device=q.device).unbind(0)
        scores = _buffers.take(max(tile.num_elements for tile in ctx.tiles), q)
        for tile, p in _by_tile(probabilities, ctx.tiles):
            here = tile.place
            s = scores[: tile.num_elements].view(tile.shape)
            torch.bmm(p.transpose(1, 2), grad[here], out=dv[here])
            torch.bmm(grad[here], v[here].transpose(1, 2), out=s)
            s.sub_(rowsum[here]).mul_(p)
            torch.bmm(s, k[here], out=dq[here])
            torch.bmm(s.transpose(1, 2), q[here], out=dk[here])
        _buffers.give_back(scores)
        _buffers.give_back(probabilities.new_empty(0).set_(probabilities.untyped_storage()))
        # A rotation's transpose is the rotation by the opposite angle.
        dqkv = torch.stack(
            (
                rotate(slots.collect(dq), cos, -sin).mul_(q.shape[-1] ** -0.5),
                rotate(slots.collect(dk), cos, -sin),
                slots.collect(dv),
            ),
            dim=1,
        )
        return dqkv, None, None, None


class _Buffers:
    """A few buffers that go round: packs differ in size, and malloc answers that with page faults."""

    def __init__(self) -> None:
        self._free: list[Tensor] = []

    def take(self, num_elements: int, like: Tensor) -> Tensor:
        """Flat, of at least ``num_elements``, of the type and on the device of ``like``."""
        fitting = [
            (buffer.numel(), index)
            for index, buffer in enumerate(self._free)
            if buffer.numel() >= num_elements and buffer.dtype == like.dtype and buffer.device == like.device
        ]
        if fitting:
            return self._free.pop(min(fitting)[1])
        if len(self._free) > 1:
            self._free.pop(0)  # too small for today's packs
        rounded = -(-num_elements // _BUFFER_STEP_ELEMENTS) * _BUFFER_STEP_ELEMENTS
        return torch.empty(rounded, dtype=like.dtype, device=like.device)

    def give_back(self, buffer: Tensor) -> None:
        self._free.append(buffer)


_buffers = _Buffers()
_BUFFER_STEP_ELEMENTS = 4 << 20
