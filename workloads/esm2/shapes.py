"""Sizes that need no tensors: the published shapes of ESM-2, and shapes of packs."""

from __future__ import annotations

import math

SHAPES = {
    # size: (layers, hidden size, heads); Lin et al. 2023, table S1. The feed-forward size is 4 * hidden.
    "8M": (6, 320, 20),
    "35M": (12, 480, 20),
    "150M": (30, 640, 20),
    "650M": (33, 1280, 20),
    "3B": (36, 2560, 40),
    "15B": (48, 5120, 40),
}


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Room for the predicted tokens of a pack, so that shapes are constant.

    Eight standard deviations above the mean of a binomial count: exceeded once in 10**15 packs, and then
    the surplus tokens are left out of the loss.
    """
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(num_tokens * mask_fraction + 8 * deviation))
