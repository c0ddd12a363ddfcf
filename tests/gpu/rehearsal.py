"""Rehearsal of the GPU tests on a CPU, with a CPU kernel for torch's varlen operator.

Shapes: T tokens, H heads of queries, G heads of keys and values, D head size.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import varlen

from seqlm.language import attention as causal
from seqlm.proteins.model import attention as bidirectional
from seqlm.training import device_runtime

COMPILE = nn.Module.compile


def begin() -> None:
    """Have bf16 attention take the varlen operator, and layers compile without a C++ compiler."""
    varlen._varlen_attn.register_kernel("cpu")(_forward)
    varlen._varlen_attn_backward.register_kernel("cpu")(_backward)
    for module in (device_runtime, bidirectional, causal):
        module.uses_flash = lambda x: x.dtype in (torch.bfloat16, torch.float16)
    nn.Module.compile = lambda self, *, dynamic=None, **options: COMPILE(
        self, dynamic=dynamic, backend="aot_eager"
    )


def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cumulative: Tensor,
    cumulative_keys: Tensor,
    longest: int,
    longest_keys: int,
    is_causal: bool = False,
    scale: float | None = None,
    *newer: Any,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return (T, H, D), the logarithms of the softmax's sums (H, T) and an unused generator state."""
    out = torch.zeros_like(query)
    sums = query.new_zeros(query.shape[1::-1], dtype=torch.float32)
    for place in _segments(cumulative):
        scores, v = _scores(query[place], key[place], value[place], is_causal, scale)
        # Flash rounds the unnormalized probabilities to the type of the values.
        peak = scores.amax(-1, keepdim=True)
        weights = (scores - peak).exp()
        total = weights.sum(-1, keepdim=True)
        out[place] = (weights.to(query.dtype).float() @ v / total).transpose(0, 1).to(query.dtype)
        sums[:, place] = (total.log() + peak)[..., 0]
    return out, sums, torch.zeros(2, dtype=torch.uint64)


def _backward(
    grad: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    sums: Tensor,
    cumulative: Tensor,
    cumulative_keys: Tensor,
    longest: int,
    longest_keys: int,
    is_causal: bool,
    state: Tensor,
    scale: float | None = None,
    window: list[int] | None = None,
) -> tuple[Tensor, Tensor, Tensor]:
    dq, dk, dv = (torch.zeros_like(x) for x in (query, key, value))
    factor = scale or query.shape[-1] ** -0.5
    for place in _segments(cumulative):
        scores, v = _scores(query[place], key[place], value[place], is_causal, scale)
        p = (scores - sums[:, place, None]).exp()
        do, o, q, k = (x[place].float().transpose(0, 1) for x in (grad, out, query, key))
        heads = len(k)  # of keys: each gets the gradients of all queries' heads that share it
        k = k.repeat_interleave(len(q) // heads, dim=0)
        # dS = P * (dP - rowsum(dO * O)) (Dao et al. 2022, FlashAttention, eq. 4).
        ds = p * (do @ v.transpose(1, 2) - (do * o).sum(-1, keepdim=True)) * factor
        dq[place] = (ds @ k).transpose(0, 1).to(dq.dtype)
        for to, gradient in ((dk, ds.transpose(1, 2) @ q), (dv, p.transpose(1, 2) @ do)):
            to[place] = gradient.unflatten(0, (heads, -1)).sum(1).transpose(0, 1).to(to.dtype)
    return dq, dk, dv


def _scores(
    query: Tensor, key: Tensor, value: Tensor, is_causal: bool, scale: float | None
) -> tuple[Tensor, Tensor]:
    """Scaled fp32 scores (H, L, L) of one segment of L tokens, and its values (H, L, D)."""
    q, k, v = (x.float().transpose(0, 1) for x in (query, key, value))
    k, v = (x.repeat_interleave(len(q) // len(k), dim=0) for x in (k, v))
    scores = q @ k.transpose(1, 2) * (scale or q.shape[-1] ** -0.5)
    if is_causal:
        scores = scores.masked_fill(torch.ones(scores.shape[1:]).triu(1).bool(), -torch.inf)
    return scores, v


def _segments(cumulative: Tensor) -> list[slice]:
    return [slice(a, b) for a, b in pairwise(cumulative.tolist()) if b > a]
