"""ESM-2 for packs of proteins: transformers' modules and weights, a forward pass without padding.

``PackedEsm`` is an ``EsmForMaskedLM`` with the same parameter names. The same holds for the two classifiers.
Only the arithmetic of the forward pass differs from transformers':

* a pack of proteins is one row of T tokens, attention stays within each protein;
* ESM-2's token dropout is applied per protein (``token_scale``), not per row;
* queries, keys and values come from one matrix product;
* the last layer's feed-forward block and the head run on the tokens alone that something is predicted for.

Shapes: T tokens, K predicted tokens, C hidden size, H heads, D head size, V vocabulary, L labels.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    EsmConfig,
    EsmForMaskedLM,
    EsmForSequenceClassification,
    EsmForTokenClassification,
    EsmModel,
    EsmPreTrainedModel,
)
from transformers.models.esm.modeling_esm import EsmLayer

from workloads.training.device_runtime import runtime_of
from workloads.training.layered_model import LayeredModel

from .alphabet import MASK, PAD, VOCAB_SIZE
from .attention import Segments, packed_attention
from .shapes import SHAPES

_ARCHITECTURE: dict[str, Any] = {
    "position_embedding_type": "rotary",
    "emb_layer_norm_before": False,
    "token_dropout": True,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
    "vocab_size": VOCAB_SIZE,
}
"""Values that distinguish ESM-2 from other models of transformers' class."""


def published_config(size: str) -> EsmConfig:
    """Configuration of a published ESM-2 model; bare ``EsmConfig`` defaults differ from it.

    ``size`` is a key of ``SHAPES``.
    """
    layers, hidden_size, heads = SHAPES[size]
    return EsmConfig(
        **_ARCHITECTURE,
        pad_token_id=PAD,
        mask_token_id=MASK,
        num_hidden_layers=layers,
        hidden_size=hidden_size,
        num_attention_heads=heads,
        intermediate_size=4 * hidden_size,
        max_position_embeddings=1026,
        layer_norm_eps=1e-5,
    )


@dataclass(frozen=True)
class Pack:
    """Input of the model for one micro-batch; every tensor keeps its shape over a run."""

    tokens: Tensor
    """(T,) int64 ids after masking."""
    token_scale: Tensor
    """(T,) fp32 factor on each embedding: 0 for <mask> and padding, else the token-dropout factor."""
    positions: Tensor
    """(T,) int64 position within the protein, CLS at 0."""
    segments: Segments
    rows: Tensor
    """(K,) int64 places of the predicted tokens; spare entries point anywhere. CLS of each segment where
    nothing is masked."""
    targets: Tensor
    """(K,) int64 original ids; -100 at unused places. Of a task: its labels."""


@dataclass(frozen=True)
class Prediction:
    loss_sum: Tensor
    """() fp32 sum of the cross-entropies in nats over the predicted tokens."""
    num_correct: Tensor
    """() int64 predicted tokens whose most likely id is the right one."""


