"""Packed models with the attention kernels, run in the interpreter's process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch._dynamo.utils import counters

from seqlm.proteins.model.kernels import attention_launch, gelu_kernels
from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.proteins.model.pretrained import of_config
from seqlm.training.kernels import ATTENTION
from seqlm.training.layered_model import Segments
from tests.workloads.proteins.tiny_models import tiny_config

HEAD_SIZE = 16
HEADS = 2
LENGTHS = (20, 0, 9, 6, 0)
"""Lengths of segments, the last but one of padding."""
ATTENTION_KERNEL = frozenset({ATTENTION})
NONE: frozenset[str] = frozenset()


def config_of(family: str, layers: int = 2) -> Any:
    """Return the configuration of a tiny model with heads of 16."""
    config: Any = tiny_config(layers, HEADS * HEAD_SIZE, family)
    config.num_attention_heads = HEADS
    if hasattr(config, "head_dim"):
        config.num_key_value_heads = HEADS
        config.head_dim = HEAD_SIZE
    return config


def model_of(family: str, layers: int = 2) -> Any:
    """Return a random masked language model with heads of 16."""
    config = config_of(family, layers)
    torch.manual_seed(0)
    model = of_config(config).masked_lm.packed(config)
    with torch.no_grad():
        for parameter in model.parameters():
            # Biases and norms are not left at 0 and 1, where an error would not show.
            parameter += 0.1 * torch.randn_like(parameter)
    return model


def pack_of(seed: int) -> Pack:
    """Return a pack with every fourth token predicted."""
    generator = torch.Generator().manual_seed(seed)
    cumulative = torch.tensor((0, *LENGTHS)).cumsum(0).int()
    num_tokens = sum(LENGTHS)
    rows = torch.arange(0, num_tokens, 4)
    return Pack(
        tokens=torch.randint(4, 24, (num_tokens,), generator=generator),
        token_scale=torch.ones(num_tokens),
        positions=torch.cat([torch.arange(length) for length in LENGTHS]),
        segments=Segments(cumulative, max(LENGTHS)),
        rows=rows,
        targets=torch.randint(4, 24, (len(rows),), generator=generator),
    )


def gradients(model: Any, kernels: frozenset[str], *, is_bf16: bool) -> dict[str, Tensor]:
    """Return the loss and all gradients of a pack."""
    model.zero_grad()
    model.select_kernels(kernels)
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=is_bf16):
        loss = model(pack_of(0)).loss_sum
    loss.backward()
    found = {name: one.grad for name, one in model.named_parameters() if one.grad is not None}
    return {"loss": loss.detach(), **found}


def differences(family: str, *, recomputes: bool = False) -> dict[str, float]:
    """Return the relative differences of the loss and of each gradient in fp32, with and without kernels."""
    model = model_of(family)
    model.activation_checkpointing = recomputes
    expected = gradients(model, NONE, is_bf16=False)
    found = gradients(model, ATTENTION_KERNEL, is_bf16=False)
    assert found.keys() == expected.keys()
    return {name: _relative(found[name], expected[name]) for name in expected}


def errors_in_bf16(family: str) -> tuple[float, float]:
    """Return the errors of all gradients together in bf16, with the kernels and without."""
    model = model_of(family)
    exact = _flat(gradients(model, NONE, is_bf16=False))
    with_kernels = _flat(gradients(model, ATTENTION_KERNEL, is_bf16=True))
    without = _flat(gradients(model, NONE, is_bf16=True))
    return _relative(with_kernels, exact), _relative(without, exact)


def launches(family: str) -> dict[str, int]:
    """Return how often a forward and backward pass of two layers launches each function."""
    names = ("rotate_in_place", "rotate_and_join", "forward", "backward")
    with mock.patch.multiple(
        attention_launch,
        **{name: mock.Mock(wraps=getattr(attention_launch, name)) for name in names},
    ):
        gradients(model_of(family), ATTENTION_KERNEL, is_bf16=False)
        return {name: getattr(attention_launch, name).call_count for name in names}


def launches_by_device(kernels: frozenset[str]) -> dict[str, list[str]]:
    """Return the device that is selected at each launch of a pass, by function. None is ``none``."""
    selected = ["none"]
    found: dict[str, list[str]] = {}

    @contextmanager
    def device_of(x: Tensor) -> Iterator[None]:
        selected.append(str(x.device))
        yield
        selected.pop()

    def noted(name: str, launch: Callable[..., Any]) -> Callable[..., Any]:
        def launched(*arguments: Any, **keywords: Any) -> Any:
            found.setdefault(name, []).append(selected[-1])
            return launch(*arguments, **keywords)

        return launched

    names = {
        attention_launch: ("rotate_in_place", "rotate_and_join", "forward", "backward"),
        gelu_kernels: ("forward", "backward"),
    }
    with ExitStack() as patches:
        patches.enter_context(mock.patch.object(torch.cuda, "device_of", device_of))
        for module, functions in names.items():
            for name in functions:
                full = f"{module.__name__.split('.')[-1]}.{name}"
                launch = noted(full, getattr(module, name))
                patches.enter_context(mock.patch.object(module, name, launch))
        for family in ("esm2", "esmc"):
            model = model_of(family)
            gradients(model, kernels & model.kernels, is_bf16=False)
    return found


def compiled(family: str) -> tuple[int, float]:
    """Compile three layers without breaks, and return the number of graphs and the loss's difference."""
    model = model_of(family, layers=3)
    expected = _flat(gradients(model, ATTENTION_KERNEL, is_bf16=True))
    torch._dynamo.reset()
    counters.clear()
    for layer in model.layers:
        layer.compile(dynamic=False, backend="aot_eager", fullgraph=True)
    found = _flat(gradients(model, ATTENTION_KERNEL, is_bf16=True))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        model(pack_of(1)).loss_sum.backward()
    return int(counters["stats"]["unique_graphs"]), _relative(found, expected)


