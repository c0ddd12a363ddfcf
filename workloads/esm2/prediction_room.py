"""How many predicted tokens a pack has room for."""

from __future__ import annotations

import math


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Room for the predicted tokens of a pack, so that shapes are constant.

    Eight standard deviations above the mean of a binomial count: exceeded once in 10**15 packs, and then
    the surplus tokens are left out of the loss.
    """
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(num_tokens * mask_fraction + 8 * deviation))
