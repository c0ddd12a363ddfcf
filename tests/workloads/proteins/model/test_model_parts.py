"""Parts that a family's layers and models must have."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from seqlm.proteins.families.esmc.model import PackedEsmcModel
from seqlm.proteins.model.packed_layer import PackedLayer
from seqlm.proteins.model.packed_model import MaskedLanguageModel, PackedModel
from seqlm.training.layered_model import LayeredModel
from tests.workloads.proteins.tiny_models import tiny_config


class UnfinishedLayer(PackedLayer, nn.TransformerEncoderLayer):  # type: ignore[misc]
    """Layer without the parts of attention."""

    @property
    def feed_forward_norm(self) -> nn.LayerNorm:
        return nn.LayerNorm(8)

    def feed_forward(self, normed: Tensor) -> Tensor:
        return normed


class UnfinishedModel(MaskedLanguageModel):
    @property
    def layers(self) -> nn.ModuleList:
        return nn.ModuleList()


def test_a_layer_that_lacks_parts_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"UnfinishedLayer.*attention_norm.*attention_output.*head_size"
    ):
        UnfinishedLayer(8, 2)


def test_a_model_that_lacks_parts_is_refused() -> None:
    with pytest.raises(
        TypeError, match=r"UnfinishedModel.*embed.*embedding.*last_norm.*rotary_frequencies"
    ):
        UnfinishedModel()


@pytest.mark.parametrize("part", ["layers", "embedding", "last_norm", "rotary_frequencies"])
def test_every_part_of_a_family_is_needed(part: str) -> None:
    """A class beside one of transformers' models is refused, too."""
    base = next(kind for kind in (PackedModel, LayeredModel) if part in vars(kind))
    lacking = type("Lacking", (PackedEsmcModel,), {part: vars(base)[part]})
    with torch.device("meta"), pytest.raises(TypeError, match=f"Lacking.*{part}"):
        lacking(tiny_config(family="esmc"))
