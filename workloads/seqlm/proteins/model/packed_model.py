"""Protein language models for packs: transformers' modules and weights, a forward pass without padding.

A family's models are classes of transformers with the same parameter names. Only the arithmetic of the
forward pass differs from transformers':

* a pack of proteins is one row of T tokens, attention stays within each protein;
* queries, keys and values come from one matrix product;
* the first layer computes them once for each token of the vocabulary, if they depend on nothing else;
* the last layer's feed-forward block and the head run on the tokens alone that something is predicted for,
  and on CPUs the last layer has queries of these tokens alone.

Shapes: T tokens, K predicted tokens, C hidden size, H heads, D head size, V vocabulary, L labels.
"""

from abc import ABC, abstractmethod
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqlm.training.device_runtime import runtime_of
from seqlm.training.layered_model import LayeredModel, Prediction, Segments

from .attention import packed_attention, takes_rows


@dataclass(frozen=True)
class Pack:
    """Input of the model for one micro-batch; every tensor keeps its shape over a run."""

    tokens: Tensor
    """(T,) int64 ids after masking."""
    token_scale: Tensor
    """(T,) fp32 factor on each embedding of ESM-2: 0 for <mask> and padding, else by token dropout."""
    positions: Tensor
    """(T,) int64 position within the protein, CLS at 0."""
    segments: Segments
    """Boundaries of the proteins."""
    rows: Tensor
    """(K,) int64 places of the predicted tokens; spare entries point anywhere. If nothing is masked, they
    are those of the segments' CLS."""
    targets: Tensor
    """(K,) int64 original ids, -100 at unused places; for a task, its labels."""


@dataclass(frozen=True)
class PackedTokens:
    """Facts about a pack's tokens that are the same for all layers; none of them has a gradient."""

    ids: Tensor
    """(T,) int64 ids after masking."""
    cos: Tensor
    """(T, 1, D / 2) fp32 cosines of the rotary angles."""
    sin: Tensor
    """(T, 1, D / 2) fp32 sines of the rotary angles."""
    segments: Segments
    """Boundaries of the proteins."""


class Affine(NamedTuple):
    """Weights of a layer norm, (C,) each."""

    weight: Tensor
    bias: Tensor | None


