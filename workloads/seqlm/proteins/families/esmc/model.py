"""ESMC for packs of proteins, over transformers' ``EsmcForMaskedLM`` and its two classifiers.

Differences from ESM-2:

* layer norms over the whole width of queries and of keys, before they are split into heads
* SwiGLU in place of GELU, and no biases in the layers' matrices
* both branches of a layer divided by sqrt(layers / 36)
* a decoder of its own, over 64 tokens, of which 33 are in use
* no token dropout, but dropout in the heads of tasks

Shapes: T tokens, C hidden size, F feed-forward size, H heads, D head size, V vocabulary, L labels.
"""

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import EsmcConfig, EsmcTokenizer
from transformers.models.esmc.modeling_esmc import (
    EsmcForMaskedLM,
    EsmcForSequenceClassification,
    EsmcForTokenClassification,
    EsmcLayer,
    EsmcModel,
    EsmcPreTrainedModel,
)

from seqlm.proteins.alphabet import CLS, EOS, MASK, PAD
from seqlm.proteins.model.architecture import Architecture, ModelClass
from seqlm.proteins.model.arithmetic import operand
from seqlm.proteins.model.packed_layer import OPERANDS, PackedLayer
from seqlm.proteins.model.packed_model import (
    MaskedLanguageModel,
    Pack,
    PackedModel,
    SequenceClassifier,
    TokenClassifier,
    refuse_others,
)
from seqlm.training.adapters.adapters import GATED_LAYER, AdaptedModules

from .facts import ESMC, VOCABULARY

_ARCHITECTURE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "pad_token_id": PAD,
    "bos_token_id": CLS,
    "eos_token_id": EOS,
    "mask_token_id": MASK,
    "hidden_act": "silu",
    "attention_bias": False,
    "mlp_bias": False,
    "attention_dropout": 0.0,
    "tie_word_embeddings": False,
}
"""Fields of the configuration that distinguish ESMC from other models of transformers' class."""


def published_config(size: str) -> EsmcConfig:
    """Return the configuration of a published ESMC model.

    Args:
        size: value of ``model.size``.
    """
    dimensions = ESMC.sizes[size]
    return EsmcConfig(
        num_hidden_layers=dimensions.layers,
        hidden_size=dimensions.hidden,
        num_attention_heads=dimensions.heads,
        intermediate_size=dimensions.feed_forward,
    )


class PackedEsmcLayer(PackedLayer, EsmcLayer):  # type: ignore[misc]  # packed tokens have another forward
    """One transformer layer over packed tokens."""

    def __init__(self, config: EsmcConfig, layer_idx: int) -> None:
        super().__init__(config, layer_idx)
        self.branch_scale = 1 / self.scaling_factor

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.input_layernorm

    @property
    def feed_forward_norm(self) -> nn.LayerNorm:
        return self.post_attention_layernorm

    @property
    def projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        return self.self_attn.q_proj, self.self_attn.k_proj, self.self_attn.v_proj

    @property
    def head_size(self) -> int:
        size: int = self.self_attn.head_dim
        return size

    @property
    def query_and_key_norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm]:
        return self.self_attn.q_norm, self.self_attn.k_norm

    @property
    def linear_maps(self) -> dict[str, tuple[nn.Module, ...]]:
        return {
            OPERANDS: self.projections,
            "attention_output": (self.self_attn.o_proj,),
            "gate_and_up": (self.mlp.gate_proj, self.mlp.up_proj),
            "output": (self.mlp.down_proj,),
        }

    def attention_output(self, context: Tensor) -> Tensor:
        return self.mapped("attention_output", context)

    def feed_forward(self, normed: Tensor) -> Tensor:
        gate, up = self.mapped("gate_and_up", operand(normed)).chunk(2, dim=-1)  # (T, F) each
        return self.mapped("output", F.silu(gate) * up)


class PackedEsmcModel(PackedModel, EsmcPreTrainedModel):
    """Base of ESMC models with any head.

    Raises:
        ValueError: if the configuration has a feature that ESMC lacks.
    """

    esmc: EsmcModel
    uncounted = ("embed_tokens",)
    on_vocabulary = (
        "esmc.layers.0.self_attn.q_proj",
        "esmc.layers.0.self_attn.k_proj",
        "esmc.layers.0.self_attn.v_proj",
    )

    def __init__(self, config: EsmcConfig) -> None:
        _reject_other_architectures(config)
        super().__init__(config)
        layers = range(config.num_hidden_layers)
        self.esmc.layers = nn.ModuleList(PackedEsmcLayer(config, index) for index in layers)
        if not isinstance(self, TokenClassifier):  # which predicts for all tokens
            last = f".layers.{config.num_hidden_layers - 1}."
            self.on_rows = (f"{last}self_attn.o_proj", f"{last}mlp", "lm_head", "classifier")
            self.queries_on_rows = (f"{last}self_attn.q_proj",)

    @property
    def layers(self) -> nn.ModuleList:
        return self.esmc.layers

    @property
    def embedding(self) -> nn.Embedding:
        return self.esmc.embed_tokens

    @property
    def rotary_frequencies(self) -> Tensor:
        return self.esmc.rotary_emb.inv_freq

    @property
    def last_norm(self) -> nn.LayerNorm:
        return self.esmc.norm

    def embed(self, pack: Pack) -> Tensor:
        return self.embedding(pack.tokens).float()

    def make_buffers(self, device: torch.device) -> None:
        self.esmc.rotary_emb = type(self.esmc.rotary_emb)(self.config).to(device)


class PackedEsmc(MaskedLanguageModel, PackedEsmcModel, EsmcForMaskedLM):
    """ESMC with masked-language-model head over packed tokens."""


class PackedSequenceClassifier(SequenceClassifier, PackedEsmcModel, EsmcForSequenceClassification):
    """ESMC with transformers' head on CLS."""


class PackedTokenClassifier(TokenClassifier, PackedEsmcModel, EsmcForTokenClassification):
    """ESMC with transformers' head on every token."""

    def classify(self, features: Tensor) -> Tensor:
        return self.score(self.dropout(features))


def architecture() -> Architecture:
    """Return the description of ESMC."""
    return Architecture(
        config=EsmcConfig,
        published=published_config,
        masked_lm=ModelClass(EsmcForMaskedLM, PackedEsmc),
        sequence_classifier=ModelClass(EsmcForSequenceClassification, PackedSequenceClassifier),
        token_classifier=ModelClass(EsmcForTokenClassification, PackedTokenClassifier),
        encoder="esmc.",
        tokenizer=lambda config: EsmcTokenizer(model_max_length=config.max_position_embeddings),
        adapted=AdaptedModules(
            layers="esmc.layers", modules=GATED_LAYER, heads=("classifier", "score")
        ),
    )


def _reject_other_architectures(config: EsmcConfig) -> None:
    heads = config.num_attention_heads
    expected = {
        **_ARCHITECTURE,
        "num_key_value_heads": heads,
        "head_dim": config.hidden_size // heads,
        "rope_parameters": {**(config.rope_parameters or {}), "rope_type": "default"},
    }
    refuse_others(config, expected, ESMC.title, f"{ESMC.hub_prefix}*")
