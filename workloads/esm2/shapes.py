"""Sizes that need no tensors: the published shapes of ESM-2, numbers of parameters, and shapes of packs."""

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

SHAPES = {
    # size: (layers, hidden size, heads); Lin et al. 2023, table S1. The feed-forward size is 4 * hidden.
    "8M": (6, 320, 20),
    "35M": (12, 480, 20),
    "150M": (30, 640, 20),
    "650M": (33, 1280, 20),
    "3B": (36, 2560, 40),
    "15B": (48, 5120, 40),
}


@dataclass(frozen=True)
class ModelShape:
    """Shape of an ESM-2, the numbers of parameters of transformers' modules, and what a layer keeps."""

    layers: int
    hidden: int
    heads: int

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "ModelShape":
        """Return the shape of a model's config.json."""
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads")
        return ModelShape(*(settings[name] for name in names))

    @property
    def layer_matrices(self) -> int:
        """Elements of a layer's matrices: four of hidden x hidden, and two of hidden x 4 hidden."""
        return 12 * self.hidden**2

    @property
    def matrix_biases(self) -> int:
        """Elements of the biases of a layer's matrices."""
        return 9 * self.hidden

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: matrices, their biases, and two layer norms."""
        return self.layer_matrices + self.matrix_biases + 4 * self.hidden

    @property
    def joined_matrices(self) -> int:
        """Elements of the matrices that are joined for a single product: queries, keys and values."""
        return 3 * self.hidden**2

    @property
    def largest_matrix(self) -> int:
        """Elements of the largest matrix of a layer, which may be a joined one."""
        return 4 * self.hidden**2

    @property
    def embedding(self) -> int:
        return 33 * self.hidden

    @property
    def last_norm(self) -> int:
        return 2 * self.hidden

    @property
    def language_head(self) -> int:
        """Parameters of the dense layer, layer norm and bias; the decoder's matrix is the embedding."""
        return self.hidden**2 + 3 * self.hidden + 33

    @property
    def contact_head(self) -> int:
        """Parameters of the contact head, which every ESM-2 has and which is never trained here."""
        return self.layers * self.heads + 1

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Return the parameters of a layer's adapters: rank x (inputs + outputs) for each target."""
        wide = {"intermediate", "output"}
        return sum(rank * (5 if target in wide else 2) * self.hidden for target in targets)

    @property
    def norm_numbers(self) -> int:
        """Numbers per token that norms inside of attention keep in fp32."""
        return 0

    def feed_forward_numbers(self, *, with_output: bool) -> int:
        """Return the numbers per token that the activation and, ``with_output``, the last product keep."""
        return (8 if with_output else 4) * self.hidden


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Room for the predicted tokens of a pack, so that shapes are constant.

    Eight standard deviations above the mean of a binomial count: exceeded once in 10**15 packs, and then
    the surplus tokens are left out of the loss.
    """
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(num_tokens * mask_fraction + 8 * deviation))
