"""Published shapes of ESMC, without tensors."""

from __future__ import annotations

SHAPES = {
    # size: (layers, hidden size, feed-forward size)
    "300M": (30, 960, 2560),
    "600M": (36, 1152, 3072),
    "6B": (80, 2560, 6912),
}
"""6B has the defaults of transformers' ``EsmcConfig``. The feed-forward sizes of the others follow its rule:
8/3 of the hidden size, rounded up to a multiple of 256. ``model.init_from`` reads them from config.json."""
HEAD_SIZE = 64
