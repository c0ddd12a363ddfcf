"""Instance types of SageMaker's hosting that the image runs on: x86-64 CPUs, and NVIDIA GPUs from Ampere on.

Sizes are those of SageMaker's ``ProductionVariantInstanceType``.
"""

from __future__ import annotations

_TO_16 = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge")
_UP_TO_32 = (*_TO_16, "24xlarge", "32xlarge")
_UP_TO_48 = (*_TO_16, "24xlarge", "48xlarge")
_GRAPHICS = ("xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge", "24xlarge", "48xlarge")

CPU_FAMILIES: dict[str, tuple[str, ...]] = {
    "c6i": _UP_TO_32,
    "c7i": _UP_TO_48,
    "m6i": _UP_TO_32,
    "m7i": _UP_TO_48,
}
GPU_FAMILIES: dict[str, tuple[str, ...]] = {
    "g5": _GRAPHICS,
    "g6": _GRAPHICS,
    "g6e": _GRAPHICS,
    "p4d": ("24xlarge",),
    "p4de": ("24xlarge",),
    "p5": ("4xlarge", "48xlarge"),
    "p5e": ("48xlarge",),
    "p5en": ("48xlarge",),
}
HOSTING_TYPES = tuple(
    f"ml.{family}.{size}" for family, sizes in (CPU_FAMILIES | GPU_FAMILIES).items() for size in sizes
)
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
"""Of SageMaker's images of hosts the one with driver 580, which the image's CUDA 13 needs
(``ProductionVariant.InferenceAmiVersion`` in SageMaker's API reference)."""


def has_gpus(instance_type: str) -> bool:
    return instance_type.split(".")[1] in GPU_FAMILIES
