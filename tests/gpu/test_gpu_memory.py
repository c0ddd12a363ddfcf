"""Peaks of memory on CUDA against those that ``make plan`` computes."""

from __future__ import annotations

import pytest
import torch

from seqlm.proteins.families.esm2.model import PackedEsm, published_config
from seqlm.training.config import KernelMode
from seqlm.training.optimizer import build_optimizers
from seqlm.training.step.gradients import Gradients
from tests.gpu.conftest import Within
from tests.tools.plan.planned_steps import cast_weights, layout_of, loss_of, masked_pack, run_config
from tools.plan.memory import memory

AS_PLANNED = 0.15
"""The allocator rounds up, cuBLAS keeps a workspace, and the model counts the tensors of a layer alone."""


@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize("size", ["35M", "150M"])
@pytest.mark.parametrize("kernels", ["off", "auto"])
def test_peaks_are_as_planned(
    kernels: KernelMode, size: str, checkpointing: bool, device: torch.device, within: Within
) -> None:
    """``auto`` stands for weights that are cast once per step, the only kernel that takes memory."""
    if device.type != "cuda":
        pytest.skip("a rehearsal has no CUDA allocator whose peak could be compared")
    esm = published_config(size)
    tokens = 16384
    model = PackedEsm(esm).to(device)
    model.activation_checkpointing = checkpointing
    config = run_config(tokens, checkpointing=checkpointing, kernels=kernels)
    optimizers = build_optimizers(model, config.optim)
    already = torch.cuda.memory_allocated(device) - sum(p.nbytes for p in model.parameters())
    gradients = cast_weights(model, optimizers) if kernels != "off" else Gradients(optimizers)
    for _ in range(2):
        for _ in range(2):  # a step of two micro-batches: gradients are there in the second
            torch.cuda.reset_peak_memory_stats(device)
            loss_of(model, masked_pack(tokens, device), 2).backward()
        peak = torch.cuda.max_memory_allocated(device) - already
        for optimizer in optimizers:
            optimizer.step()
        gradients.end()
    planned = memory(layout_of(config, esm, 2, "flash")).total
    within("relative error", abs(peak / planned - 1), AS_PLANNED)
