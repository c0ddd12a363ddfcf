"""Products with weights that are cast once per step, against torch's with autograd's gradients."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from transformers import PretrainedConfig

from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import MaskedLanguageModel, Pack
from seqlm.proteins.model.pretrained import of_config
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.training.kernels import PRODUCTS
from seqlm.training.packing import PackShape
from seqlm.training.records import RecordSplit
from seqlm.training.step.gradients import FlatGradients

BOTH_FAMILIES = True
NUM_PACKS = 3
USED = frozenset({PRODUCTS})

Gradients = dict[str, Tensor]


@pytest.fixture(scope="module")
def packs(prepared: Path) -> list[Pack]:
    split = RecordSplit(prepared, "train")
    stream = ProteinStream(split, PackShape.of(split, 256, 126), seed=3)
    planned = list(stream.epoch(0))[:NUM_PACKS]
    return [mask_pack(stream.load(one), 128, 0.15, torch.device("cpu")) for one in planned]


def model_of(config: PretrainedConfig) -> MaskedLanguageModel:
    """A model with the same random weights and biases at each call."""
    model = of_config(config).masked_lm.packed(copy.deepcopy(config))
    assert isinstance(model, MaskedLanguageModel)
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        with torch.no_grad():
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(noise * 0.2 + ("norm" in name.lower() and "weight" in name))
    return model


def with_products(model: MaskedLanguageModel, dtype: torch.dtype) -> FlatGradients:
    """Make a model use the kernel, and return its gradients."""
    model.select_kernels(USED, dtype)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    gradients = FlatGradients(
        [SGD(trained, lr=0.1)], world_size=1, adjacent=model.adjacent_parameters()
    )
    gradients.begin()
    model.weights_changed()
    return gradients


def passes(model: MaskedLanguageModel, packs: list[Pack], dtype: torch.dtype) -> list[float]:
    """Add the gradients of packs up, and return their losses."""
    losses: list[float] = []
    for pack in packs:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.bfloat16):
            loss = model(pack).loss_sum
        loss.backward()
        losses.append(loss.item())
    return losses


def gradients_of(model: nn.Module) -> Gradients:
    return {
        name: parameter.grad.clone()
        for name, parameter in model.named_parameters()
        if parameter.grad is not None and parameter.requires_grad
    }


def worst(found: Gradients, expected: Gradients) -> float:
    """Return the largest norm of a difference, as a share of the norm of all gradients of that kind."""
    assert found.keys() == expected.keys()
    differences = [
        ((found[name] - wanted.float()).norm() / wanted.float().norm().clamp(min=1e-3)).item()
        for name, wanted in expected.items()
    ]
    return max(differences)


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_in_fp32_are_those_of_autograd(
    tiny_config: PretrainedConfig, packs: list[Pack], recomputing: bool
) -> None:
    plain, ours = model_of(tiny_config), model_of(tiny_config)
    plain.activation_checkpointing = ours.activation_checkpointing = recomputing
    losses = passes(plain, packs, torch.float32)
    with_products(ours, torch.float32)
    assert passes(ours, packs, torch.float32) == pytest.approx(losses, rel=1e-6)
    assert worst(gradients_of(ours), gradients_of(plain)) < 1e-5


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_in_bf16_are_no_worse_than_those_of_autograd(
    tiny_config: PretrainedConfig, packs: list[Pack], recomputing: bool
) -> None:
    """Autograd rounds the gradients of weights to bf16 in each pass. The reference is fp64."""
    exact, plain, ours = (model_of(tiny_config) for _ in range(3))
    plain.activation_checkpointing = ours.activation_checkpointing = recomputing
    losses = passes(plain, packs, torch.bfloat16)
    with_products(ours, torch.bfloat16)
    # The results are the same: the operands of all products are.
    assert passes(ours, packs, torch.bfloat16) == losses
    passes(exact, packs, torch.float32)
    expected = gradients_of(exact)
    off_ours = total(gradients_of(ours), expected)
    off_plain = total(gradients_of(plain), expected)
    assert 0 < off_ours <= off_plain * 1.01


def total(found: Gradients, expected: Gradients) -> float:
    """Return the norm of the difference of all gradients."""
    together = [(found[name] - wanted).norm().square() for name, wanted in expected.items()]
    return torch.stack(together).sum().sqrt().item()
