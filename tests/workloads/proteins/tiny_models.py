"""A model folder that trains and answers in moments. transformers is imported only where one is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PretrainedConfig

HEAD_SIZE = 8


def tiny_config(layers: int = 2, width: int = 32, family: str = "esm2") -> PretrainedConfig:
    """Return a family's configuration with four heads (one per eight channels)."""
    from seqlm.proteins.families.table import MODEL_FAMILIES

    each = MODEL_FAMILIES[family]
    config = each.architecture().published(next(iter(each.sizes)))
    heads = width // HEAD_SIZE
    wanted = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "num_attention_heads": heads,
        "num_key_value_heads": heads,
        "head_dim": HEAD_SIZE,
        "intermediate_size": 2 * width,
    }
    for name, value in wanted.items():
        if hasattr(config, name):
            setattr(config, name, value)
    return config


def save_tiny_model(folder: Path, config: PretrainedConfig | None = None) -> Path:
    """Save an untrained model, the same at each call."""
    import torch

    from seqlm.proteins.model.pretrained import of_config, save_esm

    config = config or tiny_config()
    torch.manual_seed(0)
    save_esm(folder, config, of_config(config).masked_lm.plain(config).state_dict())
    return folder
