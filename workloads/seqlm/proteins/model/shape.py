"""Shapes and numbers of parameters of protein language models, and shapes of packs, without tensors.

Standard library only, because machines without torch plan runs with it.
"""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import NamedTuple

SQUARE_TARGETS = ("query", "key", "value", "attention_output")
"""Names in ``lora.targets`` of the matrices of hidden x hidden."""
SPARE_DEVIATIONS = 8
"""Standard deviations of room above the mean number of predicted tokens. A binomial count exceeds it once in
10**15 packs; the surplus tokens are then left out of the loss."""


Shape = tuple[int, ...]
"""Shape of a parameter."""


class Dimensions(NamedTuple):
    """Dimensions of a transformer, which determine its shape within a family."""

    layers: int
    hidden: int
    heads: int
    feed_forward: int


@dataclass(frozen=True, kw_only=True)
class ModelShape:
    """Shape of a model, the numbers of parameters of transformers' modules, and what a layer keeps."""

    layers: int
    hidden: int
    heads: int
    layer_matrices: int
    """Elements of a layer's matrices."""
    matrix_biases: int
    """Elements of the biases of a layer's matrices."""
    layer_norms: int
    """Parameters of a layer's norms."""
    joined_matrices: int
    """Elements of the matrices that are joined for a single product."""
    largest_matrix: int
    """Elements of the largest matrix of a layer, which may be a joined one."""
    embedding: int
    """Parameters of the embedding of tokens."""
    last_norm: int
    """Parameters of the norm behind the last layer."""
    language_head: int
    """Parameters of the head of masked language models. A decoder that is the embedding is not counted."""
    contact_head: int
    """Parameters of the contact head, which is never trained here."""
    adapted: Mapping[str, int]
    """Inputs plus outputs of each matrix that can have an adapter, by its name in ``lora.targets``."""
    norm_numbers: int
    """Numbers per token that norms inside of attention keep in fp32."""
    activation_numbers: int
    """Numbers per token that the activation of the feed-forward block keeps."""
    product_numbers: int
    """Numbers per token that the block's last product keeps in addition."""
    layer_shapes: tuple[Shape, ...]
    """Shapes of a layer's parameters, in the order of their use."""
    head_shapes: tuple[Shape, ...]
    """Shapes of the parameters of the head of masked language models, in the order of their use. A decoder
    that is the embedding is left out."""
    last_norm_shapes: tuple[Shape, ...]
    """Shapes of the parameters of the norm behind the last layer."""

    @property
    def layer_parameters(self) -> int:
        return self.layer_matrices + self.matrix_biases + self.layer_norms

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Return the parameters of a layer's adapters: rank x (inputs + outputs) for each target."""
        return rank * sum(self.adapted[target] for target in targets)

    def feed_forward_numbers(self, *, with_output: bool) -> int:
        """Return the numbers per token that the activation and, ``with_output``, the last product keep."""
        return self.activation_numbers + self.product_numbers * with_output


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Return the room for the predicted tokens of a pack, which is the same for all packs of a size."""
    mean = num_tokens * mask_fraction
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(mean + SPARE_DEVIATIONS * deviation))
