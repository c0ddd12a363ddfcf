"""Attention of a pack with both signatures of torch's ``varlen_attn``, which runs on CUDA only."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from seqlm.language import attention
from seqlm.training.layered_model import Segments


def varlen_2_11(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cu_seq_q: Tensor,
    cu_seq_k: Tensor,
    max_q: int,
    max_k: int,
    *,
    return_aux: object = None,
    scale: float | None = None,
    window_size: tuple[int, int] = (-1, -1),
) -> Tensor:
    """Stand-in with the signature of torch 2.11, which needs as many heads of keys as of queries."""
    assert query.shape == key.shape == value.shape and window_size == (-1, 0)
    places = torch.arange(len(query))
    conversation = torch.searchsorted(cu_seq_q.contiguous(), places, right=True)
    seen = (conversation[:, None] == conversation) & (places <= places[:, None])
    q, k, v = (x.transpose(0, 1) for x in (query, key, value))
    return F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale).transpose(0, 1)


def varlen_2_13(*tensors: Any, enable_gqa: bool = False, **settings: Any) -> Tensor:
    """Stand-in with the argument that torch 2.13 adds."""
    query, key, value, *rest = tensors
    if key.shape != query.shape:
        assert enable_gqa, "fewer heads of keys than of queries need enable_gqa"
        key, value = (
            x.repeat_interleave(query.shape[1] // x.shape[1], dim=1) for x in (key, value)
        )
    return varlen_2_11(query, key, value, *rest, **settings)


@pytest.fixture(params=[varlen_2_11, varlen_2_13])
def with_stand_in(request: pytest.FixtureRequest) -> Iterator[ModuleType]:
    """The module as it is after it has met another ``varlen_attn``."""
    stand_in: Callable[..., Tensor] = request.param
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("torch.nn.attention.varlen.varlen_attn", stand_in)
        yield importlib.reload(attention)
    importlib.reload(attention)


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (6, 2), (4, 1)])
def test_heads_that_share_keys_see_what_they_see_one_conversation_at_a_time(
    with_stand_in: ModuleType, heads: int, groups: int
) -> None:
    torch.manual_seed(0)
    cumulative = torch.tensor([0, 5, 5, 17, 24], dtype=torch.int32)
    query = torch.randn(1, heads, 24, 8, requires_grad=True)
    key, value = (torch.randn(1, groups, 24, 8, requires_grad=True) for _ in range(2))
    found = with_stand_in._all_at_once(query, key, value, 0.3, Segments(cumulative, 12))
    expected = with_stand_in._one_by_one(query, key, value, 0.3, cumulative)
    assert found.shape == (1, 24, heads, 8)
    # fp32 sums of 8 and of at most 12 products in another order.
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)
    weights = torch.randn_like(found)
    for one, other in zip(
        torch.autograd.grad((found * weights).sum(), (query, key, value)),
        torch.autograd.grad((expected * weights).sum(), (query, key, value)),
        strict=True,
    ):
        torch.testing.assert_close(one, other, atol=1e-5, rtol=1e-5)
