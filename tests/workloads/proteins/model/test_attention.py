"""Attention on a CPU, by flash attention and by matrix products, and how exact rotations are."""

from __future__ import annotations

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from seqlm.proteins.model import attention
from seqlm.proteins.model.attention import Buffers, packed_attention, rotate
from seqlm.training.layered_model import Segments


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
    cos = angles.cos().to(dtype)
    sin = angles.sin().to(dtype)
    segments = Segments(cumulative, 128)
    found = packed_attention(*qkv.unbind(1), cos, sin, segments)
    expected = packed_attention(*qkv.clone().requires_grad_().unbind(1), cos, sin, segments)
    tolerance = 1e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected.detach(), atol=tolerance, rtol=tolerance)


def test_recomputing_gives_the_same_whatever_buffers_are_free(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """An earlier, larger pack left a buffer, which the first pass takes; the second makes its own."""
    torch.manual_seed(0)
    qkv = torch.randn(96, 3, 4, 16).bfloat16()
    angles = torch.randn(96, 1, 8).bfloat16()
    segments = Segments(torch.tensor([0, 40, 96], dtype=torch.int32), 64)
    large = torch.empty(20_000_000).bfloat16()

    def gradient(*, recompute: bool) -> torch.Tensor:
        monkeypatch.setattr(attention, "buffers", Buffers())
        attention.buffers.give_back(torch.empty(5_000_000).bfloat16())  # for the scores
        attention.buffers.give_back(large)  # for the probabilities
        x = qkv.clone().requires_grad_()
        arguments = (*x.unbind(1), angles.cos(), angles.sin(), segments)
        out = checkpoint(packed_attention, *arguments, use_reentrant=False) if recompute else None
        (packed_attention(*arguments) if out is None else out).square().sum().backward()
        assert x.grad is not None
        return x.grad

    assert torch.equal(gradient(recompute=True), gradient(recompute=False))
    # Whole buffers come back, not the part of them that was used.
    assert attention.buffers.take(len(large), qkv).data_ptr() == large.data_ptr()


@pytest.mark.parametrize("size", [4, 16, 64])
def test_the_flash_kernel_and_matrix_products_give_the_same(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """fp32 on a CPU uses the kernel, bf16 the products; in fp32 only the order of sums differs."""
    torch.manual_seed(0)
    lengths = torch.tensor([3, 32, 97, 1, 64, 33, 5])
    cumulative = torch.cat([torch.zeros(1), lengths.cumsum(0), torch.full((2,), 235.0)]).int()
    angles = torch.randn(235, 1, size // 2)
    cos = angles.cos()
    sin = angles.sin()
    weights = torch.randn(235, 5, size)
    by_kernel = torch.randn(235, 3, 5, size, requires_grad=True)
    by_products = by_kernel.detach().clone().requires_grad_()
    segments = Segments(cumulative, 128)
    found = packed_attention(*by_kernel.unbind(1), cos, sin, segments)
    monkeypatch.setattr(attention, "uses_cpu_kernel", lambda x: False)
    expected = packed_attention(*by_products.unbind(1), cos, sin, segments)
    torch.testing.assert_close(found, expected, atol=2e-6, rtol=1e-5)
    (found * weights).sum().backward()
    (expected * weights).sum().backward()
    torch.testing.assert_close(by_kernel.grad, by_products.grad, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("needs_grad", [False, True])
def test_queries_of_some_tokens_give_what_those_of_all_give(
    dtype: torch.dtype, needs_grad: bool
) -> None:
    """Rows in any order, one of them twice, none in the first protein and in the last."""
    lengths = torch.tensor([3, 32, 97, 1, 64, 33, 5])
    cumulative = torch.cat([torch.zeros(1), lengths.cumsum(0), torch.full((2,), 235.0)]).int()
    torch.manual_seed(0)
    rows = torch.cat([3 + torch.randperm(227)[:60], torch.tensor([40, 40])])
    angles = torch.randn(235, 1, 8)
    weights = torch.randn(62, 5, 16).to(dtype)
    cos = angles.cos()
    sin = angles.sin()
    segments = Segments(cumulative, 128)
    some = torch.randn(235, 3, 5, 16).to(dtype).requires_grad_(needs_grad)
    all_tokens = some.detach().clone().requires_grad_(needs_grad)
    q, k, v = some.unbind(1)
    found = packed_attention(q[rows], k, v, cos, sin, segments, rows)
    expected = packed_attention(*all_tokens.unbind(1), cos, sin, segments)[rows]
    tolerance = 2e-6 if dtype == torch.float32 else 2e-2
    torch.testing.assert_close(found, expected, atol=tolerance, rtol=tolerance)
    if needs_grad:
        (found * weights).sum().backward()
        (expected * weights).sum().backward()
        torch.testing.assert_close(
            some.grad, all_tokens.grad, atol=5 * tolerance, rtol=5 * tolerance
        )


def test_cosines_in_fp32_lower_the_error_of_scores(monkeypatch: pytest.MonkeyPatch) -> None:
    """For flash attention, queries and keys in bf16 are rotated in fp32. A stand-in takes its operands."""
    torch.manual_seed(0)
    length = 512
    heads = 4
    size = 16
    angles = torch.arange(length)[:, None, None] / 10000 ** (torch.arange(0, size, 2) / size)
    cos = angles.cos()
    sin = angles.sin()
    qkv = torch.randn(length, 3, heads, size).bfloat16()
    taken: list[torch.Tensor] = []

    def varlen(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *rest: object) -> torch.Tensor:
        taken.extend((q, k))
        return v

    monkeypatch.setattr(attention, "uses_flash", lambda x: True)
    monkeypatch.setattr(attention, "varlen_attn", varlen)
    segments = Segments(torch.tensor([0, length], dtype=torch.int32), length)
    packed_attention(*qkv.unbind(1), cos, sin, segments)
    assert all(x.dtype == torch.bfloat16 for x in taken), "flash attention takes no fp32"

    def scores(q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return torch.einsum("qhd,khd->hqk", q.double(), k.double())

    queries_and_keys = qkv.unbind(1)[:2]
    exact = scores(
        *(
            rotate(x.double(), angles.double().cos(), angles.double().sin())
            for x in queries_and_keys
        )
    )
    in_bf16 = scores(*(rotate(x, cos.bfloat16(), sin.bfloat16()) for x in queries_and_keys))
    found, before = ((x - exact).norm() / exact.norm() for x in (scores(*taken), in_bf16))
    # 2.35e-3 and 3.8e-3: the first is what rounding two operands to 8 bits costs, by itself.
    assert found < 2.6e-3 < 3.4e-3 < before
