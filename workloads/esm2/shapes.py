"""Sizes that need no tensors: the published shapes of ESM-2, shapes of packs, and peak rates of devices."""

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
PEAK_BF16_FLOPS = {
    # Dense bf16 tensor-core rates in FLOP/s, from NVIDIA's data sheets (half of the sparse figures).
    "A10G": 70e12,
    "A100": 312e12,
    "L4": 121e12,
    "L40S": 362e12,
    "H100": 989e12,
    "H200": 989e12,
    "B200": 2250e12,
}
NEURON_CORE_BF16_FLOPS = {
    # Of one logical NeuronCore, dense: half of a Trainium (190 TFLOP/s), a quarter of a Trainium2 (667
    # TFLOP/s). AWS Neuron documentation, "Trainium Architecture" and "Trainium2 Architecture".
    "Trainium": 95e12,
    "Trainium2": 166.75e12,
}


def num_rows(num_tokens: int, mask_fraction: float) -> int:
    """Room for the predicted tokens of a pack, so that shapes are constant.

    Eight standard deviations above the mean of a binomial count: exceeded once in 10**15 packs, and then
    the surplus tokens are left out of the loss.
    """
    deviation = math.sqrt(num_tokens * mask_fraction * (1 - mask_fraction))
    return min(num_tokens, math.ceil(num_tokens * mask_fraction + 8 * deviation))