class PackedLayer(nn.Module, ABC):
    """Forward pass of a transformer layer over packed tokens.

    A family's layer derives from this class and from one of transformers' layers, and says which modules of
    the latter are the parts of the pass. A layer class that lacks a part cannot be instantiated.
    """

    branch_scale: float = 1.0
    """Factor on both branches before they are added to the residual stream."""

    @property
    @abstractmethod
    def attention_norm(self) -> nn.LayerNorm:
        """Norm of the attention's input."""

    @property
    @abstractmethod
    def feed_forward_norm(self) -> nn.LayerNorm:
        """Norm of the input of the feed-forward block."""

    @property
    @abstractmethod
    def projections(self) -> tuple[nn.Module, nn.Module, nn.Module]:
        """Linear maps to queries, keys and values."""

    @property
    @abstractmethod
    def head_size(self) -> int:
        """Size of an attention head, D."""

    @abstractmethod
    def attention_output(self, context: Tensor) -> Tensor:
        """Return the linear map of the attention's result, (T, C) -> (T, C)."""

    @abstractmethod
    def feed_forward(self, normed: Tensor) -> Tensor:
        """Return the result of the feed-forward block, (T, C) -> (T, C)."""

    def normalized(self, queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys (T, C) as they are split into heads; some families have norms here."""
        return queries, keys

    def attention_operands(
        self, normed: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before rotation, (T, H, D), from the normed input (T, C).

        With ``rows``, there are queries of these tokens alone, (K, H, D).
        """
        query, key, value = self.projections
        if rows is None:
            queries, keys, values = joined(normed, (query, key, value)).chunk(3, dim=-1)
        else:
            queries = query(normed[rows])
            keys, values = joined(normed, (key, value)).chunk(2, dim=-1)
        queries, keys = self.normalized(queries, keys)
        return self._heads(queries), self._heads(keys), self._heads(values)

    def _heads(self, x: Tensor) -> Tensor:
        """(T, C) -> (T, H, D)."""
        return x.unflatten(-1, (-1, self.head_size))

    def forward(
        self,
        hidden: Tensor,
        normed: Tensor | None,
        tokens: PackedTokens,
        rows: Tensor | None = None,
        next_norm: Affine | None = None,
        vocabulary: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """Compute the layer and, in one compiled kernel with its last sum, the first norm of the next layer.

        Tensors that have a gradient are arguments of their own, because recomputation on XLA finds none
        within a record.

        Args:
            hidden: (T, C) residual stream in fp32.
            normed: (T, C) first norm of ``hidden`` in autocast's type; None: it is computed here.
            tokens: ids, rotary angles and boundaries of the tokens.
            rows: (K,) tokens at which the result is needed; None: all.
            next_norm: weights of the next layer's first norm. They are an argument so that all layers are one
                compiled graph.
            vocabulary: (V, C) table in fp32 that ``hidden`` was looked up in. Queries, keys and values are
                then computed for its rows and looked up, too. None: they are computed for each token.

        Returns:
            (T, C) residual stream, or (K, C) at ``rows``, and its next norm in autocast's type, None without
            ``next_norm``.
        """
        if normed is None:
            normed = operand(
                layer_norm(hidden if vocabulary is None else vocabulary, self.attention_norm)
            )
        query_rows = rows if takes_rows(normed) else None
        if vocabulary is None:
            queries, keys, values = self.attention_operands(normed, query_rows)
        else:
            queries, keys, values = self.attention_operands(normed)
            queries = looked_up(
                queries, tokens.ids if query_rows is None else tokens.ids[query_rows]
            )
            keys = looked_up(keys, tokens.ids)
            values = looked_up(values, tokens.ids)
        context = packed_attention(
            queries, keys, values, tokens.cos, tokens.sin, tokens.segments, query_rows
        ).flatten(1)
        if rows is not None:
            hidden = hidden[rows]
            if query_rows is None:
                context = context[rows]
        hidden = torch.add(hidden, self.attention_output(context), alpha=self.branch_scale)
        branch = self.feed_forward(layer_norm(hidden, self.feed_forward_norm))
        hidden = torch.add(hidden, branch, alpha=self.branch_scale)
        if next_norm is None:
            return hidden, None
        return hidden, operand(layer_norm(hidden, self.attention_norm, next_norm))


class PackedModel(LayeredModel):
    """Base of the models of a family, beside one of transformers' classes, with any head.

    Built on the meta device; ``load_state_dict(..., assign=True)`` or FSDP gives it weights. A family's
    constructor puts its ``PackedLayer`` objects in the places of transformers' layers.
    """

    exact_head = False
    """Whether the head computes in fp32 also under autocast. In bf16, with its three digits, answers tie."""

    if TYPE_CHECKING:  # transformers has it
        config: Any

    @property
    @abstractmethod
    def embedding(self) -> nn.Embedding:
        """Embedding of the tokens."""

    @property
    @abstractmethod
    def rotary_frequencies(self) -> Tensor:
        """Steps of the rotary angles per position, (D / 2,)."""

    @property
    @abstractmethod
    def last_norm(self) -> nn.LayerNorm:
        """Norm behind the last layer."""

    @abstractmethod
    def embed(self, pack: Pack) -> Tensor:
        """Return the embeddings of the tokens, (T, C) in fp32."""

    def vocabulary(self) -> Tensor | None:
        """Return the table of embeddings (V, C), if the first layer's operands can be looked up by token.

        Positions enter behind them, with the rotation. None: something else enters before, such as the masks
        of ESM-2's token dropout, or the dropout of an adapter.
        """
        drops = any(isinstance(part, nn.Dropout) for part in self.layers[0].modules())
        return None if drops or not self.on_vocabulary else self.embedding.weight.float()

    @property
    def flops_per_pair(self) -> float:
        return 12.0 * self.config.num_hidden_layers * self.config.hidden_size

    def encode(self, pack: Pack, rows: Tensor | None = None) -> Tensor:
        """Return the fp32 hidden states behind the last norm: (K, C) at ``rows``, or (T, C) at all tokens."""
        for hidden in self.residual_stream(pack, rows):  # noqa: B007
            pass
        return layer_norm(hidden, self.last_norm)

    def hidden_states(self, pack: Pack, layers: Collection[int]) -> Tensor:
        """Return the fp32 hidden states behind these layers side by side, (T, len(layers) * C).

        They are numbered as transformers' ``hidden_states``: 0 is the embedding, and the last one is behind
        the last layer norm.
        """
        found = {
            index: hidden
            for index, hidden in enumerate(self.residual_stream(pack))
            if index in layers
        }
        last = len(self.layers)
        if last in found:
            found[last] = layer_norm(found[last], self.last_norm)
        return torch.cat([found[index] for index in layers], dim=-1)

    def residual_stream(self, pack: Pack, rows: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the embeddings and each layer's output, (T, C) in fp32; the last is (K, C) at ``rows``."""
        hidden = self.embed(pack)  # (T, C)
        yield hidden
        angles = (
            pack.positions[:, None, None].float() * self.rotary_frequencies.float()
        )  # (T, 1, D / 2)
        tokens = PackedTokens(pack.tokens, angles.cos(), angles.sin(), pack.segments)
        layers: list[Any] = list(self.layers)
        last = len(layers) - 1
        # A norm ahead would be one more input to keep of a recomputed layer. FSDP has its weights too late.
        is_ahead = not (self.activation_checkpointing or self.is_sharded)
        vocabulary = self.vocabulary()
        normed = None
        if is_ahead and vocabulary is None:
            normed = operand(layer_norm(hidden, layers[0].attention_norm))
        for index, layer in enumerate(layers):
            next_norm = None
            if is_ahead and index != last:
                following = layers[index + 1].attention_norm
                next_norm = Affine(following.weight, following.bias)
            arguments = (
                hidden,
                normed,
                tokens,
                rows if index == last else None,
                next_norm,
                vocabulary if index == 0 else None,
            )
            if self.activation_checkpointing and torch.is_grad_enabled():
                hidden = runtime_of(hidden.device).recomputed(layer, *arguments)
            else:
                hidden, normed = layer(*arguments)
            yield hidden

    def for_head(self, features: Tensor) -> AbstractContextManager[object]:
        """Return the context in which the head runs: without autocast if ``exact_head`` is set."""
        return (
            torch.autocast(features.device.type, enabled=False)
            if self.exact_head
            else nullcontext()
        )


class MaskedLanguageModel(PackedModel):
    """Model with the head of a masked language model."""

    if TYPE_CHECKING:
        lm_head: Any

    def forward(self, pack: Pack) -> Prediction:
        """Return the loss and the number of correct predictions, summed over the pack's predicted tokens."""
        logits = self.logits(pack, pack.rows)  # (K, V)
        loss_sum = F.cross_entropy(logits, pack.targets, ignore_index=-100, reduction="sum")
        return Prediction(loss_sum, (logits.detach().argmax(dim=-1) == pack.targets).sum())

    def logits(self, pack: Pack, rows: Tensor | None = None) -> Tensor:
        """Return the fp32 logits, (K, V) at ``rows`` or (T, V) at all tokens."""
        features = self.encode(pack, rows)
        with self.for_head(features):
            hidden = F.gelu(self.lm_head.dense(features))
            return self.decode(layer_norm(hidden, self.lm_head.layer_norm)).float()

    def decode(self, hidden: Tensor) -> Tensor:
        """Return the logits of the head's last layer."""
        return self.lm_head.decoder(hidden)


class SequenceClassifier(PackedModel):
    """Model with transformers' head on CLS."""

    if TYPE_CHECKING:
        classifier: Any

    def forward(self, pack: Pack) -> Tensor:
        """Return the fp32 logits (K, L) of the proteins with their CLS tokens at ``pack.rows``."""
        features = self.encode(pack, pack.rows)
        with self.for_head(features):
            result: Tensor = self.classifier(
                features[:, None]
            )  # takes the first of a row of tokens
            return result.float()


class TokenClassifier(PackedModel):
    """Model with transformers' head on every token."""

    if TYPE_CHECKING:
        classifier: Any

    def forward(self, pack: Pack) -> Tensor:
        """Return the fp32 logits, (T, L)."""
        features = self.encode(pack)
        with self.for_head(features):
            return self.classify(features).float()

    def classify(self, features: Tensor) -> Tensor:
        """Return the logits (T, L) of the hidden states (T, C)."""
        return self.classifier(features)


def refuse_others(config: Any, expected: Mapping[str, Any], family: str, published: str) -> None:
    """Raise ValueError if a configuration has other values than the family's ``expected`` ones.

    Args:
        config: configuration of a model.
        expected: values that all models of the family have, by the names of their fields.
        family: name of the family in the message.
        published: pattern of the hub ids of the published models.
    """
    wrong = [
        f"{key}={getattr(config, key)!r} ({family} has {value!r})"
        for key, value in expected.items()
        if (getattr(config, key) or 0) != (value or 0)
    ]
    if wrong:
        listed = ", ".join(wrong)
        raise ValueError(
            f"this checkpoint is not {family}: {listed}; use one of the {published} family"
        )


def looked_up(table: Tensor, tokens: Tensor) -> Tensor:
    """Return rows of a table (V, H, D) at tokens (T,); a row's gradient is a sum over many, in fp32."""
    flat = table.flatten(1).float()  # (V, H D)
    rows = F.embedding(tokens, flat).to(table.dtype)
    return rows.view(-1, *table.shape[1:])


def joined(x: Tensor, projections: Sequence[nn.Module]) -> Tensor:
    """Return the outputs of several linear maps side by side, from one product if they are plain.

    Adapters and 4-bit weights act in a forward pass of their own. Of joined frozen weights, a backward pass
    would keep a copy.
    """
    needs_grad = torch.is_grad_enabled()
    plain = [
        one
        for one in projections
        if type(one) is nn.Linear and one.weight.requires_grad >= needs_grad
    ]
    if len(plain) < len(projections):
        return torch.cat([one(x) for one in projections], dim=-1)
    weight = torch.cat([one.weight for one in plain])
    bias = None if plain[0].bias is None else torch.cat([one.bias for one in plain])
    return F.linear(x, weight, bias)


def layer_norm(x: Tensor, norm: nn.LayerNorm, affine: Affine | None = None) -> Tensor:
    """Compute a layer norm in fp32, whatever the type in which FSDP gathers the weights.

    Args:
        x: (..., C) input.
        norm: norm module.
        affine: weights in place of the module's own.
    """
    if affine is None:
        affine = Affine(norm.weight, norm.bias)
    weight = affine.weight
    # Without a bias, torch's kernel for CPUs takes six times as long.
    shift = torch.zeros_like(weight) if affine.bias is None else affine.bias
    return F.layer_norm(x.float(), norm.normalized_shape, weight.float(), shift.float(), norm.eps)


def operand(x: Tensor) -> Tensor:
    """Cast a tensor to the type in which autocast multiplies, so that several products share one cast."""
    device = x.device.type
    return x.to(torch.get_autocast_dtype(device)) if torch.is_autocast_enabled(device) else x
