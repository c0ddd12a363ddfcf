"""Instance types: hardware facts of those that HyperPod offers, and names of those for endpoints.

``instance_types.csv`` has one row per type of SageMaker's ``ClusterInstanceType``. Its numbers are those of
EC2's DescribeInstanceTypes (memory of an accelerator rounded down to GiB), with two exceptions: a Trainium2
device has 96 GiB (EC2's documentation; the API gives its memory another meaning), and p6e-gb200, which the
API does not describe, has what EC2's documentation says: 17 network cards, 8 of them EFA with 400 Gbps; and
50 addresses per interface, as all types with several cards have. ``lustre_efa`` is from the FSx for Lustre
user guide, "Working with EFA-enabled file systems" (Nitro from version 4 on, and not trn2), with the Nitro
versions of the EC2 user guide, "Elastic Fabric Adapter". ``training_plan`` marks the types of SageMaker's
``ReservedCapacityInstanceType``.

Endpoints have instance types of SageMaker's hosting: those that the image runs on, which are x86-64 CPUs, and
NVIDIA GPUs from Ampere on. Their sizes are those of SageMaker's ``ProductionVariantInstanceType``.
"""

from __future__ import annotations

import csv
import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

Architecture = Literal["x86_64", "arm64"]

NEURON_CORES: Mapping[str, int] = {"Trainium": 2, "Trainium2": 4}
"""Logical NeuronCores of a device; a process has one. Of the eight cores of a Trainium2 device the runtime
joins two each by default (AWS Neuron documentation, "Trainium Architecture" and "Logical NeuronCore
configuration")."""


@dataclass(frozen=True)
class InstanceType:
    name: str
    """With its prefix, as ``ml.p5.48xlarge``."""
    architecture: Architecture
    vcpus: int
    threads_per_core: int
    """2 where hyper-threading can be on, and is unless turned off."""
    memory_gib: float
    accelerator: str | None
    """``A10G``, ``H100``, ``Trainium2``, ...; None for a type without."""
    num_accelerators: int
    accelerator_memory_gib: int
    """Of each accelerator."""
    num_network_cards: int
    addresses_per_interface: int
    """Most IPv4 addresses that a network interface can have."""
    num_efa: int
    """Most EFA interfaces it can have; 0 without EFA."""
    network_gbps: float
    """Of all its cards in each direction, in 1e9 bits/s; without bursts, where a small type has such."""
    lustre_efa: bool
    """Whether it can reach an FSx for Lustre file system over EFA."""
    training_plan: bool
    """Whether a training plan can reserve it."""

    @property
    def is_neuron(self) -> bool:
        """Whether its accelerators are AWS's own."""
        return self.accelerator in NEURON_CORES

    @property
    def processes_per_accelerator(self) -> int:
        """Of training: one a GPU, one a logical NeuronCore."""
        return NEURON_CORES.get(self.accelerator or "", 1)

    @property
    def num_gpus(self) -> int:
        """NVIDIA's."""
        return 0 if self.is_neuron else self.num_accelerators

    @property
    def num_neuron_devices(self) -> int:
        return self.num_accelerators if self.is_neuron else 0


def _read(path: Path) -> dict[str, InstanceType]:
    with path.open(newline="") as file:
        rows = [
            {**row, "name": row["instance_type"], "accelerator": row["accelerator"] or None}
            for row in csv.DictReader(file)
        ]
    return {made.name: made for made in TypeAdapter(list[InstanceType]).validate_python(rows)}


INSTANCE_TYPES: Mapping[str, InstanceType] = _read(Path(__file__).with_name("instance_types.csv"))


def instance_type(name: str) -> InstanceType:
    """Look a type up by its name, as ``ml.g5.8xlarge``.

    Raises:
        ValueError: if HyperPod does not offer it.
    """
    if name not in INSTANCE_TYPES:
        raise ValueError(
            f"instance type: got {name}; HyperPod offers {len(INSTANCE_TYPES)} types, which"
            f" config/facts/instance_types.csv lists; set {closest(name) or 'one of them'}"
        )
    return INSTANCE_TYPES[name]


def closest(name: str) -> str | None:
    """The type that a mistyped name, or one without ``ml.``, probably means."""
    prefixed = name if name.startswith("ml.") else f"ml.{name}"
    if prefixed in INSTANCE_TYPES:
        return prefixed
    return next(iter(difflib.get_close_matches(prefixed, INSTANCE_TYPES, n=1, cutoff=0.85)), None)


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
