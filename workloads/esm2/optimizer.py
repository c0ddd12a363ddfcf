"""Optimizers and the learning rate as a function of the step."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Muon, Optimizer

from .config import OptimConfig

_IN_LAYERS = re.compile(r"\.layers?\.\d+\.")
"""In names of parameters, as transformers calls layers."""


def build_optimizers(model: nn.Module, config: OptimConfig) -> list[Optimizer]:
    """AdamW for everything, or Muon for the matrices of the layers and AdamW for the rest.

    Weight decay applies to matrices alone. Muon (Jordan et al. 2024) is scaled to AdamW's update size
    (Liu et al. 2025, "Muon is scalable for LLM training"), so one learning rate and decay serve both.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for _, p in named if p.ndim == 2]
    vectors = [p for _, p in named if p.ndim != 2]
    optimizers: list[Optimizer] = []
    if config.name == "muon":
        inner = [p for name, p in named if p.ndim == 2 and _IN_LAYERS.search(name)]
        matrices = [p for name, p in named if p.ndim == 2 and not _IN_LAYERS.search(name)]
        optimizers.append(
            Muon(inner, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw")
        )
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    optimizers.append(AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, **_kernel(named[0][1])))
    return optimizers


def _kernel(parameter: Tensor) -> dict[str, bool]:
    """How AdamW is computed on a parameter's device.

    torch's fused kernel knows no XLA device. There the number of steps lies on the device (``capturable``),
    so that no graph has a number that follows from it. Of a 1, which bias corrections come to late in a run,
    torch_xla makes a constant, and so a new graph.
    """
    return {"capturable": True} if parameter.device.type == "xla" else {"fused": True}


def learning_rate(step: int, max_steps: int, config: OptimConfig) -> float:
    """Learning rate of step 1, 2, ..., ``max_steps``: linear warm-up, then decay to the final fraction."""
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    progress = min(1.0, (step - config.warmup_steps) / (max_steps - config.warmup_steps))
    if config.schedule == "constant":
        return config.lr
    falling = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.lr * (config.final_lr_fraction + (1 - config.final_lr_fraction) * falling)


def set_learning_rate(optimizers: Iterable[Optimizer], value: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            if isinstance(group["lr"], torch.Tensor):
                group["lr"].fill_(value)
            else:
                group["lr"] = value
