"""Steps whose memory is measured, and their layouts for the memory model.

The GPU tests share these functions, so the module imports nothing that a GPU machine may lack.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from transformers import PretrainedConfig

from seqlm.proteins.config import TaskConfig
from seqlm.proteins.families.table import family_of_type
from seqlm.proteins.model.packed_model import MaskedLanguageModel, Pack, PackedModel
from seqlm.proteins.model.shape import ModelShape, num_rows
from seqlm.runs.run_file import RunFile
from seqlm.training.config import KernelMode, LoraConfig, TrainConfig
from seqlm.training.kernels import PRODUCTS
from seqlm.training.layered_model import Segments
from seqlm.training.step.gradients import FlatGradients
from tools.plan.memory import Attention, Layout
from tools.plan.model_size import parameters_of

LENGTH = 128


def run_config(
    tokens: int,
    *,
    checkpointing: bool = False,
    lora: LoraConfig | None = None,
    kernels: KernelMode = "auto",
) -> RunFile:
    return RunFile(
        name="memory",
        train=TrainConfig(
            tokens_per_pack=tokens,
            tokens_per_step=tokens,
            activation_checkpointing=checkpointing,
            kernels=kernels,
        ),
        task=TaskConfig(kind="binary") if lora else None,
        lora=lora,
    )


def cast_weights(model: PackedModel, optimizers: Sequence[Optimizer]) -> FlatGradients:
    """Make a model cast its weights once per step, and begin a step; return its gradients, which are 0."""
    model.select_kernels(frozenset({PRODUCTS}))
    gradients = FlatGradients(optimizers, 1, model.adjacent_parameters())
    gradients.begin()
    model.weights_changed()
    return gradients


def shape_of_config(config: PretrainedConfig) -> ModelShape:
    return family_of_type(config.model_type).shape_of_config(config.to_dict())


def layout_of(
    config: RunFile, esm: PretrainedConfig, number_bytes: int, kind: Attention, length: int = LENGTH
) -> Layout:
    shape = shape_of_config(esm)
    tokens = config.train.tokens_per_pack
    return Layout(
        config,
        shape,
        parameters_of(config, shape),
        1,
        number_bytes,
        kind,
        attended_pairs=tokens * length,
    )


def pack_of(tokens: int, *, rows: Tensor, device: torch.device, length: int = LENGTH) -> Pack:
    place = {"device": device}
    return Pack(
        tokens=torch.randint(4, 24, (tokens,), **place),
        token_scale=torch.ones(tokens, **place),
        positions=torch.arange(tokens, **place) % length,
        segments=Segments(torch.arange(0, tokens + 1, length, dtype=torch.int32, **place), length),
        rows=rows.to(device),
        targets=torch.randint(4, 24, (len(rows),), **place),
    )


def masked_pack(tokens: int, device: torch.device, length: int = LENGTH) -> Pack:
    return pack_of(tokens, rows=torch.arange(num_rows(tokens, 0.15)), device=device, length=length)


def loss_of(model: nn.Module, pack: Pack, number_bytes: int) -> Tensor:
    device = pack.tokens.device.type
    with torch.autocast(device, dtype=torch.bfloat16, enabled=number_bytes == 2):
        result = model(pack)
    loss: Tensor = result.loss_sum if isinstance(model, MaskedLanguageModel) else result.sum()
    return loss
