"""Published shapes of ESMC and numbers of parameters, without tensors."""

from seqlm.proteins.families.esm2.facts import SQUARE_TARGETS, ModelShape

SHAPES = {
    # size: (layers, hidden size, heads, feed-forward size)
    "300M": (30, 960, 15, 2560),
    "600M": (36, 1152, 18, 3072),
    "6B": (80, 2560, 40, 6912),
}
"""6B has the defaults of transformers' ``EsmcConfig``. The feed-forward sizes of the others follow its rule:
8/3 of the hidden size, rounded up to a multiple of 256. ``model.init_from`` reads them from config.json."""


def model_shape(layers: int, hidden: int, heads: int, feed_forward: int) -> ModelShape:
    """Return the shape of an ESMC."""
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        layer_matrices=4 * hidden**2 + 3 * hidden * feed_forward,  # four of hidden x hidden, three of SwiGLU
        matrix_biases=0,
        layer_norms=6 * hidden,  # two with biases, and those of queries and keys
        joined_matrices=3 * hidden**2 + 2 * hidden * feed_forward,  # queries, keys and values; gate and up
        largest_matrix=2 * hidden * feed_forward,
        embedding=64 * hidden,
        last_norm=hidden,
        language_head=hidden**2 + 3 * hidden + 64 * hidden + 64,  # dense layer, layer norm, own decoder
        contact_head=0,
        adapted=dict.fromkeys(SQUARE_TARGETS, 2 * hidden)
        | {"intermediate": 2 * (hidden + feed_forward), "output": hidden + feed_forward},
        norm_numbers=2 * hidden,  # queries and keys before them
        activation_numbers=3 * feed_forward,  # gate, its SiLU and up
        product_numbers=feed_forward,
    )
