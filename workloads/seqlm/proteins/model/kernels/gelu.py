"""Exact GELU by a kernel of this project, as operators that torch.compile takes into its graph.

Triton is imported when an operator runs, because machines without a GPU lack it.

Shapes: T tokens, C inputs and F outputs of the map before the GELU.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .products import CastMap, operands_with_gradient, weight_gradient


@torch.library.custom_op("seqlm::gelu", mutates_args=())
def gelu_forward(x: Tensor) -> Tensor:
    """Return the GELU of x, contiguous, in its type."""
    from . import gelu_kernels

    with torch.cuda.device_of(x):  # Triton launches on the current device, whatever x is on
        return gelu_kernels.forward(x)


@gelu_forward.register_fake
def _(x: Tensor) -> Tensor:
    return torch.empty_like(x)


@torch.library.custom_op("seqlm::gelu_backward", mutates_args=())
def gelu_backward(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    """Return the gradient of x (T, F) and its sum over tokens (F,) in fp32."""
    from . import gelu_kernels

    with torch.cuda.device_of(x):
        return gelu_kernels.backward(grad, x)


@gelu_backward.register_fake
def _(grad: Tensor, x: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(x), x.new_empty(x.shape[1], dtype=torch.float32)


class _Gelu(torch.autograd.Function):
    """``gelu``."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        result: Tensor = gelu_forward(x)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        result: Tensor = gelu_backward(grad.contiguous(), x)[0]
        return result


def gelu(x: Tensor) -> Tensor:
    """Return the GELU of x (T, F) in its type."""
    result: Tensor = _Gelu.apply(x.contiguous())
    return result


class _ProductGelu(torch.autograd.Function):
    """``product_gelu``."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_weight: Tensor,
        of_bias: Tensor | None,
    ) -> Tensor:
        inner = F.linear(x, weight, bias)
        ctx.save_for_backward(x, weight, inner)
        ctx.of_weight = of_weight
        ctx.of_bias = of_bias
        result: Tensor = gelu_forward(inner)
        return result

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, inner = ctx.saved_tensors
        of_inner, sums = gelu_backward(grad.contiguous(), inner)
        weight_gradient(of_inner, x, ctx.of_weight)
        if ctx.of_bias is not None:
            ctx.of_bias.add_(sums)
        return torch.mm(of_inner, weight), None, None, None, None


def product_gelu(x: Tensor, cast: CastMap) -> Tensor:
    """Return the GELU (T, F) of ``products.product``; its kernel also adds up the bias's gradient."""
    if not torch.is_grad_enabled():
        return gelu(F.linear(x, cast.weight, cast.bias))
    result: Tensor = _ProductGelu.apply(x, *operands_with_gradient(x, cast))
    return result
