"""Attention of constant shapes, for devices that compile every shape anew.

Shapes: T tokens of the pack, H heads, D head size, N blocks of B tokens, W tokens that a block may attend to.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def window_attention(q: Tensor, k: Tensor, v: Tensor, segment: Tensor, max_length: int) -> Tensor:
    """Softmax attention of each token to those of its own segment.

    A segment that crosses into another block ends in the next one, so with blocks of ``max_length`` tokens a
    block attends to itself and its two neighbours: 3 * ``max_length`` keys a token, whatever the segments'
    lengths. Up to that many tokens the pack is one block.

    Args:
        q: (T, H, D), rotated and scaled.
        k: (T, H, D), rotated.
        v: (T, H, D).
        segment: (T,) whole number from 0 on, other than the neighbours'.
        max_length: bounds every segment, in tokens.

    Returns:
        (T, H, D) in v's type; the softmax is taken in fp32.
    """
    num_tokens = len(q)
    whole = num_tokens <= 3 * max_length
    block = num_tokens if whole else max_length
    label = segment + 1  # 0 is for what lies outside of the pack
    q, k, v, label = (_blocks(x, block) for x in (q, k, v, label))
    keys, values, key_label = (x if whole else _with_neighbours(x) for x in (k, v, label))
    q, keys, values = (x.transpose(1, 2) for x in (q, keys, values))  # (N, H, B or W, D)
    is_other = label[:, None, :, None] != key_label[:, None, None, :]  # (N, 1, B, W)
    scores = (q @ keys.transpose(2, 3)).float()
    # The least number in place of infinity, whose differences are not numbers.
    scores = scores.masked_fill(is_other, torch.finfo(torch.float32).min)
    context = scores.softmax(dim=-1).to(values.dtype) @ values  # (N, H, B, D)
    return context.transpose(1, 2).flatten(0, 1)[:num_tokens]


def _blocks(x: Tensor, block: int) -> Tensor:
    """(T, ...) -> (N, B, ...), the last block filled up with zeros."""
    spare = -len(x) % block
    return F.pad(x, (0, 0) * (x.ndim - 1) + (0, spare)).unflatten(0, (-1, block))


def _with_neighbours(x: Tensor) -> Tensor:
    """(N, B, ...) -> (N, 3 B, ...): the block before, the block, the block after; zeros beyond the ends."""
    nothing = torch.zeros_like(x[:1])
    return torch.cat([torch.cat([nothing, x[:-1]]), x, torch.cat([x[1:], nothing])], dim=1)