class PackedEsmLayer(EsmLayer):
    """One transformer layer over packed tokens."""

    def forward(  # type: ignore[override]
        self,
        hidden: Tensor,
        normed: Tensor | None,
        cos: Tensor,
        sin: Tensor,
        segments: Segments,
        rows: Tensor | None = None,
        next_norm: tuple[Tensor, Tensor] | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer and, in one compiled kernel with its last sum, the first norm of the next layer.

        Args:
            hidden: (T, C) residual stream in fp32.
            normed: (T, C) first norm of ``hidden`` in autocast's type; None: it is computed here.
            cos: (T, 1, D / 2) fp32 cosines of the rotary angles.
            sin: (T, 1, D / 2) fp32 sines.
            segments: boundaries of the proteins.
            rows: (K,) tokens that the result is wanted of; None: all.
            next_norm: weight and bias (C,) of the next layer's first norm. They are arguments so that all
                layers are one compiled graph.

        Returns:
            (T, C) residual stream, or (K, C) at ``rows``, and its next norm in autocast's type, None without
            ``next_norm``.
        """
        attention = self.attention.self
        projections = (attention.query, attention.key, attention.value)
        if normed is None:
            normed = _operand(_layer_norm(hidden, self.attention.LayerNorm))
        if all(type(projection) is nn.Linear for projection in projections):
            flat = F.linear(
                normed,
                torch.cat([projection.weight for projection in projections]),
                torch.cat([projection.bias for projection in projections]),
            )
        else:  # adapters or 4-bit weights, which act in a forward pass of their own
            flat = torch.cat([projection(normed) for projection in projections], dim=-1)
        qkv = flat.view(len(hidden), 3, attention.num_attention_heads, attention.attention_head_size)
        context = packed_attention(qkv, cos, sin, segments)
        context = context.reshape(hidden.shape)
        if rows is not None:
            context, hidden = context[rows], hidden[rows]
        hidden = hidden + self.attention.output.dense(context)
        inner = F.gelu(self.intermediate.dense(_layer_norm(hidden, self.LayerNorm)))
        hidden = hidden + self.output.dense(inner)
        if next_norm is None:
            return hidden, None
        return hidden, _operand(_layer_norm(hidden, self.LayerNorm, next_norm))


class PackedModel(LayeredModel, EsmPreTrainedModel):
    """Base of ESM-2 models with any head.

    Built on the meta device; ``load_state_dict(..., assign=True)`` or FSDP gives it weights.

    Raises:
        ValueError: if the configuration has a feature that ESM-2 lacks.
    """

    esm: EsmModel
    uncounted = ("word_embeddings", "contact_head")

    def __init__(self, config: EsmConfig) -> None:
        _reject_other_architectures(config)
        super().__init__(config)
        self.esm.encoder.layer = nn.ModuleList(
            PackedEsmLayer(config) for _ in range(config.num_hidden_layers)
        )
        # The contact head reads attention maps, and no loss here does.
        self.esm.contact_head.requires_grad_(False)
        # Positions come with the pack; a buffer that no checkpoint holds would stay on the meta device.
        del self.esm.embeddings.position_ids
        last = f".layer.{config.num_hidden_layers - 1}."
        skipping = (last + part for part in ("attention.output", "intermediate", "output"))
        reads_all = isinstance(self, EsmForTokenClassification)
        self.on_rows = () if reads_all else (*skipping, "lm_head", "classifier")
        # In fp32 where autocast has bf16, whose answers tie: they have three digits.
        self.exact_head = False

    @property
    def layers(self) -> nn.ModuleList:
        return self.esm.encoder.layer

    @property
    def flops_per_pair(self) -> float:
        return 12.0 * self.config.num_hidden_layers * self.config.hidden_size

    def encode(self, pack: Pack, rows: Tensor | None = None) -> Tensor:
        """fp32 hidden states behind the last layer norm: (K, C) at ``rows``, or (T, C) at every token."""
        hidden = self.esm.embeddings.word_embeddings(pack.tokens) * pack.token_scale[:, None]  # (T, C)
        assert self.esm.rotary_embeddings is not None  # checked in __init__
        inv_freq = self.esm.rotary_embeddings.inv_freq.float()
        angles = pack.positions[:, None, None].float() * inv_freq  # (T, 1, D / 2)
        cos, sin = angles.cos(), angles.sin()
        layers: list[Any] = list(self.layers)
        norms = [layer.attention.LayerNorm for layer in layers]
        normed, last = None, len(norms) - 1
        # A norm ahead would be one more input to keep of a recomputed layer. FSDP has its weights too late.
        if not (self.activation_checkpointing or self.is_sharded):
            normed = _operand(_layer_norm(hidden, norms[0]))
        for index, layer in enumerate(layers):
            wanted = rows if index == last else None
            following = None if index == last or normed is None else norms[index + 1]
            affine = None if following is None else (following.weight, following.bias)
            arguments = (hidden, normed, cos, sin, pack.segments, wanted, affine)
            if self.activation_checkpointing and torch.is_grad_enabled():
                hidden = runtime_of(hidden.device).recomputed(layer, *arguments)
            else:
                hidden, normed = layer(*arguments)
        return _layer_norm(hidden, self.esm.encoder.emb_layer_norm_after)

    def _for_head(self, features: Tensor) -> AbstractContextManager[object]:
        return torch.autocast(features.device.type, enabled=False) if self.exact_head else nullcontext()


class PackedEsm(PackedModel, EsmForMaskedLM):
    """ESM-2 with masked-language-model head over packed tokens."""

    def forward(self, pack: Pack) -> Prediction:
        """Loss sum and number of correct predictions over the pack's predicted tokens."""
        logits = self.logits(pack, pack.rows)  # (K, V)
        loss_sum = F.cross_entropy(logits, pack.targets, ignore_index=-100, reduction="sum")
        return Prediction(loss_sum, (logits.detach().argmax(dim=-1) == pack.targets).sum())

    def logits(self, pack: Pack, rows: Tensor | None = None) -> Tensor:
        """fp32 logits (K, V) at ``rows``, or (T, V) at every token."""
        features = self.encode(pack, rows)
        with self._for_head(features):
            hidden = F.gelu(self.lm_head.dense(features))
            hidden = _layer_norm(hidden, self.lm_head.layer_norm)
            return (self.lm_head.decoder(hidden) + self.lm_head.bias).float()


class PackedSequenceClassifier(PackedModel, EsmForSequenceClassification):
    """ESM-2 with transformers' head on CLS."""

    def forward(self, pack: Pack) -> Tensor:
        """fp32 logits (K, L) of the proteins whose CLS tokens are ``pack.rows``."""
        features = self.encode(pack, pack.rows)
        with self._for_head(features):
            return self.classifier(features[:, None]).float()  # the head takes the first of a row of tokens


class PackedTokenClassifier(PackedModel, EsmForTokenClassification):
    """ESM-2 with transformers' head on every token."""

    def forward(self, pack: Pack) -> Tensor:
        """fp32 logits (T, L)."""
        features = self.encode(pack)
        with self._for_head(features):
            return self.classifier(features).float()


def _layer_norm(x: Tensor, norm: nn.LayerNorm, affine: tuple[Tensor, Tensor] | None = None) -> Tensor:
    """Layer norm in fp32, whatever the type that FSDP gathers the weights in; ``affine`` replaces them."""
    weight, bias = affine or (norm.weight, norm.bias)
    return F.layer_norm(x.float(), norm.normalized_shape, weight.float(), bias.float(), norm.eps)


def _operand(x: Tensor) -> Tensor:
    """Cast to the type in which autocast multiplies, so that several products share one cast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x


def _reject_other_architectures(config: EsmConfig) -> None:
    wrong = [
        f"{key}={getattr(config, key)!r} (ESM-2 has {value!r})"
        for key, value in {**_ARCHITECTURE, "is_decoder": False}.items()
        if (getattr(config, key) or False) != value
    ]
    if wrong:
        raise ValueError(
            f"this checkpoint is not ESM-2: {', '.join(wrong)}; use one of the facebook/esm2_* family"
        )
