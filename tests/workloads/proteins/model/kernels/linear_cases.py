"""Packed models with any kernels of a layer, run in the interpreter's process."""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.utils import counters
from torch.optim import SGD

from seqlm.proteins.model.kernels import gelu_kernels, products
from seqlm.training.step.gradients import FlatGradients
from tests.workloads.proteins.model.kernels.model_cases import model_of, pack_of

NUM_PACKS = 2


def gradients(model: Any, kernels: frozenset[str], *, is_bf16: bool) -> dict[str, Tensor]:
    """Return the loss and all gradients, added up over packs whose gradients keep their places."""
    model.select_kernels(kernels, torch.bfloat16 if is_bf16 else torch.float32)
    trained = [one for one in model.parameters() if one.requires_grad]
    places = FlatGradients([SGD(trained, lr=0.1)], 1, model.adjacent_parameters())
    places.begin()
    model.weights_changed()
    loss = torch.zeros(())
    for seed in range(NUM_PACKS):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
            of_pack = model(pack_of(seed)).loss_sum
        of_pack.backward()
        loss += of_pack.detach()
    found = {name: one.grad.clone() for name, one in model.named_parameters() if one.requires_grad}
    return {"loss": loss, **found}


def differences(family: str, kernels: frozenset[str], *, recomputes: bool) -> dict[str, float]:
    """Return the relative differences of the loss and of each gradient in fp32, with and without kernels."""
    model = model_of(family)
    model.activation_checkpointing = recomputes
    expected = gradients(model, frozenset(), is_bf16=False)
    found = gradients(model, kernels, is_bf16=False)
    return {name: relative(found[name], expected[name]) for name in expected}


def errors_in_bf16(family: str, kernels: frozenset[str]) -> tuple[float, float]:
    """Return the errors of all gradients together in bf16, with the kernels and without."""
    model = model_of(family)
    exact = flat(gradients(model, frozenset(), is_bf16=False))
    with_kernels = flat(gradients(model, kernels, is_bf16=True))
    without = flat(gradients(model, frozenset(), is_bf16=True))
    return relative(with_kernels, exact), relative(without, exact)


def compiled(
    family: str, kernels: frozenset[str], backend: str = "aot_eager"
) -> tuple[int, int, float]:
    """Compile three layers without breaks.

    Returns:
        The numbers of graphs after the first step and after others with new weights and an evaluation, and
        the relative difference of the gradients from those of layers that are not compiled.
    """
    model = model_of(family, layers=3)
    expected = flat(gradients(model, kernels, is_bf16=True))
    torch._dynamo.reset()
    counters.clear()
    for layer in model.layers:
        layer.compile(dynamic=False, backend=backend, fullgraph=True)
    found = flat(gradients(model, kernels, is_bf16=True))
    after_one = int(counters["stats"]["unique_graphs"])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter *= 1.01
    gradients(model, kernels, is_bf16=True)
    return after_one, int(counters["stats"]["unique_graphs"]), relative(found, expected)


def problems(family: str, kernels: frozenset[str], fault: str | None) -> dict[str, str]:
    """Return the problems that the check at the start of a run finds.

    Args:
        family: family of the model.
        kernels: kernels to check.
        fault: ``weights`` for gradients of weights that are 5 % too large, ``gelu`` for such results of the
            GELU, ``raises`` for a GELU that raises. None leaves all of them right.
    """
    model: Any = model_of(family)
    right_product = products.weight_gradient
    right_gelu = gelu_kernels.forward

    def wrong_product(grad: Tensor, x: Tensor, into: Tensor) -> None:
        right_product(grad * 1.05, x, into)

    def wrong_gelu(x: Tensor) -> Tensor:
        return right_gelu(x) * 1.05

    patches = {
        "weights": mock.patch.object(products, "weight_gradient", wrong_product),
        "gelu": mock.patch.object(gelu_kernels, "forward", wrong_gelu),
        "raises": mock.patch.object(
            gelu_kernels, "forward", mock.Mock(side_effect=RuntimeError("no kernel image"))
        ),
    }
    state = torch.get_rng_state()
    if fault is None:
        found = model.kernel_problems(kernels, pack_of(0))
    else:
        with patches[fault]:
            found = model.kernel_problems(kernels, pack_of(0))
    assert torch.equal(torch.get_rng_state(), state), "the run's generator is untouched"
    return dict(found)


def flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([one.flatten().float() for one in tensors.values()])


def relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-6))
