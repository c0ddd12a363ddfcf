"""Slices into which NVIDIA's Multi-Instance GPU (MIG) divides GPUs of HyperPod's nodes on EKS.

A slice has memory and multiprocessors of its own, so that several jobs share a GPU without affecting each
other. NCCL connects no slices, so a job has one.

Profiles and their numbers per GPU: NVIDIA's MIG User Guide, "Supported MIG Profiles", and the layouts of its
GPU Operator 26.3.1 (assets/state-mig-manager/0400_configmap.yaml). B300: HyperPod's chart, part gpu-operator.
Instance types: ``INSTANCE_TYPE_MIG_PROFILES`` of HyperPod's CLI 3.9.0. AWS offers slices only on these.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from config.facts.instance_catalogue import InstanceType

CONFIG_LABEL = "nvidia.com/mig.config"
"""Label of a node with the layout of its GPUs, which the GPU Operator carries out."""
STATE_LABEL = "nvidia.com/mig.config.state"
"""Label of a node with the state of that work."""
STATE_DONE = "success"
RESOURCE_PREFIX = "nvidia.com/mig-"
"""Beginning of the resources that count slices, with the device plugin's strategy ``mixed``."""


@dataclass(frozen=True)
class GpuSlice:
    """Kind of slice of one GPU model."""

    profile: str
    """NVIDIA's name, for example ``1g.10gb``."""
    per_gpu: int
    """Number of such slices of a GPU."""
    sevenths: int
    """Share of the GPU's multiprocessors in use with MIG, in sevenths."""
    eighths: int
    """Share of the GPU's memory, in eighths."""

    @property
    def quota_type(self) -> str:
        """Name of the profile in SageMaker's quotas (``MIGProfileType``)."""
        return f"mig-{self.profile}"

    @property
    def layout(self) -> str:
        """Layout that divides all GPUs of a node into such slices."""
        return f"all-{self.profile}"

    @property
    def gpu_share(self) -> float:
        """Share of the GPU's multiprocessors, of which MIG leaves about an eighth unused.

        A slice 1g has 14 of an A100's 108, and 16 of an H100's 132 (``nvidia-smi mig -lgip``).
        """
        return self.sevenths / 8

    def memory_gib(self, hardware: InstanceType) -> float:
        """Return the memory of a slice, before what the driver keeps."""
        return hardware.accelerator_memory_gib * self.eighths / 8

    def per_node(self, hardware: InstanceType) -> int:
        return self.per_gpu * hardware.num_gpus


@dataclass(frozen=True)
class _ProfileSizes:
    """Gigabytes in the names of the profiles of one GPU model."""

    eighth: int
    quarter: int
    half: int
    whole: int

    def slices(self) -> dict[str, GpuSlice]:
        """Return the slices by profile. All models with seven slices have the same shares."""
        slices = (
            GpuSlice(f"1g.{self.eighth}gb", per_gpu=7, sevenths=1, eighths=1),
            GpuSlice(f"1g.{self.quarter}gb", per_gpu=4, sevenths=1, eighths=2),
            GpuSlice(f"2g.{self.quarter}gb", per_gpu=3, sevenths=2, eighths=2),
            GpuSlice(f"3g.{self.half}gb", per_gpu=2, sevenths=3, eighths=4),
            GpuSlice(f"4g.{self.half}gb", per_gpu=1, sevenths=4, eighths=4),
            GpuSlice(f"7g.{self.whole}gb", per_gpu=1, sevenths=7, eighths=8),
        )
        return {found.profile: found for found in slices}


_A100_40 = _ProfileSizes(eighth=5, quarter=10, half=20, whole=40)
_80 = _ProfileSizes(eighth=10, quarter=20, half=40, whole=80)
_H200 = _ProfileSizes(eighth=18, quarter=35, half=71, whole=141)
_B200 = _ProfileSizes(eighth=23, quarter=45, half=90, whole=180)
_GB200 = _ProfileSizes(eighth=23, quarter=47, half=93, whole=186)
_B300 = _ProfileSizes(eighth=34, quarter=67, half=135, whole=269)
_SLICES: Mapping[str, Mapping[str, GpuSlice]] = {
    name: sizes.slices()
    for name, sizes in {
        "ml.p4d.24xlarge": _A100_40,
        "ml.p4de.24xlarge": _80,
        "ml.p5.48xlarge": _80,
        "ml.p5e.48xlarge": _H200,
        "ml.p5en.48xlarge": _H200,
        "ml.p6-b200.48xlarge": _B200,
        "ml.p6-b300.48xlarge": _B300,
        "ml.p6e-gb200.36xlarge": _GB200,
    }.items()
}
SLICED_TYPES: tuple[str, ...] = tuple(_SLICES)
"""Instance types whose GPUs can be divided."""
NO_QUOTA_TYPES = frozenset({"ml.p6-b300.48xlarge"})
"""Types whose slices have no name in SageMaker's quotas (``MIGProfileType`` of botocore 1.44.8)."""


def slices_of(instance_type: str) -> Mapping[str, GpuSlice]:
    """Return the slices that the GPUs of a type can be divided into, by profile; empty if there are none."""
    return _SLICES.get(instance_type, {})


def share_of_gpu(profile: str, instance_type: str | None) -> float:
    """Return the share of a GPU that a slice takes; 0 for an unknown profile.

    Args:
        profile: profile of the slice.
        instance_type: type of the node, by which the shares of a profile of two GPU models differ; None takes
            the smaller share.
    """
    types = [instance_type] if instance_type in _SLICES else list(_SLICES)
    found = [slices_of(name)[profile] for name in types if name and profile in slices_of(name)]
    return 1 / max(one.per_gpu for one in found) if found else 0.0
