"""Optimizers and the learning rate as a function of the step."""

import math
import re
from collections import defaultdict
from typing import Any

import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor, Placement, Shard
from torch.optim import AdamW, Muon, Optimizer

from .config import OptimConfig
from .device_runtime import runtime_of

_IN_LAYERS = re.compile(r"\.layers?\.\d+\.")
"""Part of the names of parameters in layers, as transformers names layers."""
STACK_BYTES = 128 << 20
"""Size in bf16 of the matrices that a process orthogonalizes at a time. Ten of the 650M model's largest
(5120 x 1280) keep a GPU busy. With momenta and updates in fp32, an update needs about nine times this
memory."""
_BF16_BYTES = 2
_ADAMW_UPDATE_RMS = 0.2
"""Root mean square of AdamW's updates, to which Muon's are scaled (Liu et al. 2025, equation 4)."""


def build_optimizers(
    model: nn.Module, config: OptimConfig, dtype: torch.dtype = torch.bfloat16
) -> list[Optimizer]:
    """Return AdamW for all parameters, or Muon for the matrices of the layers and AdamW for the rest.

    Weight decay applies to matrices alone. Muon (Jordan et al. 2024) is scaled to AdamW's update size
    (Liu et al. 2025, "Muon is scalable for LLM training"), so one learning rate and decay serve both.

    Args:
        model: model on its device.
        config: settings of the optimizer.
        dtype: type of the run's products, in which Muon orthogonalizes, too. A processor without instructions
            for bf16 is 25 times slower in it.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    matrices = [p for _, p in named if p.ndim == 2]
    vectors = [p for _, p in named if p.ndim != 2]
    optimizers: list[Optimizer] = []
    if config.name == "muon":
        inner = [p for name, p in named if p.ndim == 2 and _IN_LAYERS.search(name)]
        matrices = [p for name, p in named if p.ndim == 2 and not _IN_LAYERS.search(name)]
        muon = BatchedMuon(
            inner, lr=config.lr, weight_decay=config.weight_decay, adjust_lr_fn="match_rms_adamw"
        )
        muon.dtype = dtype
        optimizers.append(muon)
    groups = [
        {"params": matrices, "weight_decay": config.weight_decay},
        {"params": vectors, "weight_decay": 0.0},
    ]
    options = runtime_of(named[0][1].device).adamw
    optimizers.append(AdamW(groups, lr=config.lr, betas=config.betas, eps=config.eps, **options))
    return optimizers


def create_state(optimizer: Optimizer) -> None:
    """Create the state of AdamW or Muon with arbitrary values, for a saved state that is read into it.

    Names, shapes and types are those that the first step creates. torch would create the state by a step with
    gradients of 0, which takes the memory of all gradients, and longer than the saved state is read. Other
    optimizers, and existing states, stay as they are.
    """
    if optimizer.state:
        return
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            if not parameter.requires_grad:
                continue
            value = parameter.detach()
            if isinstance(optimizer, AdamW) and not group["amsgrad"]:
                on_device = group["fused"] or group["capturable"]
                optimizer.state[parameter] = {
                    "step": torch.zeros((), device=value.device if on_device else "cpu"),
                    "exp_avg": torch.empty_like(value),
                    "exp_avg_sq": torch.empty_like(value),
                }
            elif isinstance(optimizer, Muon):
                optimizer.state[parameter] = {"momentum_buffer": torch.empty_like(value)}


class BatchedMuon(Muon):
    """torch's Muon with matrices of equal shapes orthogonalized as one batch.

    State, settings and arithmetic are those of ``torch.optim.Muon`` with Nesterov momentum and the update
    size ``match_rms_adamw``. With FSDP2 each process of a shard group orthogonalizes whole matrices, an equal
    share of each stack, instead of all of them.
    """

    dtype = torch.bfloat16
    """Type of the orthogonalization. torch's Muon always uses bf16."""
    found_inf: Tensor | None = None
    """() fp32 on the parameters' device. If it is 1, a step changes nothing, as with fused AdamW."""

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            parameters: list[Tensor] = []
            gradients: list[Tensor] = []
            momenta: list[Tensor] = []
            self._init_group(group, parameters, gradients, momenta)
            alike: dict[torch.Size, list[int]] = defaultdict(list)
            for index, parameter in enumerate(parameters):
                alike[parameter.shape].append(index)
            for shape, indices in alike.items():
                size = _stack_size(parameters[indices[0]])
                for first in range(0, len(indices), size):
                    stack = indices[first : first + size]
                    self._update(
                        group,
                        shape,
                        [parameters[index] for index in stack],
                        [gradients[index] for index in stack],
                        [momenta[index] for index in stack],
                    )

    def _update(
        self,
        group: dict[str, Any],
        shape: torch.Size,
        parameters: list[Tensor],
        gradients: list[Tensor],
        momenta: list[Tensor],
    ) -> None:
        """Update matrices of one shape.

        Args:
            group: settings of the parameters.
            shape: shape of the whole, unsharded matrices.
            parameters: matrices to update in place.
            gradients: gradients of the matrices.
            momenta: momenta of the matrices, updated in place.
        """
        local = [_local(gradient) for gradient in gradients]
        new_momenta = torch._foreach_lerp(
            [_local(x) for x in momenta], local, 1 - group["momentum"]
        )
        updates = torch._foreach_lerp(local, new_momenta, group["momentum"])
        stack = _orthogonalized(
            torch.stack([x.to(self.dtype) for x in updates]), parameters[0], group
        )
        scale = group["lr"] * _ADAMW_UPDATE_RMS * math.sqrt(max(shape))
        kept = 1 - group["lr"] * group["weight_decay"]
        for parameter, momentum, new_momentum, update in zip(
            parameters, momenta, new_momenta, stack, strict=True
        ):
            self._assign(_local(parameter), (_local(parameter) * kept).add_(update, alpha=-scale))
            self._assign(_local(momentum), new_momentum)

    def _assign(self, old: Tensor, new: Tensor) -> None:
        old.copy_(new if self.found_inf is None else torch.where(self.found_inf == 1, old, new))


