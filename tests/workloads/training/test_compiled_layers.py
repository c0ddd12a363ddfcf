"""The number of graphs that a training compiles does not depend on the number of layers."""

from __future__ import annotations

import copy

import pytest
import torch
from torch._dynamo.utils import counters
from transformers import PretrainedConfig

from seqlm.proteins.model.packed_model import Pack, PackedModel
from seqlm.proteins.model.pretrained import of_config
from seqlm.training.adapters.adapters import add_adapters, shrink_frozen, with_adapters
from seqlm.training.adapters.four_bit import quantize_layers
from seqlm.training.config import LoraConfig
from seqlm.training.layered_model import Segments
from seqlm.training.saved_model import assigned

LENGTHS = (40, 60, 20, 8)
BOTH_FAMILIES = {"test_layers_share_graphs"}
CPU = torch.device("cpu")


def random_pack(seed: int) -> Pack:
    generator = torch.Generator().manual_seed(seed)
    cumulative = torch.tensor((0, *LENGTHS), dtype=torch.int32).cumsum(0, dtype=torch.int32)
    return Pack(
        tokens=torch.randint(4, 24, (sum(LENGTHS),), generator=generator),
        token_scale=torch.ones(sum(LENGTHS)),
        positions=torch.cat([torch.arange(length) for length in LENGTHS]),
        segments=Segments(cumulative, 64),
        rows=cumulative[:-1].long(),
        targets=torch.zeros(len(LENGTHS)),
    )


def model_of(config: PretrainedConfig, kind: str) -> PackedModel:
    """All weights trained, or adapters beside frozen ones in bf16 or in 4 bits."""
    packed = of_config(config).sequence_classifier.packed
    weights = packed(config).state_dict()
    with torch.device("meta"):
        model = packed(config)
    if kind != "all":
        add_adapters(model, LoraConfig(), of_config(config).adapted)
        weights = with_adapters(model, weights, seed=0)
    if kind == "nf4":
        quantize_layers(model, weights, torch.bfloat16, CPU)
    assigned(model, weights)
    if kind != "all":
        shrink_frozen(model, torch.bfloat16)
    return model


def graphs_of(config: PretrainedConfig, kind: str, *, recomputing: bool) -> int:
    """Return how many graphs steps with and without gradients compile."""
    config = copy.deepcopy(config)
    config.num_hidden_layers = 5
    model = model_of(config, kind)
    model.activation_checkpointing = recomputing
    torch._dynamo.reset()
    counters.clear()
    for layer in model.layers:
        layer.compile(dynamic=False, backend="eager")
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for step in range(3):
            model(random_pack(step)).sum().backward()
        with torch.no_grad():
            model(random_pack(4))
    return int(counters["stats"]["unique_graphs"])


@pytest.mark.long
@pytest.mark.parametrize("recomputing", [False, True])
def test_layers_share_graphs(tiny_config: PretrainedConfig, family: str, recomputing: bool) -> None:
    """With and without gradients, the last layer differs from the others. Each is two graphs on a CPU, around
    attention, and one on CUDA. ESMC's first layer differs before attention, which looks up its operands.
    """
    expected = {"esm2": 8, "esmc": 10}[family]
    assert graphs_of(tiny_config, "all", recomputing=recomputing) == expected


@pytest.mark.long
@pytest.mark.parametrize(
    ("family", "kind", "recomputing", "expected"),
    [("esm2", "lora", False, 10), ("esmc", "nf4", True, 11)],
    indirect=["family"],
)
def test_layers_with_adapters_share_graphs(
    tiny_config: PretrainedConfig, kind: str, recomputing: bool, expected: int
) -> None:
    """The first layer differs, too, since no gradient goes to its input; ESMC's also without gradients."""
    assert graphs_of(tiny_config, kind, recomputing=recomputing) == expected
