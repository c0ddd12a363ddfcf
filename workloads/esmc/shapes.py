"""Published shapes of ESMC and numbers of parameters, without tensors."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from workloads.esm2.shapes import ModelShape

SHAPES = {
    # size: (layers, hidden size, heads, feed-forward size)
    "300M": (30, 960, 15, 2560),
    "600M": (36, 1152, 18, 3072),
    "6B": (80, 2560, 40, 6912),
}
"""6B has the defaults of transformers' ``EsmcConfig``. The feed-forward sizes of the others follow its rule:
8/3 of the hidden size, rounded up to a multiple of 256. ``model.init_from`` reads them from config.json."""


@dataclass(frozen=True)
class EsmcShape(ModelShape):
    """Shape of an ESMC, the numbers of parameters of transformers' modules, and what a layer keeps."""

    feed_forward: int

    @staticmethod
    def of(settings: Mapping[str, Any]) -> "EsmcShape":
        names = ("num_hidden_layers", "hidden_size", "num_attention_heads", "intermediate_size")
        return EsmcShape(*(settings[name] for name in names))

    @property
    def layer_matrices(self) -> int:
        """Elements of a layer's matrices: four of hidden x hidden, and three of SwiGLU."""
        return 4 * self.hidden**2 + 3 * self.hidden * self.feed_forward

    @property
    def matrix_biases(self) -> int:
        return 0

    @property
    def layer_parameters(self) -> int:
        """Parameters of a layer: matrices, two layer norms with biases, and those of queries and keys."""
        return self.layer_matrices + 6 * self.hidden

    @property
    def joined_matrices(self) -> int:
        """Elements of the joined matrices: queries, keys and values, and gate and up."""
        return 3 * self.hidden**2 + 2 * self.hidden * self.feed_forward

    @property
    def largest_matrix(self) -> int:
        return 2 * self.hidden * self.feed_forward

    @property
    def embedding(self) -> int:
        return 64 * self.hidden

    @property
    def last_norm(self) -> int:
        return self.hidden

    @property
    def language_head(self) -> int:
        """Parameters of the dense layer, the layer norm and a decoder of its own."""
        return self.hidden**2 + 3 * self.hidden + 64 * self.hidden + 64

    @property
    def contact_head(self) -> int:
        return 0

    def adapter_parameters(self, rank: int, targets: Collection[str]) -> int:
        """Return the parameters of a layer's adapters; ``intermediate`` stands for gate and up."""
        products = {"intermediate": 2, "output": 1}
        wide = sum(products.get(target, 0) for target in targets) * (self.hidden + self.feed_forward)
        square = sum(target not in products for target in targets) * 2 * self.hidden
        return rank * (wide + square)

    @property
    def norm_numbers(self) -> int:
        """Numbers per token that the norms keep: queries and keys before them."""
        return 2 * self.hidden

    def feed_forward_numbers(self, *, with_output: bool) -> int:
        """Return the numbers per token that SwiGLU keeps: gate, its SiLU and up, and their product."""
        return (4 if with_output else 3) * self.feed_forward
