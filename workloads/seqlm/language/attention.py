"""Causal attention within the conversations of a pack, registered as an implementation of transformers.

Shapes: T tokens of the pack, H heads of queries, G heads of keys and values, D head size.
"""

import inspect
import itertools
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.attention.varlen import varlen_attn
from transformers import AttentionInterface, AttentionMaskInterface

from seqlm.training.device_runtime import uses_flash
from seqlm.training.layered_model import Segments

PACKED = "packed_causal"
"""Name of the implementation in transformers (``config._attn_implementation``)."""
_HAS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_GROUPS: dict[str, Any] = {"enable_gqa": True} if _HAS_GROUPS else {}
"""Argument by which several heads of queries share one head of keys and values. torch 2.11 has none."""


def packed_causal_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    *,
    scaling: float,
    segments: Segments,
    **unused: Any,
) -> tuple[Tensor, None]:
    """Compute the attention of one row of tokens.

    Args:
        module: attention module of transformers.
        query: (1, H, T, D) queries after rotation.
        key: (1, G, T, D) keys after rotation.
        value: (1, G, T, D) values.
        attention_mask: None, because the segments limit attention.
        scaling: factor on the products of queries and keys.
        segments: positions of the conversations.
        unused: arguments of other implementations.

    Returns:
        (1, T, H, D), and no attention weights.
    """
    assert attention_mask is None, "segments replace the mask"
    if uses_flash(value):
        return _all_at_once(query, key, value, scaling, segments), None
    return _one_by_one(query, key, value, scaling, segments.cumulative), None


def _all_at_once(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, segments: Segments
) -> Tensor:
    """Compute attention with torch's varlen flash kernel."""
    # Under autocast, queries and keys are fp32, because they are rotated by cosines in fp32.
    q = query[0].transpose(0, 1).to(value.dtype)  # (T, H, D)
    k = key[0].transpose(0, 1).to(value.dtype)  # (T, G, D)
    v = value[0].transpose(0, 1)  # (T, G, D)
    if not _GROUPS:
        queries_per_key = q.shape[1] // k.shape[1]
        k = k.repeat_interleave(queries_per_key, dim=1)  # (T, H, D)
        v = v.repeat_interleave(queries_per_key, dim=1)  # (T, H, D)
    context = varlen_attn(
        q,
        k,
        v,
        segments.cumulative,
        segments.cumulative,
        segments.max_length,
        segments.max_length,
        scale=scaling,
        window_size=(-1, 0),
        **_GROUPS,
    )
    assert isinstance(context, Tensor)  # a tuple comes only with further options
    return context[None]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the loop's length changes with every pack
def _one_by_one(
    query: Tensor, key: Tensor, value: Tensor, scaling: float, cumulative: Tensor
) -> Tensor:
    """Compute attention for one conversation after another."""
    parts = []
    for start, stop in itertools.pairwise(cumulative.tolist()):
        if stop == start:
            continue
        context = F.scaled_dot_product_attention(
            query[:, :, start:stop],
            key[:, :, start:stop],
            value[:, :, start:stop],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        parts.append(context)
    return torch.cat(parts, dim=2).transpose(1, 2)


AttentionInterface.register(PACKED, packed_causal_attention)
AttentionMaskInterface.register(PACKED, lambda *arguments, **keywords: None)
