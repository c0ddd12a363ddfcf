"""Share of a GPU's peak that others report for ESM-2 in bf16 (MFU), and what stands in where nobody does.

FLOPs are 6 per parameter and token and 12 L C per pair of attended positions, as this repository counts them.
None of these is a measurement of this code: a run's own results go before them (``--measured``).
"""

from __future__ import annotations

from dataclasses import dataclass

NEMO = "BioNeMo 2's documentation, chart of pre-training throughput"


@dataclass(frozen=True)
class Published:
    low: float
    high: float
    source: str
    is_assumed: bool = False


PUBLISHED: dict[tuple[str, str], Published] = {
    # (GPU, size). Low is plain PyTorch, high is Megatron or Transformer Engine, on the same GPUs.
    ("A100", "650M"): Published(0.35, 0.59, f"{NEMO}: PyTorch 24,500 and BioNeMo 42,900 tokens/s"),
    ("A100", "3B"): Published(0.34, 0.61, f"{NEMO}: PyTorch 6,200 and BioNeMo 11,000 tokens/s"),
    ("A100", "15B"): Published(0.33, 0.56, f"{NEMO}: PyTorch 1,150 and BioNeMo 1,930 tokens/s"),
    ("H100", "650M"): Published(0.21, 0.43, f"{NEMO}: PyTorch 46,000 and BioNeMo 96,000 tokens/s"),
    ("H100", "3B"): Published(0.24, 0.49, f"{NEMO}: PyTorch 12,800 and BioNeMo 26,800 tokens/s"),
    ("H100", "15B"): Published(0.23, 0.39, f"{NEMO}: PyTorch 2,430 and BioNeMo 4,150 tokens/s"),
    ("H200", "15B"): Published(
        0.15,
        0.55,
        "bionemo-recipes esm2_native_te: FSDP2 with FlashAttention 1,630, with packing 5,950 tokens/s",
    ),
    ("A10G", "8M"): Published(
        0.037,
        0.037,
        "AWS's guidance for ESM-2 on HyperPod: 2.3e15 FLOPs in 439 s on two A10G, half of it padding",
    ),
}
ASSUMED = Published(
    0.20,
    0.40,
    "assumed, as nobody publishes this size on this device: between plain PyTorch and BioNeMo on H100",
    is_assumed=True,
)


ASSUMED_SMALL = Published(
    0.04,
    0.20,
    "assumed, as nobody publishes it: models this small wait for launches and data; AWS's guidance has 3.7 %",
    is_assumed=True,
)
SMALL = ("8M", "35M")


def published_mfu(gpu: str, size: str | None) -> Published:
    """What is published; else what is assumed, which says so of itself."""
    return PUBLISHED.get((gpu, size or ""), ASSUMED_SMALL if size in SMALL else ASSUMED)
