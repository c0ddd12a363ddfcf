"""Attention without a backward pass gives what attention with one does."""

from __future__ import annotations

import pytest
import torch

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
