"""Products with weights that are cast once per step, against torch's with autograd's gradients."""

from __future__ import annotations

import copy
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.optim import SGD
from transformers import PretrainedConfig

from seqlm.proteins.model.kernels.products import CastMap, CastWeights, product
from seqlm.proteins.model.masking import mask_pack
from seqlm.proteins.model.packed_model import MaskedLanguageModel, Pack
from seqlm.proteins.model.pretrained import of_config
from seqlm.proteins.model.protein_packs import ProteinStream
from seqlm.proteins.pretraining.objective import Pretraining
from seqlm.runs.run_file import load_config
from seqlm.training.adapters.adapters import add_adapters
from seqlm.training.checkpoint import Checkpointer
from seqlm.training.config import LoraConfig
from seqlm.training.kernels import PRODUCTS
from seqlm.training.packing import PackShape
from seqlm.training.processes import processes
from seqlm.training.records import RecordSplit
from seqlm.training.step.gradients import FlatGradients
from seqlm.training.tracking.progress import Progress
from seqlm.training.trainer import Trainer

BOTH_FAMILIES = True
NUM_PACKS = 3
NUM_STEPS = 3
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
    """Return the largest norm of a difference, as a share of the norm of the gradient."""
    assert found.keys() == expected.keys()
    differences = [
        (found[name] - wanted).norm() / wanted.norm().clamp(min=1e-3)
        for name, wanted in expected.items()
    ]
    return torch.stack(differences).max().item()


def total(found: Gradients, expected: Gradients) -> float:
    """Return the norm of the difference of all gradients."""
    together = [(found[name] - wanted).norm().square() for name, wanted in expected.items()]
    return torch.stack(together).sum().sqrt().item()


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_in_fp32_are_those_of_autograd(
    tiny_config: PretrainedConfig, packs: list[Pack], recomputing: bool
) -> None:
    plain = model_of(tiny_config)
    ours = model_of(tiny_config)
    plain.activation_checkpointing = ours.activation_checkpointing = recomputing
    losses = passes(plain, packs, torch.float32)
    with_products(ours, torch.float32)
    assert passes(ours, packs, torch.float32) == pytest.approx(losses, rel=1e-6)
    assert worst(gradients_of(ours), gradients_of(plain)) < 1e-5


