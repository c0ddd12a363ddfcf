"""Layer of a protein language model over packed tokens; packed_model.py describes its arithmetic.

Shapes: T tokens, K predicted tokens, C hidden size, H heads, D head size, V vocabulary.
"""

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from seqlm.training.layered_model import Segments

from .arithmetic import Affine, joined, joined_weights, layer_norm, looked_up, operand
from .attention import packed_attention, takes_rows
from .kernels.attention import attend, project_and_attend, project_and_attend_cast
from .kernels.gelu import gelu, product_gelu
from .kernels.products import CastMap, product
from .kernels.tiles import TILINGS, AttentionTiles

LEAST_CAPABILITY = (8, 0)
"""Least compute capability with products in bf16, that of A100."""
OPERANDS = "operands"
"""Name of the product of a layer that computes queries, keys and values."""


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
    tiles: AttentionTiles | None = None
    """Tiles of the attention kernels; None if torch's kernels compute attention."""


class PackedLayer(nn.Module, ABC):
    """Forward pass of a transformer layer over packed tokens.

    A family's layer derives from this class and from one of transformers' layers, and says which modules of
    the latter are the parts of the pass. A layer class that lacks a part cannot be instantiated.
    """

    branch_scale: float = 1.0
    """Factor on both branches before they are added to the residual stream."""
    cast: Mapping[str, CastMap] | None = None
    """Weights of ``linear_maps`` in the type of the products. None: they are cast in each pass."""
    before_gelu: str = ""
    """Name of the product that a GELU follows; empty if the layer has none."""
    has_gelu_kernel: bool = False
    """Whether the GELU is computed by the project's kernel."""

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
    def linear_maps(self) -> Mapping[str, tuple[nn.Module, ...]]:
        """Linear maps of the layer by the name of their product; those of one have the same input.

        ``OPERANDS`` names that of ``projections``.
        """

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

    @property
    def query_and_key_norms(self) -> tuple[nn.LayerNorm, nn.LayerNorm] | None:
        """Norms over the whole width of queries and of keys before they are split into heads, if any."""
        return None

    def attention_operands(
        self, normed: Tensor, rows: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values before rotation, (T, H, D), from the normed input (T, C).

        With ``rows``, there are queries of these tokens alone, (K, H, D).
        """
        if rows is None:
            queries, keys, values = self.mapped(OPERANDS, normed).chunk(3, dim=-1)
        elif self.cast is None:
            query, key, value = self.projections
            queries = query(normed[rows])
            keys, values = joined(normed, (key, value)).chunk(2, dim=-1)
        else:
            maps = self.cast[OPERANDS]
            num_outputs = len(maps.weight)
            size = num_outputs // 3
            queries = product(normed[rows], maps.outputs(0, size))
            keys, values = product(normed, maps.outputs(size, num_outputs)).chunk(2, dim=-1)
        norms = self.query_and_key_norms
        if norms is not None:
            queries = layer_norm(queries, norms[0]).to(queries.dtype)
            keys = layer_norm(keys, norms[1]).to(keys.dtype)
        return self._heads(queries), self._heads(keys), self._heads(values)

    def mapped(self, name: str, x: Tensor) -> Tensor:
        """Return the outputs of the linear maps of a product side by side.

        Args:
            name: name of the product in ``linear_maps``.
            x: (T, C) input.
        """
        if self.cast is None:
            return joined(x, self.linear_maps[name])
        maps = self.cast[name]
        return product(x.to(maps.weight.dtype), maps)

    def mapped_with_gelu(self, x: Tensor) -> Tensor:
        """Return the GELU of the outputs of the product ``before_gelu`` for the input (T, C)."""
        if not self.has_gelu_kernel:
            return F.gelu(self.mapped(self.before_gelu, x))
        if self.cast is None:
            return gelu(self.mapped(self.before_gelu, x))
        maps = self.cast[self.before_gelu]
        return product_gelu(x.to(maps.weight.dtype), maps)

    def _heads(self, x: Tensor) -> Tensor:
        """(T, C) -> (T, H, D)."""
        return x.unflatten(-1, (-1, self.head_size))

    def token_operands(
        self, normed: Tensor, ids: Tensor, rows: Tensor | None = None, *, by_token: bool = False
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values of all tokens before rotation, (T, H, D).

        Args:
            normed: (T, C) normed input in autocast's type; (V, C) for each token of the vocabulary, if
                ``by_token``.
            ids: (T,) ids of the tokens.
            rows: (K,) tokens of the queries, which are (K, H, D). None: all.
            by_token: whether queries, keys and values are looked up by the tokens' ids.
        """
        if not by_token:
            return self.attention_operands(normed, rows)
        queries, keys, values = self.attention_operands(normed)
        queries = looked_up(queries, ids if rows is None else ids[rows])
        return queries, looked_up(keys, ids), looked_up(values, ids)

    def attended_by_kernels(
        self, normed: Tensor, tokens: PackedTokens, tiles: AttentionTiles, *, by_token: bool
    ) -> Tensor:
        """Return the result of the project's attention, (T, C), joined with its product where it can be.

        Args:
            normed: (T, C) normed input, or (V, C) with ``by_token``.
            tokens: facts about the tokens.
            tiles: tiles of the kernels.
            by_token: whether queries, keys and values are looked up by the tokens' ids.
        """
        if not by_token and self.query_and_key_norms is None:
            if self.cast is not None:
                return project_and_attend_cast(
                    normed,
                    self.cast[OPERANDS],
                    tokens.cos,
                    tokens.sin,
                    tiles,
                    self.head_size,
                )
            weights = joined_weights(self.projections)
            if weights is not None:
                weight = operand(weights.weight)
                return project_and_attend(
                    normed, weight, weights.bias, tokens.cos, tokens.sin, tiles, self.head_size
                )
        queries, keys, values = self.token_operands(normed, tokens.ids, by_token=by_token)
        return attend(
            queries.flatten(1),
            keys.flatten(1),
            values.flatten(1),
            tokens.cos,
            tokens.sin,
            tiles,
            self.head_size,
        )

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
        by_token = vocabulary is not None
        query_rows = None  # kernels, and torch's on GPUs, compute all tokens
        if tokens.tiles is not None:
            context = self.attended_by_kernels(normed, tokens, tokens.tiles, by_token=by_token)
        else:
            query_rows = rows if takes_rows(normed) else None
            queries, keys, values = self.token_operands(
                normed, tokens.ids, query_rows, by_token=by_token
            )
            # The call stands here and not in a method: on a CPU a graph ends at it, and at its callers.
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


def has_attention_kernel(layer: PackedLayer) -> bool:
    """Return whether the attention kernels serve a layer.

    They need one of their head sizes and plain products, all of them with a bias or none.
    """
    projections = layer.projections
    is_plain = all(type(one) is nn.Linear for one in projections)
    if not is_plain or layer.head_size not in TILINGS:
        return False
    if len({one.bias is None for one in projections}) > 1:
        return False
    device = projections[0].weight.device
    return device.type != "cuda" or torch.cuda.get_device_capability(device) >= LEAST_CAPABILITY
