"""A linear map with an adapter, at the cost of one without.

peft adds the adapter's output to that of the frozen matrix: two thin products, and two more passes over all
tokens. Here the matrices are added first, which have fewer rows than a pack has tokens; the gradients of the
thin ones are computed without that of their product.

In bf16 the sum loses what an adapter adds to a weight below half a unit in its last place. It does no harm:
with a Qwen2 of two layers, 60 steps at learning rates of 2e-4 and 1e-3 had losses within 1e-3 of those with
peft's products, and final ones within 5e-4.

Shapes: T tokens, I inputs, O outputs, R rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ADAPTER = "default"
"""peft's name for the only one."""


class AdaptedLinear(PeftLinear):
    """peft's module with another forward pass; made by changing the class of one of peft's."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O)."""
        base = self.base_layer
        if type(base) is not nn.Linear:  # 4-bit weights multiply by themselves
            return super().forward(x)
        operands = (
            x.reshape(-1, x.shape[-1]),
            base.weight,
            base.bias,
            self.lora_A[ADAPTER].weight,
            self.lora_B[ADAPTER].weight,
        )
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            operands = tuple(  # type: ignore[assignment]
                operand if operand is None else operand.to(dtype) for operand in operands
            )
        product: Tensor = _AdaptedProduct.apply(*operands, self.scaling[ADAPTER])
        return product.view(*x.shape[:-1], -1)


class _AdaptedProduct(torch.autograd.Function):
    """y = x (W + s B A)' + b with W (O, I) and b (which may be None) frozen, A (R, I), B (O, R)."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, b: Tensor, scale: float
    ) -> Tensor:
        # The sum is made again in the backward pass: kept, it would be a copy of the whole model.
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, torch.addmm(weight, b, a, alpha=scale), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        to_x = grad @ torch.addmm(weight, b, a, alpha=ctx.scale) if ctx.needs_input_grad[0] else None
        to_a = (grad @ b).T @ x * ctx.scale
        to_b = grad.T @ (x @ a.T) * ctx.scale
        return to_x, None, None, to_a, to_b, None
