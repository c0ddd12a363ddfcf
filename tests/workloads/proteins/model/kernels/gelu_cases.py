"""Kernels of the GELU, run in the interpreter's process."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from seqlm.proteins.model.kernels import gelu_kernels

FARTHEST = 40.0
COLUMNS = 256
NUM_POINTS = 157 * COLUMNS


@dataclass(frozen=True)
class Errors:
    """Largest errors of a function against fp64."""

    absolute: float
    """Largest error of all, for results below 1; for larger ones as a share of the result."""
    in_tail: float
    """Largest error as a share of the result, for x from -5 to -1."""


def exact(x: Tensor) -> Tensor:
    """Return the GELU in fp64."""
    x = x.double()
    return 0.5 * x * torch.special.erfc(-x / math.sqrt(2))


def exact_slope(x: Tensor) -> Tensor:
    """Return the derivative of the GELU in fp64."""
    x = x.double()
    density = torch.exp(-0.5 * x * x) / math.sqrt(2 * math.pi)
    return 0.5 * torch.special.erfc(-x / math.sqrt(2)) + x * density


def points() -> Tensor:
    return torch.linspace(-FARTHEST, FARTHEST, NUM_POINTS).view(-1, COLUMNS)


def errors_of(found: Tensor, x: Tensor, expected: Tensor) -> Errors:
    errors = (found.double() - expected).abs()
    in_tail = (x >= -5) & (x <= -1)
    return Errors(
        absolute=float((errors / expected.abs().clamp(min=1)).max()),
        in_tail=float((errors / expected.abs())[in_tail].max()),
    )


def forward_errors(*, of_torch: bool = False) -> Errors:
    """Return the errors of the GELU in fp32, by the kernel or by torch."""
    x = points()
    found = F.gelu(x) if of_torch else gelu_kernels.forward(x)
    return errors_of(found, x, exact(x))


def slope_errors() -> Errors:
    """Return the errors of the derivative in fp32. Its root, near -0.75, is outside of the tail."""
    x = points()
    found, _ = gelu_kernels.backward(torch.ones_like(x), x)
    return errors_of(found, x, exact_slope(x))


def misrounded(*, of_slope: bool) -> float:
    """Return the share of results in bf16 that are not the exact result rounded, where that is above 1e-4."""
    x = points().bfloat16()
    if of_slope:
        found, _ = gelu_kernels.backward(torch.ones_like(x), x)
        expected = exact_slope(x)
    else:
        found = gelu_kernels.forward(x)
        expected = exact(x)
    counts = expected.abs() > 1e-4
    return float((found != expected.bfloat16())[counts].double().mean())


def shape_errors(rows: int, columns: int, dtype: torch.dtype) -> dict[str, float]:
    """Return the relative differences of all results for a shape from fp64."""
    generator = torch.Generator().manual_seed(rows)
    x, grad = (2 * torch.randn(2, rows, columns, generator=generator)).to(dtype)
    inner, sums = gelu_kernels.backward(grad, x)
    expected = grad.double() * exact_slope(x)
    return {
        "result": relative(gelu_kernels.forward(x), exact(x)),
        "gradient": relative(inner, expected),
        "sums": relative(sums, expected.sum(0)),
    }


def special() -> tuple[Tensor, Tensor]:
    """Return the results of the kernel and of torch in fp64 for special numbers.

    In fp32, torch's GELU of infinity is NaN on processors with AVX-512 (torch 2.13).
    """
    x = torch.tensor([0.0, -0.0, math.inf, math.nan, 1e-30, -1e-30, 1e30])
    return gelu_kernels.forward(x), F.gelu(x.double()).float()


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found.double() - expected).norm() / expected.norm())
