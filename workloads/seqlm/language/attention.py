"""Causal attention within the conversations of a pack, never across them; by transformers' interface.

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
"""transformers' name for it: ``config._attn_implementation``."""
_HAS_GROUPS = "enable_gqa" in inspect.signature(varlen_attn).parameters
_GROUPS: dict[str, Any] = {"enable_gqa": True} if _HAS_GROUPS else {}
"""Lets several heads of queries share one of keys and values; torch 2.11 has no such argument."""


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
    """Attention of one row of tokens.

    Args:
        module: of transformers, which calls this.
        query: (1, H, T, D), rotated.
        key: (1, G, T, D), rotated.
        value: (1, G, T, D).
        attention_mask: none; the segments say who sees whom.
        scaling: of the products of queries and keys.
        segments: where the conversations lie.
        unused: what other implementations read.

    Returns:
        (1, T, H, D), and no attention weights.
    """
    assert attention_mask is None, "segments stand in its place"
    if uses_flash(value):
        return _all_at_once(query, key, value, scaling, segments), None
    return _one_by_one(query, key, value, scaling, segments.cumulative), None


def _all_at_once(query: Tensor, key: Tensor, value: Tensor, scaling: float, segments: Segments) -> Tensor:
    # Rotated by cosines in fp32 under autocast, they come in fp32.
    q, k, v = (x[0].transpose(0, 1).to(value.dtype) for x in (query, key, value))  # (T, H or G, D)
    if not _GROUPS:
        k, v = (x.repeat_interleave(q.shape[1] // x.shape[1], dim=1) for x in (k, v))  # (T, H, D)
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
    assert isinstance(context, Tensor)  # a tuple is returned only with further options
    return context[None]


@torch.compiler.disable  # type: ignore[untyped-decorator]  # the loop's length changes with every pack
def _one_by_one(query: Tensor, key: Tensor, value: Tensor, scaling: float, cumulative: Tensor) -> Tensor:
    parts = [
        F.scaled_dot_product_attention(
            query[:, :, start:stop],
            key[:, :, start:stop],
            value[:, :, start:stop],
            is_causal=True,
            scale=scaling,
            enable_gqa=True,
        )
        for start, stop in itertools.pairwise(cumulative.tolist())
        if stop > start
    ]
    return torch.cat(parts, dim=2).transpose(1, 2)


AttentionInterface.register(PACKED, packed_causal_attention)
AttentionMaskInterface.register(PACKED, lambda *arguments, **keywords: None)
