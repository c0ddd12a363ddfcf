"""What GPUs can compute at most."""

from __future__ import annotations

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
