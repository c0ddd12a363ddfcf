"""A model folder that trains and answers in moments. transformers is imported only where one is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import EsmConfig


def tiny_config(layers: int = 2, width: int = 32) -> EsmConfig:
    """ESM-2's architecture with four heads (one per eight channels)."""
    from workloads.esm2.model import published_config

    config = published_config("8M")
    config.num_hidden_layers, config.hidden_size = layers, width
    config.num_attention_heads, config.intermediate_size = width // 8, 2 * width
    return config


def save_tiny_model(folder: Path, config: EsmConfig | None = None) -> Path:
    """Save an untrained model, the same at each call."""
    import torch
    from transformers import EsmForMaskedLM

    from workloads.esm2.pretrained import save_esm

    config = config or tiny_config()
    torch.manual_seed(0)
    save_esm(folder, config, EsmForMaskedLM(config).state_dict())
    return folder
