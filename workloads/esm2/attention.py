"""Bidirectional attention within the proteins of a pack, never across them.

Shapes: T tokens of the pack, H heads, D head size, L length of one protein.

On CUDA the work is done by torch's varlen flash kernel. Elsewhere each protein is a batch of matrix
products over its heads: on a CPU at ESM-2's head sizes (16 to 64) that is about twice as fast as the
CPU flash kernel, because score tiles stay in the cache and no buffer is allocated per protein.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn.attention.varlen import varlen_attn

SCORE_TILE_BYTES = 2 << 20
"""Heads are taken together up to this many bytes of scores: two tiles stay in a server core's L2/L3 share.
Measured on a Zen 4 core at head size 16: 1 to 2 MiB is best from 150 to 1024 residues."""


@dataclass(frozen=True)
class Segments:
    """Where the proteins of a pack lie.

    ``cumulative`` is int32 of shape (S + 1,), starting with 0 and ending with T; trailing segments may be
    empty. ``max_length`` bounds every segment and is constant over a run (it is a compile-time constant).
    """

    cumulative: Tensor
    max_length: int


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotary embedding (Su et al. 2021) of x (T, H, D) with cos and sin (T, 1, D / 2), in x's precision."""
    first, second = x.chunk(2, dim=-1)
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def packed_attention(qkv: Tensor, cos: Tensor, sin: Tensor, segments: Segments) -> Tensor:
    """Softmax attention of rotated queries and keys, scaled by D ** -0.5.

    Args:
        qkv: (T, 3, H, D) queries, keys and values before rotation.
        cos: (T, 1, D / 2) of the rotary angles, in qkv's type.
        sin: likewise.
        segments: where the proteins lie.

    Returns:
        (T, H, D) in qkv's type.
    """
    if qkv.is_cuda and qkv.dtype in (torch.bfloat16, torch.float16):
        q, k, v = qkv.unbind(1)
        return varlen_attn(
            rotate(q, cos, sin),
            rotate(k, cos, sin),
            v,
            segments.cumulative,
            segments.cumulative,
            segments.max_length,
            segments.max_length,
        )
    return _segment_attention(qkv, cos, sin, segments.cumulative)


@torch.compiler.disable  # the loop's length changes with every pack
def _segment_attention(qkv: Tensor, cos: Tensor, sin: Tensor, cumulative: Tensor) -> Tensor:
    result: Tensor = _SegmentAttention.apply(qkv, cos, sin, cumulative.tolist())
    return result


@lru_cache(maxsize=8)
def _score_tile(name: str, num_elements: int, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Reuse one scratch buffer per role: allocating tiles costs more in page faults than the softmax."""
    return torch.empty(num_elements, dtype=dtype, device=device)


class _SegmentAttention(torch.autograd.Function):
    """Attention as three batched products per protein, probabilities kept for the backward pass."""

    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, bounds: list[int]) -> Tensor:
        _, _, heads, size = qkv.shape
        q = rotate(qkv[:, 0], cos, sin).mul_(size**-0.5).transpose(0, 1).contiguous()  # (H, T, D)
        k = rotate(qkv[:, 1], cos, sin).transpose(0, 1).contiguous()
        v = qkv[:, 2].transpose(0, 1).contiguous()
        out = torch.empty_like(v)
        kept: list[Tensor] = []
        for start, stop in pairwise(bounds):
            for h in _head_tiles(heads, stop - start, q.element_size()):
                here = (h, slice(start, stop))
                scores = _tile("scores", q[here], stop - start)
                torch.bmm(q[here], k[here].transpose(1, 2), out=scores)
                probabilities = torch.softmax(scores, dim=-1)
                torch.bmm(probabilities, v[here], out=out[here])
                kept.append(probabilities)
        ctx.save_for_backward(q, k, v, out, cos, sin, *kept)
        ctx.bounds = bounds
        return out.transpose(0, 1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        q, k, v, out, cos, sin, *kept = ctx.saved_tensors
        heads, _, size = q.shape
        grad = grad.transpose(0, 1).contiguous()  # (H, T, D)
        # Softmax backward: dS = P * (dP - rowsum(dO * O)) (Dao et al. 2022, FlashAttention, eq. 4).
        rowsum = (grad * out).sum(dim=-1, keepdim=True)  # (H, T, 1)
        dq, dk, dv = torch.zeros(3, *q.shape, dtype=q.dtype, device=q.device).unbind(0)
        tiles = iter(kept)
        for start, stop in pairwise(ctx.bounds):
            for h in _head_tiles(heads, stop - start, q.element_size()):
                here = (h, slice(start, stop))
                probabilities = next(tiles)
                torch.bmm(probabilities.transpose(1, 2), grad[here], out=dv[here])
                scores = _tile("scores", q[here], stop - start)
                torch.bmm(grad[here], v[here].transpose(1, 2), out=scores)
                scores.sub_(rowsum[here]).mul_(probabilities)
                torch.bmm(scores, k[here], out=dq[here])
                torch.bmm(scores.transpose(1, 2), q[here], out=dk[here])
        # A rotation's transpose is the rotation by the opposite angle.
        dqkv = torch.stack(
            (
                rotate(dq.transpose(0, 1), cos, -sin).mul_(size**-0.5),
                rotate(dk.transpose(0, 1), cos, -sin),
                dv.transpose(0, 1),
            ),
            dim=1,
        )
        return dqkv, None, None, None


def _head_tiles(heads: int, length: int, element_size: int) -> list[slice]:
    if length == 0:
        return []
    step = max(1, min(heads, SCORE_TILE_BYTES // (length * length * element_size)))
    return [slice(h, min(h + step, heads)) for h in range(0, heads, step)]


def _tile(name: str, like: Tensor, length: int) -> Tensor:
    """Scratch scores (heads, length, length)."""
    needed = like.shape[0] * length * length
    # Rounded to a power of two so that a few buffers serve all lengths.
    size = max(SCORE_TILE_BYTES // like.element_size(), 1 << (needed - 1).bit_length())
    return _score_tile(name, size, like.dtype, like.device)[:needed].view(-1, length, length)
