"""ESMC's first layer, whose queries, keys and values are looked up by token."""

from __future__ import annotations

from typing import Any

import peft
import pytest
import torch
from torch import Tensor

from seqlm.proteins.families.esmc.model import PackedEsmcModel
from seqlm.proteins.model.packed_layer import PackedLayer
from tests.workloads.proteins.families.test_esmc_parity import (
    packed_model,
    plain_model,
    random_pack,
)

SHAPE = (2, 128, 256)


@pytest.fixture
def packed() -> Any:
    return packed_model(plain_model(*SHAPE)).train()


@pytest.fixture
def computed(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of rows that layers compute queries, keys and values of, in the order of the calls."""
    calls: list[int] = []
    operands = PackedLayer.attention_operands

    def counting(
        self: PackedLayer, normed: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        calls.append(len(normed))
        return operands(self, normed, rows)

    monkeypatch.setattr(PackedLayer, "attention_operands", counting)
    return calls


def loss_and_gradients(model: Any, *, is_bf16: bool = False) -> tuple[Tensor, dict[str, Tensor]]:
    model.zero_grad()
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
        loss = model(random_pack()).loss_sum
    loss.backward()
    return loss.detach(), {
        name: p.grad for name, p in model.named_parameters() if p.grad is not None
    }


@pytest.mark.parametrize("is_bf16", [False, True])
def test_looking_up_equals_computing_for_each_token(
    packed: Any, computed: list[int], is_bf16: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    loss, found = loss_and_gradients(packed, is_bf16=is_bf16)
    monkeypatch.setattr(PackedEsmcModel, "on_vocabulary", ())
    plain_loss, expected = loss_and_gradients(packed, is_bf16=is_bf16)
    tokens = len(random_pack().tokens)
    assert computed == [64, tokens, tokens, tokens]
    assert torch.allclose(loss, plain_loss, rtol=1e-3 if is_bf16 else 1e-6)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert (found[name] - gradient).norm() <= (2e-2 if is_bf16 else 1e-5) * gradient.norm(), (
            name
        )


@pytest.mark.parametrize("field", ["activation_checkpointing", "is_sharded"])
def test_recomputed_and_sharded_layers_look_up_the_same(
    packed: Any, computed: list[int], field: str
) -> None:
    loss, expected = loss_and_gradients(packed)
    computed.clear()
    setattr(packed, field, True)
    again, found = loss_and_gradients(packed)
    assert computed[0] == 64 and computed.count(64) == (2 if packed.activation_checkpointing else 1)
    assert torch.equal(loss, again)
    assert all(torch.equal(found[name], gradient) for name, gradient in expected.items())


@pytest.mark.parametrize(("dropout", "rows"), [(0.0, 64), (0.1, len(random_pack().tokens))])
def test_adapters_that_drop_inputs_are_not_looked_up(
    packed: Any, computed: list[int], dropout: float, rows: int
) -> None:
    """Two tokens of a kind have other inputs dropped."""
    config = peft.LoraConfig(target_modules=["q_proj"], lora_dropout=dropout)
    peft.inject_adapter_in_model(config, packed)
    packed(random_pack())
    assert computed[0] == rows