def problems(
    family: str, fault: str | None = None, *, forward_only: bool = False
) -> dict[str, str]:
    """Return the problems that the check at the start of a run finds.

    Args:
        family: family of the model.
        fault: function of ``attention_launch`` that returns results which are 5 % too large; ``raises`` for
            one that raises. None leaves all of them right.
        forward_only: check without gradients, as for inference.
    """
    model: PackedModel = model_of(family)
    with _faulty(fault), torch.set_grad_enabled(not forward_only):
        return model.kernel_problems(ATTENTION_KERNEL, pack_of(0))


def generator_is_untouched(family: str) -> bool:
    """Return whether the check leaves torch's generator as it was."""
    model: PackedModel = model_of(family)
    before = torch.get_rng_state()
    model.kernel_problems(ATTENTION_KERNEL, pack_of(0))
    return torch.equal(torch.get_rng_state(), before)


def _faulty(fault: str | None) -> AbstractContextManager[Any]:
    """Return the context in which kernels are faulty, as ``problems`` says."""
    if fault is None:
        return nullcontext()
    if fault == "raises":
        raises = mock.Mock(side_effect=RuntimeError("no kernel image\nfor this device"))
        return mock.patch.object(attention_launch, "forward", raises)
    right = getattr(attention_launch, fault)

    def wrong(*arguments: Any, **keywords: Any) -> tuple[Tensor, Tensor]:
        first, second = right(*arguments, **keywords)
        return first * 1.05, second

    return mock.patch.object(attention_launch, fault, wrong)


def _flat(tensors: dict[str, Tensor]) -> Tensor:
    return torch.cat([one.flatten().float() for one in tensors.values()])


def _relative(found: Tensor, expected: Tensor) -> float:
    return float((found - expected).norm() / expected.norm().clamp(min=1e-6))
