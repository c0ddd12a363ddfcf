"""Facts about ESMC, without tensors."""

from seqlm.proteins.families.family import ModelFamily
from seqlm.proteins.model.shape import SQUARE_TARGETS, Dimensions, ModelShape

VOCABULARY = 64
"""Tokens, of which 33 are in use."""


def model_shape(dimensions: Dimensions) -> ModelShape:
    """Return the shape of an ESMC."""
    layers, hidden, heads, feed_forward = dimensions
    square = hidden**2
    matrix = (hidden, hidden)
    vector = (hidden,)
    norm = (vector, vector)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        layer_matrices=4 * square + 3 * hidden * feed_forward,  # three of SwiGLU
        matrix_biases=0,
        layer_norms=6 * hidden,  # two with biases, and those of queries and keys
        joined_matrices=3 * square
        + 2 * hidden * feed_forward,  # queries, keys and values; gate and up
        largest_matrix=2 * hidden * feed_forward,
        embedding=VOCABULARY * hidden,
        last_norm=hidden,
        # Dense layer, layer norm, and a decoder of its own.
        language_head=square + 3 * hidden + VOCABULARY * hidden + VOCABULARY,
        contact_head=0,
        adapted={
            **dict.fromkeys(SQUARE_TARGETS, 2 * hidden),
            "intermediate": 2 * (hidden + feed_forward),
            "output": hidden + feed_forward,
        },
        norm_numbers=2 * hidden,  # queries and keys before their norms
        activation_numbers=3 * feed_forward,  # gate, its SiLU and up
        product_numbers=feed_forward,
        layer_shapes=(
            *norm,
            *(matrix,) * 3,  # queries, keys and values
            *(vector,) * 2,  # norms of queries and of keys
            matrix,
            *norm,
            *((feed_forward, hidden),) * 2,  # gate and up
            (hidden, feed_forward),
        ),
        head_shapes=(matrix, vector, *norm, (VOCABULARY, hidden), (VOCABULARY,)),
        last_norm_shapes=(vector,),
    )


ESMC = ModelFamily(
    name="esmc",
    title="ESMC",
    model_type="esmc",
    model_module="seqlm.proteins.families.esmc.model",
    # 6B has the defaults of transformers' ``EsmcConfig``. The feed-forward sizes of the others follow its
    # rule: 8/3 of the hidden size, rounded up to a multiple of 256. Runs that start from a published model
    # read them from its config.json.
    sizes={
        "300M": Dimensions(layers=30, hidden=960, heads=15, feed_forward=2560),
        "600M": Dimensions(layers=36, hidden=1152, heads=18, feed_forward=3072),
        "6B": Dimensions(layers=80, hidden=2560, heads=40, feed_forward=6912),
    },
    shape=model_shape,
    max_residues=2046,
    contact_head=None,
    hub_prefix="biohub/ESMC-",
    published_name=r"\bESMC-(\d+[MB])\b",
    license="mit",
    # ProteinGym's scores of ESMC are left out: they were most likely made with the checkpoints of December
    # 2024, which are other models.
)