@pytest.mark.parametrize("recomputing", [False, True])
def test_gradients_in_bf16_are_no_worse_than_those_of_autograd(
    tiny_config: PretrainedConfig, packs: list[Pack], recomputing: bool
) -> None:
    """Autograd rounds the gradients of weights to bf16 in each pass. The reference is the model in fp32."""
    exact, plain, ours = (model_of(tiny_config) for _ in range(3))
    plain.activation_checkpointing = ours.activation_checkpointing = recomputing
    losses = passes(plain, packs, torch.bfloat16)
    with_products(ours, torch.bfloat16)
    assert passes(ours, packs, torch.bfloat16) == losses, (
        "the operands of all products are the same"
    )
    passes(exact, packs, torch.float32)
    expected = gradients_of(exact)
    off_ours = total(gradients_of(ours), expected)
    assert 0 < off_ours <= total(gradients_of(plain), expected) * 1.01


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("has_bias", [False, True])
def test_a_product_against_fp64(dtype: torch.dtype, has_bias: bool) -> None:
    """Gradients of several passes are added up in fp32; each of them is as exact as the products of fp32."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(48, 32, generator=generator)
    bias = torch.randn(48, generator=generator)
    cast = CastMap(
        weight.to(dtype),
        bias.to(dtype) if has_bias else None,
        torch.zeros(48, 32),
        torch.zeros(48) if has_bias else None,
    )
    of_weight = torch.zeros(48, 32, dtype=torch.float64)
    of_bias = torch.zeros(48, dtype=torch.float64)
    for _ in range(4):
        x = torch.randn(100, 32, generator=generator).to(dtype).requires_grad_()
        upstream = torch.randn(100, 48, generator=generator).to(dtype)
        product(x, cast).backward(upstream)
        of_weight += upstream.double().t() @ x.detach().double()
        of_bias += upstream.double().sum(0)
        assert x.grad is not None
        torch.testing.assert_close(x.grad, upstream @ cast.weight)
    assert cast.weight_gradient is not None
    assert ((cast.weight_gradient - of_weight).norm() / of_weight.norm()).item() < 1e-6
    if cast.bias_gradient is not None:
        assert ((cast.bias_gradient - of_bias).norm() / of_bias.norm()).item() < 1e-6


def test_a_weight_without_a_place_for_its_gradient_is_an_error() -> None:
    cast = CastMap(torch.ones(2, 3), None)
    x = torch.ones(4, 3, requires_grad=True)
    with pytest.raises(ValueError, match="no place for their gradient"):
        product(x, cast)
    with torch.no_grad():
        assert product(x, cast).tolist() == [[3, 3]] * 4
    with pytest.raises(ValueError, match="the input has no gradient"):
        product(torch.ones(4, 3), CastMap(torch.ones(2, 3), None, torch.zeros(2, 3)))


def test_gradients_that_do_not_lie_side_by_side_are_an_error() -> None:
    maps = [nn.Linear(4, 4, bias=False) for _ in range(2)]
    weights = CastWeights([maps], torch.float32)
    weights.refresh()  # without gradients, for an evaluation
    for one in maps:
        one.weight.grad = torch.zeros(4, 4)
    with pytest.raises(ValueError, match="do not lie side by side"):
        weights.refresh()


def test_only_plain_trained_layers_offer_the_kernel(tiny_config: PretrainedConfig) -> None:
    model = model_of(tiny_config)
    assert PRODUCTS in model.kernels
    model.is_sharded = True
    assert PRODUCTS not in model.kernels, "FSDP gathers weights of its own"
    model.is_sharded = False
    model.layers[1].requires_grad_(False)
    assert PRODUCTS not in model.kernels, "frozen weights have no gradient"
    model.layers[1].requires_grad_(True)
    add_adapters(model, LoraConfig(), of_config(tiny_config).adapted)
    assert PRODUCTS not in model.kernels, "adapters have a forward pass of their own"


def test_checkpoints_have_no_copies(tiny_config: PretrainedConfig) -> None:
    model = model_of(tiny_config)
    names = set(model.state_dict())
    with_products(model, torch.bfloat16)
    assert set(model.state_dict()) == names


def losses_of(run_file: Path, optimizer: str, kernels: frozenset[str]) -> list[float]:
    """Train a few steps in fp32, with an evaluation before and in between, and return all losses."""
    config = load_config(run_file, [f"optim.name={optimizer}"])
    with processes() as here:
        trainer = Trainer(Pretraining(config), here, kernels)
        assert trainer.kernels == kernels
        found = [trainer.evaluate(trainer.objective.split, 2).values["eval_loss"]]
        for step in islice(trainer.steps(), NUM_STEPS):
            trainer.step(step)
            found.append(trainer.evaluate(trainer.objective.split, 2).values["eval_loss"])
            result = trainer.settle()
            assert result is not None
            found.append(result.loss)
    return found


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
def test_a_run_with_the_kernel_has_the_same_losses(run_file: Path, optimizer: str) -> None:
    expected = losses_of(run_file, optimizer, frozenset())
    assert len(set(expected)) == len(expected), "every step changes the weights"
    assert losses_of(run_file, optimizer, USED) == pytest.approx(expected, rel=1e-4)


def test_the_trainer_casts_the_weights_of_each_step(
    run_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With the copies of the first step, a run would have other losses."""
    refresh = CastWeights.refresh
    cast: list[CastWeights] = []

    def once(weights: CastWeights) -> list[CastMap]:
        copies = [copy.clone() for copy in weights._copies]
        maps = refresh(weights)
        if weights in cast:
            torch._foreach_copy_(weights._copies, copies)
        cast.append(weights)
        return maps

    expected = losses_of(run_file, "adamw", frozenset())
    monkeypatch.setattr(CastWeights, "refresh", once)
    assert losses_of(run_file, "adamw", USED) != pytest.approx(expected, rel=1e-4)


def test_a_run_is_resumed_with_other_kernels(run_file: Path, tmp_path: Path) -> None:
    """Checkpoints are the same, so a run may be continued with the kernel or without it."""
    config = load_config(run_file)
    final: dict[str, dict[str, Tensor]] = {}
    with processes() as here:
        for name, first, second in (
            ("plain", frozenset(), frozenset()),
            ("mixed", USED, frozenset()),
        ):
            trainer = Trainer(Pretraining(config), here, first)
            identity = trainer.objective.identity(here)
            for step in islice(trainer.steps(), NUM_STEPS):
                trainer.step(step)
            trainer.settle()
            extra = {
                "progress": asdict(trainer.progress),
                "config": {},
                "model_config": {},
                "environment": trainer.environment(),
            }
            with Checkpointer(tmp_path / name, here, identity, 1) as checkpointer:
                checkpointer.save(NUM_STEPS, trainer.model, trainer.optimizers, extra)
                checkpointer.finish()
                for number, kernels in enumerate((second, USED)):
                    resumed = Trainer(Pretraining(config), here, kernels)
                    saved = checkpointer.restore(resumed.model, resumed.optimizers)
                    assert saved is not None
                    resumed.progress = Progress(**saved["progress"])
                    for step in islice(resumed.steps(), NUM_STEPS):
                        resumed.step(step)
                    resumed.settle()
                    final[f"{name}-{number}"] = {
                        key: value.detach().clone()
                        for key, value in resumed.model.named_parameters()
                    }
    expected = final.pop("plain-0")
    for weights in final.values():
        assert worst(weights, expected) < 1e-3
