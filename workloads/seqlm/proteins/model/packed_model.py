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

from abc import abstractmethod
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqlm.training.data.manifest import IGNORED
from seqlm.training.device_runtime import runtime_of
from seqlm.training.kernels import ACTIVATION, ATTENTION, PRODUCTS
from seqlm.training.layered_model import LayeredModel, Prediction, Segments

from .arithmetic import Affine, joined_weights, layer_norm, operand
from .kernels.comparison import AttentionShape, attention_differences, problem_of
from .kernels.linear_comparison import gelu_differences, products_differences
from .kernels.products import CastWeights, plain_maps
from .kernels.tiles import attention_tiles
from .packed_layer import PackedLayer, PackedTokens, has_attention_kernel


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
    """(K,) int64 original ids, ``IGNORED`` at unused places; for a task, its labels."""


class PackedModel(LayeredModel):
    """Base of the models of a family, beside one of transformers' classes, with any head.

    Built on the meta device; ``load_state_dict(..., assign=True)`` or FSDP gives it weights. A family's
    constructor puts its ``PackedLayer`` objects in the places of transformers' layers.
    """

    exact_head = False
    """Whether the head computes in fp32 also under autocast. In bf16, with its three digits, answers tie."""

    _cast_weights: CastWeights | None = None

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

    used_kernels: frozenset[str] = frozenset()
    """Names of the kernels that the model computes with."""

    @property
    def _packed_layers(self) -> list[PackedLayer]:
        """Layers by their own class."""
        layers = list(self.layers)
        assert all(isinstance(layer, PackedLayer) for layer in layers)
        return cast("list[PackedLayer]", layers)

    @property
    def kernels(self) -> frozenset[str]:
        offered: set[str] = set()
        if all(has_attention_kernel(layer) for layer in self._packed_layers):
            offered.add(ATTENTION)
        if self._castable_maps() is not None:
            offered.add(PRODUCTS)
        if self._gelu_map() is not None:
            offered.add(ACTIVATION)
        return frozenset(offered)

    def kernel_problems(self, names: frozenset[str], pack: Pack) -> dict[str, str]:
        num_tokens = len(pack.tokens)
        comparisons: dict[str, Callable[[], dict[str, float]]] = {}
        if ATTENTION in names:
            shape = self._attention_shape(pack)
            comparisons[ATTENTION] = lambda: attention_differences(shape)
        maps = self._castable_maps()
        if PRODUCTS in names and maps is not None:
            of_a_layer = dict(zip(self._packed_layers[0].linear_maps, maps, strict=False))
            comparisons[PRODUCTS] = lambda: products_differences(of_a_layer, num_tokens)
        before_gelu = self._gelu_map()
        if ACTIVATION in names and before_gelu is not None:
            comparisons[ACTIVATION] = lambda: gelu_differences(before_gelu, num_tokens)
        problems = {name: problem_of(compare) for name, compare in comparisons.items()}
        return {name: problem for name, problem in problems.items() if problem is not None}

    def _attention_shape(self, pack: Pack) -> AttentionShape:
        layer = self._packed_layers[0]
        tokens = self.packed_tokens(pack)
        can_join = joined_weights(layer.projections) is not None
        return AttentionShape(
            width=self.config.hidden_size,
            head_size=layer.head_size,
            is_projected=layer.query_and_key_norms is None and can_join,
            has_bias=layer.projections[0].bias is not None,
            cos=tokens.cos,
            sin=tokens.sin,
            segments=tokens.segments,
        )

    def _castable_maps(self) -> list[list[nn.Linear]] | None:
        """Return the linear maps of each product of all layers; None if not all can be cast once per step.

        Their inputs need gradients, since only these are in the autograd graph.
        """
        if self.is_sharded or not self.embedding.weight.requires_grad:
            return None
        layers = self._packed_layers
        return plain_maps(maps for layer in layers for maps in layer.linear_maps.values())

    def _gelu_map(self) -> nn.Linear | None:
        """Return the linear map before the GELU of the first layer; None if there is none that is plain."""
        layer = self._packed_layers[0]
        if not layer.before_gelu:
            return None
        (found,) = layer.linear_maps[layer.before_gelu]
        return found if type(found) is nn.Linear else None

    def select_kernels(self, names: frozenset[str], dtype: torch.dtype = torch.bfloat16) -> None:
        self.used_kernels = names
        self._cast_weights = None
        if PRODUCTS in names:
            maps = self._castable_maps()
            assert maps is not None, "the kernel is not among those that the model offers"
            self._cast_weights = CastWeights(maps, dtype)
        for layer in self._packed_layers:
            layer.cast = None
            layer.has_gelu_kernel = ACTIVATION in names

    def adjacent_parameters(self) -> list[list[nn.Parameter]]:
        return [] if self._cast_weights is None else self._cast_weights.adjacent

    def weights_changed(self) -> None:
        if self._cast_weights is None:
            return
        maps = iter(self._cast_weights.refresh())
        for layer in self._packed_layers:
            layer.cast = {name: next(maps) for name in layer.linear_maps}

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

    def packed_tokens(self, pack: Pack) -> PackedTokens:
        """Return what all layers need to know about the tokens of a pack."""
        angles = (
            pack.positions[:, None, None].float() * self.rotary_frequencies.float()
        )  # (T, 1, D / 2)
        tiles = None
        if ATTENTION in self.used_kernels:
            head_size = self._packed_layers[0].head_size
            tiles = attention_tiles(pack.segments, len(pack.tokens), head_size)
        return PackedTokens(pack.tokens, angles.cos(), angles.sin(), pack.segments, tiles)

    def residual_stream(self, pack: Pack, rows: Tensor | None = None) -> Iterator[Tensor]:
        """Yield the embeddings and each layer's output, (T, C) in fp32; the last is (K, C) at ``rows``."""
        hidden = self.embed(pack)  # (T, C)
        yield hidden
        tokens = self.packed_tokens(pack)
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
        loss_sum = F.cross_entropy(logits, pack.targets, ignore_index=IGNORED, reduction="sum")
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
