"""Attention on a CPU: with and without a backward pass, by flash attention and by matrix products."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from workloads.esm2 import attention
from workloads.esm2.attention import Segments, packed_attention


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("size", [2, 4, 16, 24, 64])
def test_forward_alone_equals_forward_with_gradients(
    dtype: torch.dtype, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Tiles of one head and of several; lengths at, below and above the rounded ones; a short one at the end.
    monkeypatch.setattr(attention, "FORWARD_TILE_BYTES", 64 * 64 * 4)
    lengths = torch.tensor([3, 32, 97, 1, 64, 33, 5])
    cumulative = torch.cat([torch.zeros(1), lengths.cumsum(0), torch.full((2,), 235.0)]).int()
    torch.manual_seed(0)
    qkv = torch.randn(235, 3, 5, size).to(dtype)
    angles = torch.randn(235, 1, size // 2)
    cos, sin = angles.cos().to(dtype), angles.sin().to(dtype)
    segments = Segments(cumulative, 128)
    found = packed_attention(qkv, cos, sin, segments)
    expected = packed_attention(qkv.clone().requires_grad_(), cos, sin, segments)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected.detach(), atol=tolerance, rtol=tolerance)


def test_recomputing_gives_the_same_whatever_buffers_are_free(monkeypatch: pytest.MonkeyPatch) -> None:
    """An earlier, larger pack left a buffer, which the first pass takes; the second makes its own."""
    torch.manual_seed(0)
    qkv, angles = torch.randn(96, 3, 4, 16).bfloat16(), torch.randn(96, 1, 8).bfloat16()
    segments = Segments(torch.tensor([0, 40, 96], dtype=torch.int32), 64)

    def gradient(*, recompute: bool) -> torch.Tensor:
        monkeypatch.setattr(attention, "_buffers", attention._Buffers())
        attention._buffers.give_back(torch.empty(5_000_000).bfloat16())  # for the scores
        attention._buffers.give_back(torch.empty(20_000_000).bfloat16())  # for the probabilities
        x = qkv.clone().requires_grad_()
        arguments = (x, angles.cos(), angles.sin(), segments)
        out = checkpoint(packed_attention, *arguments, use_reentrant=False) if recompute else None
        (packed_attention(*arguments) if out is None else out).square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(recompute=True), gradient(recompute=False))
    # Whole buffers come back, not the part of them that was used.
    assert max(buffer.numel() for buffer in attention._buffers._free) == 20_000_000


@pytest.mark.parametrize("size", [4, 16, 64])
def test_the_flash_kernel_and_matrix_products_give_the_same(size: int) -> None:
    """fp32 on a CPU uses the kernel, bf16 the products; in fp32 only the order of sums differs."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 32, 97, 1, 64, 33, 5])
    cumulative = torch.cat([torch.zeros(1), lengths.cumsum(0), torch.full((2,), 235.0)]).int()
    angles = torch.randn(235, 1, size // 2)
    cos, sin, weights = angles.cos(), angles.sin(), torch.randn(235, 5, size)
    by_kernel = torch.randn(235, 3, 5, size, requires_grad=True)
    by_products = by_kernel.detach().clone().requires_grad_()
    found = packed_attention(by_kernel, cos, sin, Segments(cumulative, 128))
    slots = attention._Slots.of(cumulative)
    expected = attention._SegmentAttention.apply(by_products, cos, sin, slots)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(by_kernel.grad, by_products.grad, atol=1e-5, rtol=1e-5)
