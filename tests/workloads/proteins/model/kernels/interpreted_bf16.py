"""Kernels of products and casts in bf16, run in the interpreter's process."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _multiply(a, b, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    rows = tl.arange(0, SIZE)[:, None]
    columns = tl.arange(0, SIZE)[None, :]
    at = rows * SIZE + columns
    tl.store(out + at, tl.dot(tl.load(a + at), tl.load(b + at)))


@triton.jit
def _cast(x, out, SIZE: tl.constexpr):  # type: ignore[no-untyped-def]
    at = tl.arange(0, SIZE)
    tl.store(out + at, tl.load(x + at).to(out.dtype.element_ty))


def product_error() -> float:
    """Return the largest difference of a product of bf16 matrices from the exact one."""
    a, b = torch.randn(2, 16, 16, generator=torch.Generator().manual_seed(0)).bfloat16()
    out = torch.empty(16, 16)
    _multiply[(1,)](a, b, out, SIZE=16)
    return float((out.double() - a.double() @ b.double()).abs().max())


def cast_errors() -> tuple[int, int]:
    """Return how many numbers are rounded to bf16, and widened to fp32, otherwise than by torch."""
    numbers = torch.randn(256, generator=torch.Generator().manual_seed(0))
    return _num_wrong(numbers, torch.bfloat16), _num_wrong(numbers.bfloat16(), torch.float32)


def _num_wrong(numbers: Tensor, dtype: torch.dtype) -> int:
    out = torch.empty_like(numbers, dtype=dtype)
    _cast[(1,)](numbers, out, SIZE=len(numbers))
    return int((out != numbers.to(dtype)).sum())