def _local(x: Tensor) -> Tensor:
    """Return this process's share of a tensor."""
    return x.to_local() if isinstance(x, DTensor) else x


def _stack_size(parameter: Tensor) -> int:
    """Return the number of matrices of which each process orthogonalizes at most ``STACK_BYTES``."""
    sharing = 1
    if isinstance(parameter, DTensor):
        sizes = zip(parameter.device_mesh.shape, parameter.placements, strict=True)
        sharing = math.prod(size for size, placement in sizes if placement.is_shard())
    return max(1, STACK_BYTES // (_BF16_BYTES * parameter.numel())) * sharing


def _orthogonalized(stack: Tensor, parameter: Tensor, group: dict[str, Any]) -> Tensor:
    """Orthogonalize matrices.

    Args:
        stack: (N, rows, columns) matrices; with FSDP2 this process's rows of each.
        parameter: one of the parameters that the matrices will be added to.
        group: settings of the iteration.

    Returns:
        A stack of the same shape.
    """
    settings = group["ns_coefficients"], group["ns_steps"], group["eps"]
    if not isinstance(parameter, DTensor):
        return newton_schulz(stack, *settings)
    mesh = parameter.device_mesh
    by_matrix = list(parameter.placements)  # FSDP2 shards dimension 0
    by_row: list[Placement] = [
        Shard(1) if placement.is_shard() else placement for placement in by_matrix
    ]
    rows, columns = parameter.shape
    size = torch.Size((len(stack), rows, columns))
    stride = (rows * columns, columns, 1)

    def moved(share: Tensor, before: list[Placement], after: list[Placement]) -> Tensor:
        whole = DTensor.from_local(share, mesh, before, run_check=False, shape=size, stride=stride)
        return whole.redistribute(mesh, after).to_local()

    whole_matrices = moved(stack, by_row, by_matrix)
    orthogonal = newton_schulz(whole_matrices, *settings).contiguous()
    return moved(orthogonal, by_matrix, by_row)


def newton_schulz(
    stack: Tensor, coefficients: tuple[float, float, float], num_steps: int, eps: float
) -> Tensor:
    """Return matrices (N, rows, columns) with singular values of about 1, as ``torch.optim.Muon`` does."""
    a, b, c = coefficients
    is_tall = stack.shape[1] > stack.shape[2]
    x = stack.mT if is_tall else stack
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=eps)  # the spectral norm is at most 1
    for _ in range(num_steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def learning_rate(step: int, max_steps: int, config: OptimConfig) -> float:
    """Return the learning rate of a step: linear warm-up, then decay to the final fraction.

    Args:
        step: number of the step, from 1 to ``max_steps``.
        max_steps: optimizer steps of the whole run.
        config: settings of the optimizer.
    """
    if step <= config.warmup_steps:
        return config.lr * step / config.warmup_steps
    if config.schedule == "constant":
        return config.lr
    progress = min(1.0, (step - config.warmup_steps) / (max_steps - config.warmup_steps))
    cosine = (1 + math.cos(math.pi * progress)) / 2
    remaining = cosine if config.schedule == "cosine" else 1 - progress
    return config.lr * (config.final_lr_fraction + (1 - config.final_lr_fraction) * remaining)
