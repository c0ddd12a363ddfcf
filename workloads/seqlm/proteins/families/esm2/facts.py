"""Sizes that need no tensors: the published shapes of ESM-2, numbers of parameters, and shapes of packs."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass

SHAPES = {
    # size: (layers, hidden size, heads); Lin et al. 2023, table S1. The feed-forward size is 4 * hidden.
    "8M": (6, 320, 20),
    "35M": (12, 480, 20),
    "150M": (30, 640, 20),
    "650M": (33, 1280, 20),
    "3B": (36, 2560, 40),
    "15B": (48, 5120, 40),
}
SQUARE_TARGETS = ("query", "key", "value", "attention_output")
"""Names in ``lora.targets`` of the matrices of hidden x hidden."""


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
    """Parameters of the head of masked language models, but not of a matrix that is the embedding."""
    contact_head: int
    """Parameters of the contact head, which is never trained here."""
    adapted: Mapping[str, int]
    """Inputs plus outputs of the matrices that an adapter goes beside, by their names in ``lora.targets``."""
    norm_numbers: int
    """Numbers per token that norms inside of attention keep in fp32."""
    activation_numbers: int
    """Numbers per token that the activation of the feed-forward block keeps."""
    product_numbers: int
    """Numbers per token that the block's last product keeps in addition."""

    @property
    def layer_parameters(self) -> int:
        return self.layer_matrices + self.matrix_biases + self.layer_norms

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Return the parameters of a layer's adapters: rank x (inputs + outputs) for each target."""
        return rank * sum(self.adapted[target] for target in targets)

    def feed_forward_numbers(self, *, with_output: bool) -> int:
        """Return the numbers per token that the activation and, ``with_output``, the last product keep."""
        return self.activation_numbers + self.product_numbers * with_output


def model_shape(layers: int, hidden: int, heads: int) -> ModelShape:
    """Return the shape of an ESM-2."""
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        layer_matrices=12 * hidden**2,  # four of hidden x hidden, two of hidden x 4 hidden
        matrix_biases=9 * hidden,
        layer_norms=4 * hidden,
        joined_matrices=3 * hidden**2,  # queries, keys and values
        largest_matrix=4 * hidden**2,
        embedding=33 * hidden,
        last_norm=2 * hidden,
        language_head=hidden**2 + 3 * hidden + 33,  # dense layer, layer norm and bias
        contact_head=layers * heads + 1,
        adapted=dict.fromkeys(SQUARE_TARGETS, 2 * hidden)
        | dict.fromkeys(("intermediate", "output"), 5 * hidden),
        norm_numbers=0,
        activation_numbers=4 * hidden,
        product_numbers=4 * hidden,
    )


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Room for the predicted tokens of a pack, so that shapes are constant.

    Eight standard deviations above the mean of a binomial count: exceeded once in 10**15 packs, and then
    the surplus tokens are left out of the loss.
    """
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(num_tokens * mask_fraction + 8 * deviation))
