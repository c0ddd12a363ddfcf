"""Cause of a step that is not finite: the run, or the hardware of one process.

Each process repeats its packs of the step alone, with deterministic kernels and the same weights. Gradients
are not reduced, so each process sees its own.
"""

import math
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.fsdp import FSDPModule
from torch.nn.parallel import DistributedDataParallel

from seqlm.training.parallel import bare

CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
"""Environment variable without which torch refuses deterministic products on CUDA."""
CUBLAS_SIZES = ":4096:8"
"""Sizes of cuBLAS's workspace with which its products are deterministic (NVIDIA, cuBLAS, "Results
reproducibility")."""
MAX_PROBLEM_CHARS = 300
"""Length to which an error of a repetition is cut in a message."""


@dataclass(frozen=True)
class OwnFigures:
    """Figures of one process about a step that is not finite."""

    was_finite: bool
    """Whether its own loss and the gradient of its first layer were finite in the step."""
    is_finite: bool
    """Whether its own loss and gradient were finite in the repetition."""
    problem: str = ""
    """Error that ended the repetition; empty if it is complete."""


@dataclass(frozen=True)
class Verdict:
    """Cause of a step that is not finite."""

    is_hardware: bool
    suspects: tuple[int, ...] = ()
    """Processes whose hardware is the likely cause."""
    why: str = ""
    """Evidence, as a part of a sentence."""


def judge(figures: Sequence[OwnFigures]) -> Verdict:
    """Return the cause of a step that is not finite.

    Args:
        figures: figures of all processes, in their order.
    """
    number = len(figures)
    problems = [one.problem for one in figures if one.problem]
    if problems:
        return Verdict(False, why=f"it could not be repeated ({problems[0]})")
    bad = tuple(process for process, one in enumerate(figures) if not one.is_finite)
    if not bad:
        first = tuple(process for process, one in enumerate(figures) if not one.was_finite)
        is_evident = number == 1 or 0 < len(first) < number
        why = "a repetition of the same packs with the same weights is finite"
        return Verdict(True, first or (0,) if is_evident else (), why)
    if len(bad) == 1 and number > 1:
        why = f"repeated alone, the packs of 1 of {number} processes are not finite again"
        return Verdict(True, bad, why)
    return Verdict(False, why=f"repeated alone, it is not finite on {len(bad)} of {number}")


@contextmanager
def deterministic() -> Iterator[None]:
    """Compute with deterministic kernels of torch during the block, without compiled functions."""
    settings: Any = torch.utils.deterministic  # a module with a property
    before = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        settings.fill_uninitialized_memory,
    )
    os.environ.setdefault(CUBLAS_WORKSPACE, CUBLAS_SIZES)
    torch.use_deterministic_algorithms(True)
    settings.fill_uninitialized_memory = False  # it would fill new tensors with NaN
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
        settings.fill_uninitialized_memory = before[2]


class FirstGradient:
    """Gradient of the first layer of a process, before it is reduced over all processes.

    What is not finite in any layer's backward pass reaches the first layer, so its gradient is evidence of
    all of them, at the price of one small sum.

    With FSDP2 no hook sees a gradient before its reduction, so ``value`` stays None.

    Args:
        model: model of the run, inside DDP or FSDP2 if the run uses them.
    """

    def __init__(self, model: nn.Module) -> None:
        self._parameter: nn.Parameter | None = None
        self.value: Tensor | None = None
        """() sum of the gradient, once it is known."""
        self._is_reduced_in_pass = isinstance(model, DistributedDataParallel)
        if isinstance(model, FSDPModule):
            return
        trained = (one for one in bare(model).layers.parameters() if one.requires_grad)
        self._parameter = next(trained, None)
        if self._parameter is not None and self._is_reduced_in_pass:
            self._parameter.register_post_accumulate_grad_hook(self._keep)

    def read(self) -> None:
        """Keep the gradient after the last pass, unless the last pass reduces it."""
        if self._parameter is not None and not self._is_reduced_in_pass:
            self._keep(self._parameter)

    def _keep(self, parameter: Tensor) -> None:
        if parameter.grad is not None:
            self.value = parameter.grad.detach().sum()


@contextmanager
def alone(model: nn.Module) -> Iterator[Callable[[], bool]]:
    """Keep the gradients of the block's passes to this process; yield a function that checks them.

    FSDP2 has no room for whole gradients, so it reduces them as always. The gradients of the layers' outputs
    are checked instead, which are this process's own.
    """
    with ExitStack() as stack:
        if isinstance(model, FSDPModule):
            outputs = stack.enter_context(_watched_outputs(bare(model).layers))
            yield lambda: all(bool(one) for one in outputs)
            return
        if isinstance(model, DistributedDataParallel):
            stack.enter_context(model.no_sync())
        yield lambda: _norm_is_finite(model)


def _norm_is_finite(model: nn.Module) -> bool:
    gradients = [one.grad for one in model.parameters() if one.grad is not None]
    return bool(torch.nn.utils.get_total_norm(gradients).isfinite())


@contextmanager
def _watched_outputs(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Yield a list of flags, one for each pass of a layer: whether the gradient of its output is finite."""
    found: list[Tensor] = []

    def keep(gradient: Tensor) -> None:
        found.append(gradient.isfinite().all())

    def watch(layer: nn.Module, inputs: Any, outputs: Any) -> None:
        for one in outputs if isinstance(outputs, tuple) else (outputs,):
            if isinstance(one, Tensor) and one.requires_grad:
                one.register_hook(keep)

    handles = [layer.register_forward_hook(watch) for layer in layers]
    try:
        yield found
    finally:
        for handle in handles:
            handle.remove()


def are_finite(values: Sequence[float]) -> bool:
    """Return whether all numbers are finite."""
    return all(math.isfinite(value) for value in values)
