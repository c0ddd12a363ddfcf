"""Models that the attention kernels serve, and those that keep torch's attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from seqlm.proteins.families.table import MODEL_FAMILIES
from seqlm.proteins.model.kernels.tiles import TILINGS
from seqlm.proteins.model.packed_model import PackedModel
from seqlm.proteins.model.pretrained import of_config
from seqlm.training.adapters.adapters import add_adapters
from seqlm.training.adapters.four_bit import FourBitLinear
from seqlm.training.config import LoraConfig
from seqlm.training.kernels import ATTENTION
from tests.workloads.proteins.tiny_models import tiny_config


def on_meta(head_size: int, family: str = "esm2") -> PackedModel:
    """Return a model of one layer with two heads of this size, without weights."""
    config: Any = tiny_config(layers=1, width=2 * head_size, family=family)
    config.num_attention_heads = 2
    if hasattr(config, "head_dim"):
        config.num_key_value_heads = 2
        config.head_dim = head_size
    with torch.device("meta"):
        model: PackedModel = of_config(config).masked_lm.packed(config)
    return model


@pytest.mark.parametrize("name", MODEL_FAMILIES)
def test_published_models_have_kernels(name: str) -> None:
    family = MODEL_FAMILIES[name]
    sizes = {one.hidden // one.heads for one in family.sizes.values()}
    assert sizes <= set(TILINGS) | {128}  # ESM-2 15B has heads of 128
    for head_size in sizes & set(TILINGS):
        assert ATTENTION in on_meta(head_size, name).kernels


def test_other_head_sizes_keep_torchs_attention() -> None:
    assert ATTENTION not in on_meta(8).kernels
    assert ATTENTION not in on_meta(128).kernels


def test_adapters_keep_torchs_attention() -> None:
    model = on_meta(16)
    with torch.device("meta"):
        add_adapters(model, LoraConfig(), of_config(model.config).adapted)
    assert ATTENTION not in model.kernels


def test_products_of_another_kind_keep_torchs_attention() -> None:
    """Layers with weights in 4 bits have such products."""
    model = on_meta(16)
    layer: Any = model.layers[0]
    layer.attention.self.key = FourBitLinear.__new__(FourBitLinear)
    nn.Module.__init__(layer.attention.self.key)
    assert ATTENTION not in model.kernels


def test_a_bias_of_some_projections_alone_keeps_torchs_attention() -> None:
    model = on_meta(16)
    layer: Any = model.layers[0]
    layer.attention.self.key.bias = None
    assert ATTENTION not in model.kernels
