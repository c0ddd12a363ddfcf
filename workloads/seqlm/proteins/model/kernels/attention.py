"""Attention of a layer by this project's kernels, as operators that torch.compile keeps whole.

``project_and_attend`` is the product to queries, keys and values, the rotation and the attention. The product
is a part of it so that queries and keys are rotated where the product has written them: to autograd and to
the compiler, the operator changes nothing in place. ``attend`` takes queries, keys and values that something
else has computed, and rotates them into a new tensor.

The gradients of queries, keys and values are written into one tensor, from which the gradients of the
product's operands are products again.

Shapes: T tokens, C channels, I inputs of the product, H heads, D head size, N tiles.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .products import CastMap, operands_with_gradient, weight_gradient
from .tiles import AttentionTiles


def project_and_attend(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    tiles: AttentionTiles,
    head_size: int,
) -> Tensor:
    """Return the attention (T, C) of the queries, keys and values of ``x``.

    Args:
        x: (T, I) input.
        weight: (3 C, I) joined matrices to queries, keys and values, in the type of ``x``.
        bias: (3 C,) joined biases in any type, if there are some.
        cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
        sin: (T, 1, D / 2) fp32 sines.
        tiles: tiles of the pack.
        head_size: D.
    """
    needs = any(one is not None and one.requires_grad for one in (x, weight, bias))
    context, _, _ = _project_and_attend(
        x,
        weight,
        bias,
        cos,
        sin,
        tiles.forward,
        tiles.backward,
        head_size,
        needs and torch.is_grad_enabled(),
    )
    return context


class _ProjectAndAttendCast(torch.autograd.Function):
    """``project_and_attend_cast``. Places of gradients are no saved tensors, since each pass changes them."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Tensor,
        weight: Tensor,
        bias: Tensor | None,
        of_weight: Tensor,
        of_bias: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        forward_tiles: Tensor,
        backward_tiles: Tensor | None,
        head_size: int,
    ) -> Tensor:
        if backward_tiles is None:
            backward_tiles = forward_tiles
        context: Tensor
        context, sums, qkv = _project_and_attend(
            x, weight, bias, cos, sin, forward_tiles, backward_tiles, head_size, True
        )
        ctx.save_for_backward(x, weight, cos, sin, backward_tiles, context, sums, qkv)
        ctx.of_weight = of_weight
        ctx.of_bias = of_bias
        ctx.head_size = head_size
        return context

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor | None, ...]:
        x, weight, cos, sin, tiles, context, sums, qkv = ctx.saved_tensors
        has_bias = ctx.of_bias is not None
        dqkv, columns = _attention_backward(
            grad, qkv, context, sums, cos, sin, tiles, ctx.head_size, has_bias
        )
        weight_gradient(dqkv, x, ctx.of_weight)
        if has_bias:
            ctx.of_bias.add_(columns)
        return torch.mm(dqkv, weight), *[None] * 9


def project_and_attend_cast(
    x: Tensor, cast: CastMap, cos: Tensor, sin: Tensor, tiles: AttentionTiles, head_size: int
) -> Tensor:
    """Return ``project_and_attend`` with weights that are cast once per step.

    The backward pass adds to the gradients of weights and biases.
    """
    if not torch.is_grad_enabled():
        return project_and_attend(x, cast.weight, cast.bias, cos, sin, tiles, head_size)
    # Dynamo takes no tensor twice, and both passes may have the same tiles.
    backward_tiles = None if tiles.backward is tiles.forward else tiles.backward
    result: Tensor = _ProjectAndAttendCast.apply(
        x,
        *operands_with_gradient(x, cast),
        cos,
        sin,
        tiles.forward,
        backward_tiles,
        head_size,
    )
    return result


def attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    tiles: AttentionTiles,
    head_size: int,
) -> Tensor:
    """Return the attention (T, C) of queries and keys before rotation, and values, (T, C) each.

    The other arguments are those of ``project_and_attend``.
    """
    needs = any(one.requires_grad for one in (queries, keys, values))
    context, _, _ = _attend(
        queries,
        keys,
        values,
        cos,
        sin,
        tiles.forward,
        tiles.backward,
        head_size,
        needs and torch.is_grad_enabled(),
    )
    return context


