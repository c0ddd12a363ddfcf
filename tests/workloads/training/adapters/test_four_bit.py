"""Products of 4-bit matrices; bitsandbytes is tried where it is installed (``test_fine_tuning.py``)."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqlm.training.adapters import four_bit


@pytest.fixture
def linear(monkeypatch: pytest.MonkeyPatch) -> four_bit.FourBitLinear:
    """Matrix of 4 inputs and 8 outputs, over a stand-in for bitsandbytes whose numbers are not packed."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]  # which looks into it no better than into bitsandbytes
    def product(x: Tensor, numbers: Tensor, *, quant_state: object, bias: Tensor | None) -> Tensor:
        """In its input's type, as bitsandbytes'."""
        return F.linear(x, numbers, bias)

    functional = SimpleNamespace(dequantize_4bit=lambda numbers, state: numbers)
    monkeypatch.setitem(sys.modules, "bitsandbytes", SimpleNamespace(matmul_4bit=product))
    monkeypatch.setitem(sys.modules, "bitsandbytes.functional", functional)
    numbers = torch.randn(8, 4).bfloat16()
    monkeypatch.setattr(four_bit, "_opened", lambda row, shape: (numbers, None))
    bias = nn.Parameter(torch.ones(8), requires_grad=False)
    result = four_bit.FourBitLinear(4, 8, bias, torch.bfloat16)
    result.weight = nn.Parameter(torch.zeros(len(result.weight)).bfloat16(), requires_grad=False)
    return result


def through(module: Any) -> tuple[Tensor, Tensor]:
    """Result and gradient, of what a layer norm answers with."""
    x = torch.arange(8.0).view(2, 4).requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        normed = F.layer_norm(x, (4,))
        assert normed.dtype == torch.float32
        result = module(normed)
    (result.float() * torch.arange(8)).sum().backward()
    assert x.grad is not None
    return result.detach(), x.grad


def test_products_are_those_of_autocast(linear: four_bit.FourBitLinear) -> None:
    """In its type, too: flash attention takes no fp32."""
    numbers, _ = four_bit._opened(linear.weight, torch.Size((8, 4)))
    plain = nn.Linear(4, 8)
    plain.load_state_dict({"weight": numbers, "bias": torch.ones(8)})
    found = through(linear)
    expected = through(plain)
    assert found[0].dtype == torch.bfloat16
    torch.testing.assert_close(found, expected)


def test_a_compiled_layer_is_one_graph(linear: four_bit.FourBitLinear) -> None:
    compiled = torch.compile(linear, fullgraph=True, backend="aot_eager")
    torch.testing.assert_close(through(compiled), through(linear))
