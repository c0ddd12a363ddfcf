"""Products of linear maps with weights that are cast once per step.

Under autocast every pass casts the weights again, and their gradients leave the products in bf16, are cast to
fp32 and added to those of earlier passes. Here

* the weights are cast once per step (``CastWeights.refresh``) into buffers that live as long as the model;
  maps with the same input share a buffer, so that one product computes them;
* the gradient of a weight leaves its product in fp32 and is added up there, in the parameter's ``grad``.

Weights and biases of these maps are therefore no part of the autograd graph: a backward pass returns the
gradient of the input alone. Both directions are ordinary operators to torch.compile, except the addition to a
weight's gradient, which is the operator ``seqlm::weight_gradient``.

Memory: s bytes for each element of the matrices, where s is the size of a number in the arithmetic. In bf16
these are 1.3 GB for ESM-2 650M and 5.7 GB for 3B. Without activation checkpointing, that is no more than
autocast's copies, which autograd keeps from the forward to the backward pass.

Shapes: T tokens, C inputs and N outputs of a map.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn


@torch.library.custom_op("seqlm::weight_gradient", mutates_args=("into",))
def weight_gradient(grad: Tensor, x: Tensor, into: Tensor) -> None:
    """Add the gradient of a weight to ``into``, computed and added in fp32.

    With bf16 operands on CUDA, the addition is part of the product: on an H200 it takes as long as the
    product alone.

    Args:
        grad: (T, N) gradient of the outputs.
        x: (T, C) inputs.
        into: (N, C) fp32 gradient of the weight.
    """
    if grad.dtype == into.dtype:
        into.addmm_(grad.t(), x)
    elif grad.is_cuda:
        torch.addmm(into, grad.t(), x, out_dtype=into.dtype, out=into)
    else:
        into.addmm_(grad.t().to(into.dtype), x.to(into.dtype))


@weight_gradient.register_fake
def _(grad: Tensor, x: Tensor, into: Tensor) -> None:
    return


@dataclass(frozen=True, eq=False)
class CastMap:
    """Linear maps with the same input, side by side, as their product reads them."""

    weight: Tensor
    """(N, C) in the type of the products."""
    bias: Tensor | None
    """(N,) in the type of the products."""
    weight_gradient: Tensor | None = None
    """(N, C) fp32, where the gradient of the weights is added up. None: there is no backward pass."""
    bias_gradient: Tensor | None = None
    """(N,) fp32, where the gradient of the biases is added up."""

    def outputs(self, first: int, end: int) -> CastMap:
        """Return the maps to some of the outputs, as views."""

        def part(x: Tensor | None) -> Tensor | None:
            return None if x is None else x[first:end]

        return CastMap(
            self.weight[first:end],
            part(self.bias),
            part(self.weight_gradient),
            part(self.bias_gradient),
        )


def product(x: Tensor, cast: CastMap) -> Tensor:
    """Return the outputs (T, N) of linear maps for inputs (T, C) of the same type.

    The backward pass adds to the gradients of weights and biases.
    """
    if not torch.is_grad_enabled():
        return F.linear(x, cast.weight, cast.bias)
    result: Tensor = _Product.apply(x, *operands_with_gradient(x, cast))
    return result


def operands_with_gradient(
    x: Tensor, cast: CastMap
) -> tuple[Tensor, Tensor | None, Tensor, Tensor | None]:
    """Return the weight, the bias and the places of their gradients for a pass with gradients.

    Raises:
        ValueError: if a backward pass would not reach the weights, because they have no place for a gradient
            or because the input x has no gradient.
    """
    if cast.weight_gradient is None:
        raise ValueError("the weights have no place for their gradient")
    if not x.requires_grad:
        raise ValueError(
            "the input has no gradient, so a backward pass would not reach the weights"
        )
    return cast.weight, cast.bias, cast.weight_gradient, cast.bias_gradient


class _Product(torch.autograd.Function):
    """``product``. Places of gradients are no saved tensors, since every backward pass changes them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        weight_gradient: Tensor,
        bias_gradient: Tensor | None,
    ) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.weight_gradient = weight_gradient
        ctx.bias_gradient = bias_gradient
        return F.linear(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight = ctx.saved_tensors
        weight_gradient(grad, x, ctx.weight_gradient)
        if ctx.bias_gradient is not None:
            # A sum over tokens in a fixed order, which a compiler joins with the addition.
            ctx.bias_gradient.add_(grad.sum(dim=0, dtype=ctx.bias_gradient.dtype))
        return torch.mm(grad, weight), None, None, None, None


class _Stack:
    """Parameters side by side along their first dimension, and a copy of them in another type.

    Args:
        parameters: parameters of the same width.
        dtype: type of the copy.
    """

    def __init__(self, parameters: Sequence[Tensor], dtype: torch.dtype) -> None:
        first = parameters[0]
        rows = [len(one) for one in parameters]
        self.parameters = [one for one in parameters if isinstance(one, nn.Parameter)]
        self.copy = torch.empty((sum(rows), *first.shape[1:]), dtype=dtype, device=first.device)
        self.parts = self.copy.split(rows)

    def gradient(self) -> Tensor | None:
        """Return the gradients of the parameters as one tensor; None if there are none yet.

        Raises:
            ValueError: if they do not lie side by side in memory.
        """
        gradients = [one.grad for one in self.parameters]
        first = gradients[0]
        if first is None:
            return None
        expected = first.data_ptr()
        for gradient in gradients:
            if gradient is None or gradient.data_ptr() != expected or not gradient.is_contiguous():
                raise ValueError(
                    "the gradients of weights that are multiplied as one do not lie side by side; allocate "
                    "those of each group of LayeredModel.adjacent_parameters() in one piece"
                )
            expected += gradient.nbytes
        # With ``data`` the result has a version of its own. Views of one buffer share theirs, and autograd
        # would take every layer's addition for a change of what the other layers have saved.
        return first.data.as_strided(self.copy.shape, self.copy.stride())


class CastWeights:
    """Weights of linear maps in the type of the products.

    Args:
        groups: linear maps with fp32 weights on their device. Those of a group have the same input, and all
            or none of them have a bias.
        dtype: type of the products.
    """

    def __init__(self, groups: Sequence[Sequence[nn.Linear]], dtype: torch.dtype) -> None:
        self._weights = [_Stack([one.weight for one in group], dtype) for group in groups]
        self._biases = [
            None if group[0].bias is None else _Stack([one.bias for one in group], dtype)
            for group in groups
        ]
        stacks = [stack for stack in (*self._weights, *self._biases) if stack is not None]
        self.adjacent = [stack.parameters for stack in stacks]
        """Groups of parameters whose gradients have to lie side by side."""
        self._parameters: list[Tensor] = [one for stack in stacks for one in stack.parameters]
        self._copies = [part for stack in stacks for part in stack.parts]
        self._gradients: list[Tensor | None] = []
        """Gradients of ``_parameters`` for which ``_maps`` were made."""
        self._maps: list[CastMap] = []

    @torch.no_grad()
    def refresh(self) -> list[CastMap]:
        """Cast the present weights, and return the maps of the groups.

        The maps are the same objects as long as the gradients keep their places.

        Raises:
            ValueError: if the gradients of a group do not lie side by side.
        """
        torch._foreach_copy_(self._copies, self._parameters)
        gradients = [one.grad for one in self._parameters]
        if not self._maps or any(
            new is not old for new, old in zip(gradients, self._gradients, strict=True)
        ):
            self._maps = [
                CastMap(
                    weight.copy,
                    None if bias is None else bias.copy,
                    weight.gradient(),
                    None if bias is None else bias.gradient(),
                )
                for weight, bias in zip(self._weights, self._biases, strict=True)
            ]
            self._gradients = gradients
        return self._maps


def plain_maps(groups: Iterable[Sequence[nn.Module]]) -> list[list[nn.Linear]] | None:
    """Return groups of linear maps whose weights can be cast once per step; None if a module is none.

    Adapters and 4-bit weights have a forward pass of their own, and frozen weights have no gradient.
    """
    found: list[list[nn.Linear]] = []
    for group in groups:
        maps = [one for one in group if type(one) is nn.Linear]
        parameters = [parameter for one in maps for parameter in one.parameters()]
        is_trained = all(one.requires_grad and one.dtype == torch.float32 for one in parameters)
        has_same_kind = len({one.bias is None for one in maps}) == 1
        if len(maps) < len(group) or not (is_trained and has_same_kind):
            return None
        found.append(maps)
    return found
