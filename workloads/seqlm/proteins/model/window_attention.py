"""Attention of constant shapes, for devices that compile every shape anew.

Shapes: T tokens of the pack, H heads, D head size, N blocks of B tokens, W tokens that a block may attend to.
"""

import torch
import torch.nn.functional as F
from torch import Tensor


def window_attention(q: Tensor, k: Tensor, v: Tensor, segment: Tensor, max_length: int) -> Tensor:
    """Compute the softmax attention of each token to those of its own segment.

    With blocks of ``max_length`` tokens, a segment that crosses into another block ends in the next one. So a
    block attends to itself and its two neighbours: 3 * ``max_length`` keys per token, whatever the lengths of
    the segments. A pack of up to that many tokens is one block.

    Args:
        q: (T, H, D) queries, rotated and scaled.
        k: (T, H, D) keys, rotated.
        v: (T, H, D) values.
        segment: (T,) number of each token's segment, from 0; neighbouring segments have different numbers.
        max_length: largest number of tokens of a segment.

    Returns:
        (T, H, D) context in v's type; the softmax is computed in fp32.
    """
    num_tokens = len(q)
    is_one_block = num_tokens <= 3 * max_length
    block = num_tokens if is_one_block else max_length
    queries = _blocks(q, block)
    keys = _blocks(k, block)
    values = _blocks(v, block)
    query_label = _blocks(segment + 1, block)  # 0 is for places outside of the pack
    key_label = query_label
    if not is_one_block:
        keys = _with_neighbours(keys)
        values = _with_neighbours(values)
        key_label = _with_neighbours(key_label)
    queries = queries.transpose(1, 2)  # (N, H, B, D)
    keys = keys.transpose(1, 2)  # (N, H, W, D)
    values = values.transpose(1, 2)  # (N, H, W, D)
    is_other = query_label[:, None, :, None] != key_label[:, None, None, :]  # (N, 1, B, W)
    scores = (queries @ keys.transpose(2, 3)).float()
    # The least number in place of minus infinity: differences of infinities are not numbers.
    scores = scores.masked_fill(is_other, torch.finfo(torch.float32).min)
    context = scores.softmax(dim=-1).to(values.dtype) @ values  # (N, H, B, D)
    return context.transpose(1, 2).flatten(0, 1)[:num_tokens]


def _blocks(x: Tensor, block: int) -> Tensor:
    """Divide (T, ...) into blocks (N, B, ...); the last one is filled up with zeros."""
    spare = -len(x) % block
    no_padding = (0, 0)
    padding = (*no_padding * (x.ndim - 1), 0, spare)  # from the last dimension to the first
    return F.pad(x, padding).unflatten(0, (-1, block))


def _with_neighbours(x: Tensor) -> Tensor:
    """Join each block (N, B, ...) with the ones before and after, (N, 3 B, ...); zeros beyond the ends."""
    nothing = torch.zeros_like(x[:1])
    before = torch.cat([nothing, x[:-1]])
    after = torch.cat([x[1:], nothing])
    return torch.cat([before, x, after], dim=1)
