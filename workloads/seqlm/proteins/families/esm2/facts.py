"""Facts about ESM-2 (Lin et al. 2023, doi:10.1126/science.ade2574), without tensors."""

from seqlm.proteins.families.family import ModelFamily, ProteinGymScores
from seqlm.proteins.model.shape import SQUARE_TARGETS, Dimensions, ModelShape

VOCABULARY = 33
"""Tokens, all of them in use."""


def model_shape(dimensions: Dimensions) -> ModelShape:
    """Return the shape of an ESM-2."""
    layers, hidden, heads, feed_forward = dimensions
    square = hidden**2
    vector = (hidden,)
    square_and_bias = ((hidden, hidden), vector)
    norm = (vector, vector)
    return ModelShape(
        layers=layers,
        hidden=hidden,
        heads=heads,
        layer_matrices=4 * square + 2 * hidden * feed_forward,
        matrix_biases=5 * hidden + feed_forward,
        layer_norms=4 * hidden,
        joined_matrices=3 * square,  # queries, keys and values
        largest_matrix=max(3 * square, hidden * feed_forward),
        embedding=VOCABULARY * hidden,
        last_norm=2 * hidden,
        language_head=square + 3 * hidden + VOCABULARY,  # dense layer, layer norm and bias
        contact_head=layers * heads + 1,
        adapted={
            **dict.fromkeys(SQUARE_TARGETS, 2 * hidden),
            "intermediate": hidden + feed_forward,
            "output": hidden + feed_forward,
        },
        norm_numbers=0,
        activation_numbers=feed_forward,
        product_numbers=feed_forward,
        layer_shapes=(
            *norm,
            *square_and_bias * 4,  # queries, keys, values and the projection
            *norm,
            (feed_forward, hidden),
            (feed_forward,),
            (hidden, feed_forward),
            vector,
        ),
        head_shapes=(*square_and_bias, *norm, (VOCABULARY,)),
        last_norm_shapes=norm,
    )


ESM2 = ModelFamily(
    name="esm2",
    title="ESM-2",
    model_type="esm",
    model_module="seqlm.proteins.families.esm2.model",
    # Table S1 of Lin et al. 2023; the feed-forward size is 4 * hidden.
    sizes={
        "8M": Dimensions(layers=6, hidden=320, heads=20, feed_forward=1280),
        "35M": Dimensions(layers=12, hidden=480, heads=20, feed_forward=1920),
        "150M": Dimensions(layers=30, hidden=640, heads=20, feed_forward=2560),
        "650M": Dimensions(layers=33, hidden=1280, heads=20, feed_forward=5120),
        "3B": Dimensions(layers=36, hidden=2560, heads=40, feed_forward=10240),
        "15B": Dimensions(layers=48, hidden=5120, heads=40, feed_forward=20480),
    },
    shape=model_shape,
    max_residues=1022,
    contact_head="esm.contact_head",
    hub_prefix="facebook/esm2_",
    published_name=r"\besm2_t\d+_(\d+[MB])_UR50D",
    license="mit",
    proteingym={
        "facebook/esm2_t6_8M_UR50D": ProteinGymScores(mean=0.226, one_assay=0.399),
        "facebook/esm2_t12_35M_UR50D": ProteinGymScores(mean=0.321, one_assay=0.557),
        "facebook/esm2_t30_150M_UR50D": ProteinGymScores(mean=0.387, one_assay=0.661),
        "facebook/esm2_t33_650M_UR50D": ProteinGymScores(mean=0.414, one_assay=0.731),
        "facebook/esm2_t36_3B_UR50D": ProteinGymScores(mean=0.406, one_assay=0.589),
        "facebook/esm2_t48_15B_UR50D": ProteinGymScores(mean=0.400, one_assay=0.430),
    },
)
