"""Attention on CUDA against dense attention in fp32.

Shapes: T tokens, H heads of queries, G heads of keys and values, D head size.
"""

from __future__ import annotations

import pytest
import torch

from seqlm.language.attention import packed_causal_attention
from seqlm.proteins.model.attention import packed_attention
from seqlm.training.device_runtime import uses_flash
from seqlm.training.layered_model import Segments
from tests.gpu.conftest import Within
from tests.gpu.dense_attention import (
    BACKWARD,
    FORWARD,
    dense,
    drawn_segments,
    segment_errors,
    turned,
)
from tests.gpu.drawn import HEAD_SIZES, Scale, difference


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
    cos = angles.cos().round().bfloat16()
    sin = angles.sin().round().bfloat16()
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
    cos = qkv.new_ones(bounds[-1], 1, 16)
    sin = qkv.new_zeros(bounds[-1], 1, 16)
    plain = Segments(segments.cumulative[:-2], segments.max_length)
    with torch.no_grad():
        found, expected = (
            packed_attention(*qkv.unbind(1), cos, sin, places) for places in (segments, plain)
        )
    # The same kernel computes the same tiles in the same order.
    within("output", difference(found, expected), 0.0)
