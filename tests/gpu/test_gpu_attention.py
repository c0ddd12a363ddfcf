"""Attention on CUDA against dense attention in fp32.

Shapes: T tokens, H heads of queries, G heads of keys and values, D head size.
"""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from seqlm.language.attention import packed_causal_attention
from seqlm.proteins.model.attention import packed_attention
from seqlm.training.device_runtime import uses_flash
from seqlm.training.layered_model import Segments
from tests.gpu.conftest import Within
from tests.gpu.drawn import HEAD_SIZES, Scale, difference

FORWARD, BACKWARD = 1e-2, 2e-2
"""bf16 rounds to 2^-9 (0.2 %) of a number at most. The forward pass rounds rotated queries and keys,
probabilities and the result once each, and the backward pass the gradients of all of them. A score of
standard deviation 1 passes an error on as it is. Four independent roundings come to 0.4 %, eight to 0.55 %.
The rest is room for lengths at which errors do not average out."""


def drawn_segments(scale: Scale, device: torch.device) -> Segments:
    """Lengths around flash's tiles of 64 and 128, the longest, padding, and empty ones at the end."""
    longest = scale.max_residues + 10
    lengths = [3, 63, 64, 65, 127, 128, 129, 4, longest]
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
    cos, sin = angles.cos(), angles.sin()
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_varlen_equals_dense_attention(
    head_size: int, device: torch.device, scale: Scale, within: Within
) -> None:
    segments = drawn_segments(scale, device)
    bounds = segments.cumulative.tolist()
    torch.manual_seed(0)
    qkv = (
        torch.randn(bounds[-1], 3, scale.heads, head_size, device=device)
        .bfloat16()
        .requires_grad_()
    )
    grad = torch.randn(bounds[-1], scale.heads, head_size, device=device).bfloat16()
    # Angles whose cosines are exact in bf16: multiples of a right angle. How cosines are rounded is another
    # test's question, and here would hide what the kernel does.
    angles = torch.randint(4, (bounds[-1], 1, head_size // 2), device=device) * (torch.pi / 2)
    cos, sin = angles.cos().round().bfloat16(), angles.sin().round().bfloat16()
    assert uses_flash(qkv)
    found = packed_attention(*qkv.unbind(1), cos, sin, segments)
    found.backward(grad)

    exact = qkv.detach().float().requires_grad_()
    q, k, v = exact.unbind(1)
    expected = dense(turned(q, angles), turned(k, angles), v, segments.cumulative)
    expected.backward(grad.float())

    within("output", segment_errors(found.detach(), expected.detach(), bounds), FORWARD)
    assert qkv.grad is not None and exact.grad is not None
    for place, name in enumerate(("queries", "keys", "values")):
        error = segment_errors(qkv.grad[:, place], exact.grad[:, place], bounds)
        within(f"gradient of {name}", error, BACKWARD)


@pytest.mark.parametrize(("heads", "key_heads"), [(8, 8), (8, 2)])
def test_causal_attention_with_grouped_keys(
    heads: int, key_heads: int, device: torch.device, scale: Scale, within: Within
) -> None:
    """Causal language models: heads of queries share those of keys and values."""
    segments = drawn_segments(scale, device)
    bounds = segments.cumulative.tolist()
    torch.manual_seed(0)
    shapes = [(1, count, bounds[-1], 64) for count in (heads, key_heads, key_heads)]
    inputs = [torch.randn(shape, device=device).bfloat16().requires_grad_() for shape in shapes]
    grad = torch.randn(1, bounds[-1], heads, 64, device=device).bfloat16()
    assert uses_flash(inputs[2])
    found, _ = packed_causal_attention(
        torch.nn.Module(), *inputs, None, scaling=64**-0.5, segments=segments
    )
    found.backward(grad)

    exact = [x.detach().float().requires_grad_() for x in inputs]
    q, k, v = (x[0].transpose(0, 1) for x in exact)
    k, v = (x.repeat_interleave(heads // key_heads, dim=1) for x in (k, v))
    expected = dense(q, k, v, segments.cumulative, is_causal=True)
    expected.backward(grad[0].float())

    within("output", segment_errors(found[0].detach(), expected.detach(), bounds), FORWARD)
    for name, x, y in zip(("queries", "keys", "values"), inputs, exact, strict=True):
        assert x.grad is not None and y.grad is not None
        errors = segment_errors(x.grad[0].transpose(0, 1), y.grad[0].transpose(0, 1), bounds)
        within(f"gradient of {name}", errors, BACKWARD)


def test_empty_segments_change_nothing(device: torch.device, scale: Scale, within: Within) -> None:
    segments = drawn_segments(scale, device)
    bounds = segments.cumulative.tolist()
    torch.manual_seed(0)
    qkv = torch.randn(bounds[-1], 3, scale.heads, 32, device=device).bfloat16()
    cos, sin = qkv.new_ones(bounds[-1], 1, 16), qkv.new_zeros(bounds[-1], 1, 16)
    plain = Segments(segments.cumulative[:-2], segments.max_length)
    with torch.no_grad():
        found, expected = (
            packed_attention(*qkv.unbind(1), cos, sin, places) for places in (segments, plain)
        )
    # The same kernel computes the same tiles in the same order.
    within("output", difference(found, expected), 0.0)
