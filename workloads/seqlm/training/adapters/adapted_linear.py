"""A linear map with an adapter, at the cost of one without.

peft adds the adapter's output to that of the frozen matrix, which takes two thin products and two more passes
over all tokens. Here the matrices are added first, because they have fewer rows than a pack has tokens. The
gradients of the thin matrices are computed without the gradient of their product.

In bf16 the sum loses the part of an adapter that is below half a unit in a weight's last place. The effect is
small: with a Qwen2 of two layers, 60 steps at learning rates of 2e-4 and 1e-3 had losses within 1e-3 of those
with peft's products, and final losses within 5e-4.

Shapes: T tokens, I inputs, O outputs, R rank.
"""

from typing import Any

import torch
import torch.nn.functional as F
from peft.tuners.lora import Linear as PeftLinear
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

ADAPTER = "default"
"""Name that peft gives to the only adapter."""


class AdaptedLinear(PeftLinear):
    """peft's linear layer with another forward pass; ``add_adapters`` changes the class of peft's own."""

    def forward(self, x: Tensor) -> Tensor:
        """(..., I) -> (..., O)."""
        base = self.base_layer
        if type(base) is not nn.Linear:  # a 4-bit matrix has a product of its own
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
        # The backward pass computes the sum again. Saved sums would be a copy of the whole model.
        ctx.save_for_backward(x, weight, a, b)
        ctx.scale = scale
        return F.linear(x, torch.addmm(weight, b, a, alpha=scale), bias)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, a, b = ctx.saved_tensors
        x_grad = (
            grad @ torch.addmm(weight, b, a, alpha=ctx.scale) if ctx.needs_input_grad[0] else None
        )
        a_grad = (grad @ b).T @ x * ctx.scale
        b_grad = grad.T @ (x @ a.T) * ctx.scale
        return x_grad, None, None, a_grad, b_grad, None
