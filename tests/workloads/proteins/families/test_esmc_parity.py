"""ESMC's packed forward and backward pass against transformers, one protein at a time."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from itertools import pairwise
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EsmcConfig, EsmcForMaskedLM

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import Pack
from seqlm.proteins.model.pretrained import with_weights
from seqlm.training.packing import HostPack

LENGTHS = (37, 5, 64, 21)
FEWER_LENGTHS = (21, 5, 13)
"""In bf16, whose products take a CPU ten times as long."""
SHAPES = {"300M width": (2, 960, 2560), "36 layers": (36, 128, 256), "80 layers": (80, 128, 256)}
"""Layers, hidden size and feed-forward size."""
BF16_SHARE = 1.6
"""Largest error in bf16, over that of transformers. It depends on the processor: 1.43 at most with AMX."""


def plain_model(layers: int, width: int, feed_forward: int) -> EsmcForMaskedLM:
    """Return a model in eval mode whose norms and biases are random, too, so that all parameters matter.

    Matrices keep the scale of their input, as 0.02 does at the width of 6B. With smaller ones the gradients
    of queries and keys cancel out, and transformers' own are 2e-5 away from those in fp64.
    """
    config = EsmcConfig(
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=feed_forward,
        initializer_range=width**-0.5,
    )
    torch.manual_seed(0)
    model = EsmcForMaskedLM(config).eval()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:
            nn.init.normal_(parameter, mean=0.0 if name.endswith("bias") else 1.0, std=0.1)
    return model


def packed_model(plain: EsmcForMaskedLM) -> Any:
    weights = {name: value.clone() for name, value in plain.state_dict().items()}
    return with_weights(plain.config, weights).eval()


def random_pack(lengths: Sequence[int] = LENGTHS) -> Pack:
    """Masked proteins of random residues, and padding."""
    generator = torch.Generator().manual_seed(0)
    bounds = [0]
    tokens = []
    for length in lengths:
        residues = torch.randint(4, 24, (length,), generator=generator)
        tokens += [0, *residues.tolist(), 2]
        bounds.append(len(tokens))
    tokens += [1] * 9
    bounds.append(len(tokens))
    segments = len(bounds) - 1
    host = HostPack(
        tokens=torch.tensor(tokens, dtype=torch.uint8).numpy(),
        cumulative=torch.tensor(bounds, dtype=torch.int32).numpy(),
        keys=torch.arange(1, segments + 1).numpy() * 7919,
        starts=torch.zeros(segments, dtype=torch.int64).numpy(),
    )
    return mask_pack(host, max(lengths) + 2, 0.15, torch.device("cpu"))


def proteins(pack: Pack) -> list[slice]:
    """Return the places of the proteins, without the padding behind them."""
    bounds = pack.segments.cumulative.tolist()
    return [slice(a, b) for a, b in pairwise(bounds)][:-1]


def loss_one_by_one(model: nn.Module, pack: Pack) -> Tensor:
    """Return the sum of the losses over the predicted residues, as transformers has them."""
    labels = torch.full_like(pack.tokens, -100)
    known = pack.targets != -100
    labels[pack.rows[known]] = pack.targets[known]
    losses = []
    for place in proteins(pack):
        logits = model(input_ids=pack.tokens[None, place]).logits[0]
        losses.append(
            F.cross_entropy(logits.float(), labels[place], ignore_index=-100, reduction="sum")
        )
    return torch.stack(losses).sum()


def logits_one_by_one(model: nn.Module, pack: Pack) -> Tensor:
    with torch.no_grad():
        return torch.cat(
            [model(input_ids=pack.tokens[None, place]).logits[0] for place in proteins(pack)]
        )


@pytest.fixture(
    params=[
        "300M width",
        *(pytest.param(shape, marks=pytest.mark.long) for shape in ("36 layers", "80 layers")),
    ]
)
def plain(request: pytest.FixtureRequest) -> EsmcForMaskedLM:
    return plain_model(*SHAPES[request.param])


def test_logits_in_fp32_equal_those_of_transformers(plain: EsmcForMaskedLM) -> None:
    pack = random_pack()
    packed = packed_model(plain)
    expected = logits_one_by_one(plain, pack)
    with torch.no_grad():
        found = packed.logits(pack)[: len(expected)]
    assert found.shape[1] == 64, "all columns of the vocabulary"
    assert (found - expected).abs().max() <= 1e-5 * expected.abs().max()


def test_gradients_in_fp32_equal_those_of_transformers(plain: EsmcForMaskedLM) -> None:
    pack = random_pack()
    packed = packed_model(plain)
    assert (pack.targets != -100).sum() > 10
    packed(pack).loss_sum.backward()
    loss_one_by_one(plain, pack).backward()
    found = dict(packed.named_parameters())
    assert found.keys() == dict(plain.named_parameters()).keys()
    for name, parameter in plain.named_parameters():
        assert parameter.grad is not None and found[name].grad is not None, name
        difference = (found[name].grad - parameter.grad).norm()
        assert difference <= 1e-5 * parameter.grad.norm(), name


def gradients(model: nn.Module) -> dict[str, Tensor]:
    return {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def error(found: Mapping[str, Tensor], exact: Mapping[str, Tensor]) -> float:
    """Return the norm of the difference over that of the exact numbers."""
    wrong = sum((found[name].float() - value).square().sum() for name, value in exact.items())
    return float((wrong / sum(value.square().sum() for value in exact.values())) ** 0.5)


@pytest.mark.long
@pytest.mark.parametrize("mode", ["weights", "autocast"])
def test_errors_in_bf16_are_those_of_transformers(plain: EsmcForMaskedLM, mode: str) -> None:
    """bf16 weights are used under autocast, as in inference, so norms and the residual stream are fp32."""
    pack = random_pack(FEWER_LENGTHS)
    reference = copy.deepcopy(plain)
    exact_logits = {"": logits_one_by_one(reference, pack)}
    loss_one_by_one(reference, pack).backward()
    packed = packed_model(plain)
    under_autocast = torch.autocast("cpu", dtype=torch.bfloat16)
    if mode == "weights":  # the rotary frequencies stay in fp32, as after from_pretrained
        for parameter in (*plain.parameters(), *packed.parameters()):
            parameter.data = parameter.data.bfloat16()
    with under_autocast if mode == "autocast" else nullcontext():
        theirs = {"": logits_one_by_one(plain, pack)}
        loss = loss_one_by_one(plain, pack)
    loss.backward()
    with under_autocast:
        with torch.no_grad():
            ours = {"": packed.logits(pack)[: len(theirs[""])]}
        loss = packed(pack).loss_sum
    loss.backward()
    assert 1e-3 < error(theirs, exact_logits) < 0.1
    assert error(ours, exact_logits) <= BF16_SHARE * error(theirs, exact_logits)
    exact = gradients(reference)
    assert error(gradients(packed), exact) <= BF16_SHARE * error(gradients(plain), exact)
