"""Operations of a packed model's layers: joined products, layer norms, lookups and their types.

Shapes: T tokens, C channels, H heads, D head size, V vocabulary.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class Affine(NamedTuple):
    """Weights of a layer norm, (C,) each."""

    weight: Tensor
    bias: Tensor | None


def looked_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Return rows of a table (V, H, D) at tokens (T,); a row's gradient is a sum over many, in fp32."""
    flat = table.flatten(1).float()  # (V, H D)
    rows = F.embedding(tokens, flat).to(table.dtype)
    return rows.view(-1, *table.shape[1:])


class JoinedWeights(NamedTuple):
    """Weights of several linear maps of one input, side by side."""

    weight: Tensor
    bias: Tensor | None


def joined_weights(projections: Sequence[nn.Module]) -> JoinedWeights | None:
    """Return the joined weights of linear maps; None if they are not plain.

    Adapters and 4-bit weights act in a forward pass of their own. Of joined frozen weights, a backward pass
    would keep a copy.
    """
    needs_grad = torch.is_grad_enabled()
    plain = [
        one
        for one in projections
        if type(one) is nn.Linear and one.weight.requires_grad >= needs_grad
    ]
    if len(plain) < len(projections):
        return None
    weight = torch.cat([one.weight for one in plain])
    bias = None if plain[0].bias is None else torch.cat([one.bias for one in plain])
    return JoinedWeights(weight, bias)


def joined(x: Tensor, projections: Sequence[nn.Module]) -> Tensor:
    """Return the outputs of several linear maps side by side, from one product if they are plain."""
    if len(projections) == 1:
        return projections[0](x)
    both = joined_weights(projections)
    if both is None:
        return torch.cat([one(x) for one in projections], dim=-1)
    return F.linear(x, both.weight, both.bias)


def layer_norm(x: Tensor, norm: nn.LayerNorm, affine: Affine | None = None) -> Tensor:
    """Compute a layer norm in fp32, whatever the type in which FSDP gathers the weights.

    Args:
        x: (..., C) input.
        norm: norm module.
        affine: weights in place of the module's own.
    """
    if affine is None:
        affine = Affine(norm.weight, norm.bias)
    weight = affine.weight
    # Without a bias, torch's kernel for CPUs takes six times as long.
    shift = torch.zeros_like(weight) if affine.bias is None else affine.bias
    return F.layer_norm(x.float(), norm.normalized_shape, weight.float(), shift.float(), norm.eps)


def operand(x: Tensor) -> Tensor:
    """Cast a tensor to the type in which autocast multiplies, so that several products share one cast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
