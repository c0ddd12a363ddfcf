"""A model folder that trains and answers in moments. transformers is imported only where one is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig


def tiny_config(layers: int = 2, width: int = 32, family: str = "esm2") -> PretrainedConfig:
    """A family's architecture with four heads (one per eight channels)."""
    from seqlm.runs.families import MODEL_FAMILIES

    each = MODEL_FAMILIES[family]
    config = each.architecture().published(next(iter(each.sizes)))
    if family == "esmc":
        config.head_dim, config.num_key_value_heads = 8, width // 8
    config.num_hidden_layers, config.hidden_size = layers, width
    config.num_attention_heads, config.intermediate_size = width // 8, 2 * width
    return config


def save_tiny_model(folder: Path, config: PretrainedConfig | None = None) -> Path:
    """Save an untrained model, the same at each call."""
    import torch

    from seqlm.proteins.model.pretrained import of_config, save_esm

    config = config or tiny_config()
    torch.manual_seed(0)
    save_esm(folder, config, of_config(config).masked_lm.plain(config).state_dict())
    return folder
