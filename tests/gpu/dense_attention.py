"""Dense attention in fp32, and lengths of proteins at which kernels are compared with it.

Shapes: T tokens, H heads, D head size.
"""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import Tensor

from seqlm.training.layered_model import Segments
from tests.gpu.drawn import Scale

FORWARD = 1e-2
BACKWARD = 2e-2
"""bf16 rounds to 2^-9 (0.2 %) of a number at most. The forward pass rounds rotated queries and keys,
probabilities and the result once each, and the backward pass the gradients of all of them. A score of
standard deviation 1 passes an error on as it is. Four independent roundings come to 0.4 %, eight to 0.55 %.
The rest is room for lengths at which errors do not average out."""


def drawn_segments(scale: Scale, device: torch.device) -> Segments:
    """Lengths around flash's tiles of 64 and 128, the longest, padding, and empty ones at the end."""
    longest = scale.max_residues + 10
    lengths = [n for n in (3, 63, 64, 65, 127, 128, 129, 4, longest) if n <= longest]
    bounds = torch.tensor([0, *lengths, 17, 0, 0]).cumsum(0)
    return Segments(bounds.int().to(device), longest)


def segment_errors(found: Tensor, expected: Tensor, bounds: list[int]) -> float:
    """Largest relative error of a segment, so that one wrong protein among many shows."""
    floor = 0.1 * expected.double().square().mean().sqrt()
    return max(
        (
            (f - e).double().norm() / torch.maximum(e.double().norm(), floor * e.numel() ** 0.5)
        ).item()
        for f, e in (
            (found[start:stop], expected[start:stop])
            for start, stop in pairwise(bounds)
            if stop > start
        )
    )


def dense(q: Tensor, k: Tensor, v: Tensor, bounds: Tensor, *, is_causal: bool = False) -> Tensor:
    """(T, H, D): attention as one product of all tokens, with a mask."""
    number = torch.repeat_interleave(bounds.diff().long())
    is_hidden = number[:, None] != number
    if is_causal:
        is_hidden |= torch.ones_like(is_hidden).triu(1)
    scores = torch.einsum("qhd,khd->hqk", q, k) * q.shape[-1] ** -0.5
    return torch.einsum("hqk,khd->qhd", scores.masked_fill(is_hidden, -torch.inf).softmax(-1), v)


def turned(x: Tensor, angles: Tensor) -> Tensor:
    """(T, H, D) rotated by angles (T, 1, D / 2)."""
    first, second = x.chunk(2, dim=-1)
    cos = angles.cos()
    sin = angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)