@torch.library.custom_op("seqlm::project_and_attend", mutates_args=())
def _project_and_attend(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    forward_tiles: Tensor,
    backward_tiles: Tensor,
    head_size: int,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result and, if it ``keeps`` them, sums and rotated operands for the backward pass."""
    from . import attention_launch as launch  # Triton is not on every machine

    qkv = F.linear(x, weight, None if bias is None else bias.to(x.dtype))
    with torch.cuda.device_of(
        x
    ):  # Triton launches on the current device, whatever its operands are on
        launch.rotate_in_place(qkv, cos, sin, head_size)
        context, sums = launch.forward(qkv, forward_tiles, head_size, keeps_sums=keeps)
    return context, sums, qkv if keeps else qkv.new_empty(0)


@torch.library.custom_op("seqlm::attend", mutates_args=())
def _attend(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    forward_tiles: Tensor,
    backward_tiles: Tensor,
    head_size: int,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the result and, if it ``keeps`` them, sums and rotated operands for the backward pass."""
    from . import attention_launch as launch

    with torch.cuda.device_of(queries):
        qkv = launch.rotate_and_join(queries, keys, values, cos, sin, head_size)
        context, sums = launch.forward(qkv, forward_tiles, head_size, keeps_sums=keeps)
    return context, sums, qkv if keeps else qkv.new_empty(0)


@torch.library.custom_op("seqlm::attention_backward", mutates_args=())
def _attention_backward(
    grad: Tensor,
    qkv: Tensor,
    context: Tensor,
    sums: Tensor,
    cos: Tensor,
    sin: Tensor,
    tiles: Tensor,
    head_size: int,
    adds_columns: bool,
) -> tuple[Tensor, Tensor]:
    """Return the gradients (T, 3 C) and their sums over tokens, (3 C,) fp32, or (0,) if not needed."""
    from . import attention_launch as launch

    with torch.cuda.device_of(qkv):
        return launch.backward(
            grad, qkv, context, sums, cos, sin, tiles, head_size, adds_columns=adds_columns
        )


def _shapes_of_forward(
    like: Tensor, width: int, head_size: int, *, keeps: bool
) -> tuple[Tensor, Tensor, Tensor]:
    num_tokens = len(like)
    heads = width // head_size
    return (
        like.new_empty(num_tokens, width),
        like.new_empty(heads, num_tokens if keeps else 0, dtype=torch.float32),
        like.new_empty((num_tokens, 3 * width) if keeps else (0,)),
    )


@_project_and_attend.register_fake
def _(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    cos: Tensor,
    sin: Tensor,
    forward_tiles: Tensor,
    backward_tiles: Tensor,
    head_size: int,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _shapes_of_forward(x, len(weight) // 3, head_size, keeps=keeps)


@_attend.register_fake
def _(
    queries: Tensor,
    keys: Tensor,
    values: Tensor,
    cos: Tensor,
    sin: Tensor,
    forward_tiles: Tensor,
    backward_tiles: Tensor,
    head_size: int,
    keeps: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    return _shapes_of_forward(queries, queries.shape[1], head_size, keeps=keeps)


@_attention_backward.register_fake
def _(
    grad: Tensor,
    qkv: Tensor,
    context: Tensor,
    sums: Tensor,
    cos: Tensor,
    sin: Tensor,
    tiles: Tensor,
    head_size: int,
    adds_columns: bool,
) -> tuple[Tensor, Tensor]:
    return torch.empty_like(qkv), sums.new_empty(qkv.shape[1] if adds_columns else 0)


def _keep_for_projection(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    x, weight, bias, cos, sin, _, tiles, ctx.head_size, _ = inputs
    ctx.set_materialize_grads(False)  # only the result has a gradient
    ctx.bias_type = None if bias is None else bias.dtype
    ctx.save_for_backward(x, weight, cos, sin, tiles, *output)


def _gradients_of_projection(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    x, weight, cos, sin, tiles, context, sums, qkv = ctx.saved_tensors
    needs_input, needs_weight, needs_bias = ctx.needs_input_grad[:3]
    dqkv, columns = _attention_backward(
        grad, qkv, context, sums, cos, sin, tiles, ctx.head_size, needs_bias
    )
    return (
        dqkv @ weight if needs_input else None,
        dqkv.t() @ x if needs_weight else None,
        columns.to(ctx.bias_type) if needs_bias else None,
        *[None] * 6,
    )


_project_and_attend.register_autograd(_gradients_of_projection, setup_context=_keep_for_projection)


def _keep_for_operands(ctx: Any, inputs: Sequence[Any], output: tuple[Tensor, ...]) -> None:
    _, _, _, cos, sin, _, tiles, ctx.head_size, _ = inputs
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(cos, sin, tiles, *output)


def _gradients_of_operands(ctx: Any, grad: Tensor, *_: None) -> tuple[Tensor | None, ...]:
    cos, sin, tiles, context, sums, qkv = ctx.saved_tensors
    dqkv, _columns = _attention_backward(
        grad, qkv, context, sums, cos, sin, tiles, ctx.head_size, False
    )
    return *dqkv.chunk(3, dim=-1), *[None] * 6


_attend.register_autograd(_gradients_of_operands, setup_context=_keep_for_operands)
