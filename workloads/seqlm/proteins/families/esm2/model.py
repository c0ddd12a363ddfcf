"""ESM-2 for packs of proteins, over transformers' ``EsmForMaskedLM`` and its two classifiers.

Besides what ``packed_model.py`` describes, ESM-2's token dropout is applied per protein (``token_scale``),
not per row.
"""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor, nn
from transformers import (
    EsmConfig,
    EsmForMaskedLM,
    EsmForSequenceClassification,
    EsmForTokenClassification,
    EsmModel,
    EsmPreTrainedModel,
    EsmTokenizer,
)
from transformers.models.esm.modeling_esm import EsmLayer

from seqlm.proteins.alphabet import MASK, PAD, TOKENS
from seqlm.proteins.model.architecture import Architecture, ModelClass
from seqlm.proteins.model.packed_layer import OPERANDS, PackedLayer
from seqlm.proteins.model.packed_model import (
    MaskedLanguageModel,
    Pack,
    PackedModel,
    SequenceClassifier,
    TokenClassifier,
    refuse_others,
)
from seqlm.training.adapters.adapters import AdaptedModules

from .facts import ESM2, VOCABULARY

_ARCHITECTURE: dict[str, Any] = {
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
    "token_dropout": True,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "vocab_size": VOCABULARY,
}
"""Fields of the configuration that distinguish ESM-2 from other models of transformers' class."""
MAX_POSITIONS = 1026
SPARE_POSITIONS = 2
"""Positions that transformers leaves free before the first token of a row."""


def published_config(size: str) -> EsmConfig:
    """Return the configuration of a published ESM-2 model. The defaults of ``EsmConfig`` differ from it.

    Args:
        size: value of ``model.size``.
    """
    dimensions = ESM2.sizes[size]
    return EsmConfig(
        **_ARCHITECTURE,
        pad_token_id=PAD,
        mask_token_id=MASK,
        num_hidden_layers=dimensions.layers,
        hidden_size=dimensions.hidden,
        num_attention_heads=dimensions.heads,
        intermediate_size=dimensions.feed_forward,
        max_position_embeddings=MAX_POSITIONS,
        layer_norm_eps=1e-5,
    )


class PackedEsmLayer(PackedLayer, EsmLayer):  # type: ignore[misc]  # packed tokens have another forward
    """One transformer layer over packed tokens."""

    before_gelu = "intermediate"

    @property
    def attention_norm(self) -> nn.LayerNorm:
        return self.attention.LayerNorm

    @property
    def feed_forward_norm(self) -> nn.LayerNorm:
        return self.LayerNorm

    @property
    def projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        attention = self.attention.self
        return attention.query, attention.key, attention.value

    @property
    def head_size(self) -> int:
        size: int = self.attention.self.attention_head_size
        return size

    @property
    def linear_maps(self) -> dict[str, tuple[nn.Module, ...]]:
        return {
            OPERANDS: self.projections,
            "attention_output": (self.attention.output.dense,),
            "intermediate": (self.intermediate.dense,),
            "output": (self.output.dense,),
        }

    def attention_output(self, context: Tensor) -> Tensor:
        return self.mapped("attention_output", context)

    def feed_forward(self, normed: Tensor) -> Tensor:
        return self.mapped("output", self.mapped_with_gelu(normed))


class PackedEsmModel(PackedModel, EsmPreTrainedModel):
    """Base of ESM-2 models with any head.

    Raises:
        ValueError: if the configuration has a feature that ESM-2 lacks.
    """

    esm: EsmModel
    uncounted = ("word_embeddings", "contact_head")

    def __init__(self, config: EsmConfig) -> None:
        refuse_others(
            config, _ARCHITECTURE | {"is_decoder": False}, ESM2.title, f"{ESM2.hub_prefix}*"
        )
        super().__init__(config)
        self.esm.encoder.layer = nn.ModuleList(
            PackedEsmLayer(config) for _ in range(config.num_hidden_layers)
        )
        # The contact head reads attention maps, and no loss here does.
        self.esm.contact_head.requires_grad_(False)
        # The pack brings the positions. A buffer that no checkpoint holds would stay on the meta device.
        del self.esm.embeddings.position_ids
        if not isinstance(self, TokenClassifier):  # which predicts for all tokens
            last = f".layer.{config.num_hidden_layers - 1}."
            self.on_rows = (
                f"{last}attention.output",
                f"{last}intermediate",
                f"{last}output",
                "lm_head",
                "classifier",
            )
            self.queries_on_rows = (f"{last}attention.self.query",)

    @property
    def layers(self) -> nn.ModuleList:
        return self.esm.encoder.layer

    @property
    def embedding(self) -> nn.Embedding:
        return self.esm.embeddings.word_embeddings

    @property
    def rotary_frequencies(self) -> Tensor:
        assert self.esm.rotary_embeddings is not None, "the configuration has rotary positions"
        return self.esm.rotary_embeddings.inv_freq

    @property
    def last_norm(self) -> nn.LayerNorm:
        return self.esm.encoder.emb_layer_norm_after

    def embed(self, pack: Pack) -> Tensor:
        return self.embedding(pack.tokens) * pack.token_scale[:, None]


class PackedEsm(MaskedLanguageModel, PackedEsmModel, EsmForMaskedLM):
    """ESM-2 with masked-language-model head over packed tokens."""

    def decode(self, hidden: Tensor) -> Tensor:
        return super().decode(hidden) + self.lm_head.bias


class PackedSequenceClassifier(SequenceClassifier, PackedEsmModel, EsmForSequenceClassification):
    """ESM-2 with transformers' head on CLS."""


class PackedTokenClassifier(TokenClassifier, PackedEsmModel, EsmForTokenClassification):
    """ESM-2 with transformers' head on every token."""


def _tokenizer(config: EsmConfig) -> EsmTokenizer:
    """Return transformers' tokenizer, which reads the vocabulary from a file."""
    with TemporaryDirectory() as folder:
        vocabulary = Path(folder) / "vocab.txt"
        vocabulary.write_text("\n".join(TOKENS))
        longest = config.max_position_embeddings - SPARE_POSITIONS
        return EsmTokenizer(str(vocabulary), model_max_length=longest)


def architecture() -> Architecture:
    """Return the description of ESM-2."""
    return Architecture(
        config=EsmConfig,
        published=published_config,
        masked_lm=ModelClass(EsmForMaskedLM, PackedEsm),
        sequence_classifier=ModelClass(EsmForSequenceClassification, PackedSequenceClassifier),
        token_classifier=ModelClass(EsmForTokenClassification, PackedTokenClassifier),
        encoder="esm.",
        tokenizer=_tokenizer,
        adapted=AdaptedModules(
            layers="esm.encoder.layer",
            modules={
                "query": ("attention.self.query",),
                "key": ("attention.self.key",),
                "value": ("attention.self.value",),
                "attention_output": ("attention.output.dense",),
                "intermediate": ("intermediate.dense",),
                "output": ("output.dense",),
            },
            heads=("classifier",),
        ),
        may_lack=f"{ESM2.contact_head}.",
    )
