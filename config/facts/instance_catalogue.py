"""Instance types that HyperPod offers, with hardware facts, and instance types of endpoints.

``instance_types.csv`` has one row per type of SageMaker's ``ClusterInstanceType``. Its numbers come from
EC2's DescribeInstanceTypes (memory of an accelerator rounded down to GiB), with two exceptions:

* A Trainium2 device has 96 GiB according to EC2's documentation. The API gives its memory another meaning.
* The API does not describe p6e-gb200. According to EC2's documentation it has 17 network cards, 8 of them EFA
  with 400 Gbps. Like all types with several cards, it has 50 addresses per interface.

``lustre_efa`` follows the FSx for Lustre user guide, "Working with EFA-enabled file systems" (Nitro version 4
or later, except trn2), with the Nitro versions of the EC2 user guide, "Elastic Fabric Adapter".
``training_plan`` marks the types of SageMaker's ``ReservedCapacityInstanceType``.

Endpoints use those types of SageMaker hosting that the image supports: x86-64 CPUs, and NVIDIA GPUs from
Ampere on. Their sizes follow SageMaker's ``ProductionVariantInstanceType``.
"""

import csv
import difflib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Literal

from pydantic import TypeAdapter

Architecture = Literal["x86_64", "arm64"]

NEURON_CORES: Mapping[str, int] = {"Trainium": 2, "Trainium2": 4}
"""Logical NeuronCores per device; each process has one. By default the runtime joins the eight cores of a
Trainium2 device in pairs (AWS Neuron documentation, "Trainium Architecture" and "Logical NeuronCore
configuration")."""


@dataclass(frozen=True)
class InstanceType:
    name: str
    """Name with its prefix, for example ``ml.p5.48xlarge``."""
    architecture: Architecture
    vcpus: int
    threads_per_core: int
    """Threads per core: 2 if hyper-threading is available, which is then on by default."""
    memory_gib: float
    accelerator: str | None
    """``A10G``, ``H100``, ``Trainium2``, ...; None for a type without accelerators."""
    num_accelerators: int
    accelerator_memory_gib: int
    """Memory of each accelerator."""
    num_network_cards: int
    addresses_per_interface: int
    """Largest number of IPv4 addresses per network interface."""
    num_efa: int
    """Largest number of EFA interfaces; 0 without EFA."""
    network_gbps: float
    """Bandwidth of all cards together in each direction, in 1e9 bits/s, without the bursts of small types."""
    lustre_efa: bool
    """Whether the type can reach an FSx for Lustre file system over EFA."""
    training_plan: bool
    """Whether a training plan can reserve the type."""

    @property
    def is_neuron(self) -> bool:
        """Return whether the accelerators are AWS's own."""
        return self.accelerator in NEURON_CORES

    @property
    def device_plugin(self) -> str:
        """Vendor whose plugin offers the accelerators to jobs: ``NVIDIA``, ``AWS Neuron`` or ``none``."""
        if not self.accelerator:
            return "none"
        return "AWS Neuron" if self.is_neuron else "NVIDIA"

    @property
    def processes_per_accelerator(self) -> int:
        """Training processes per accelerator: one per GPU or logical NeuronCore."""
        return NEURON_CORES.get(self.accelerator or "", 1)

    @property
    def num_gpus(self) -> int:
        """Number of NVIDIA GPUs."""
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
    types = TypeAdapter(list[InstanceType]).validate_python(rows)
    return {instance.name: instance for instance in types}


INSTANCE_TYPES: Mapping[str, InstanceType] = _read(Path(__file__).with_name("instance_types.csv"))


def instance_type(name: str) -> InstanceType:
    """Look up a type by its name, for example ``ml.g5.8xlarge``.

    Raises:
        ValueError: if HyperPod does not offer it.
    """
    if name not in INSTANCE_TYPES:
        raise ValueError(
            f"instance type: got {name}; HyperPod offers {len(INSTANCE_TYPES)} types, which"
            f" config/facts/instance_types.csv lists; set {closest(name) or 'one of them'}"
        )
    return INSTANCE_TYPES[name]


def common_hardware(names: Sequence[str]) -> InstanceType:
    """Return what each node of a group with these types has: the smallest value of each number.

    The accelerator is that of the type with the least memory per accelerator.

    Args:
        names: one or more types whose architecture and vendor of accelerators agree.

    Raises:
        ValueError: if HyperPod does not offer one of them.
    """
    types = [instance_type(name) for name in names]
    if len(types) == 1:
        return types[0]
    smallest = min(types, key=lambda found: found.accelerator_memory_gib)
    numbers = {
        field.name: min(getattr(found, field.name) for found in types)
        for field in fields(InstanceType)
        if field.type in ("int", "float", int, float)
    }
    return replace(
        smallest,
        name=any_of(names),
        lustre_efa=all(found.lustre_efa for found in types),
        training_plan=all(found.training_plan for found in types),
        **numbers,
    )


def any_of(names: Sequence[str]) -> str:
    """Return the types of a group as text, for example ``ml.p5.48xlarge or ml.p5e.48xlarge``."""
    return " or ".join(names)


def known(names: Sequence[str]) -> list[InstanceType]:
    """Return those of the types that HyperPod offers."""
    return [INSTANCE_TYPES[name] for name in names if name in INSTANCE_TYPES]


def closest(name: str) -> str | None:
    """Return the type that a mistyped name, or a name without ``ml.``, probably means."""
    prefixed = name if name.startswith("ml.") else f"ml.{name}"
    if prefixed in INSTANCE_TYPES:
        return prefixed
    alike = [known for known in INSTANCE_TYPES if _hardware(known) == _hardware(prefixed)]
    return next(iter(difflib.get_close_matches(prefixed, alike, n=1, cutoff=0.85)), None)


def _hardware(name: str) -> list[str]:
    """Return the family, and the numbers of generation and size, which no one mistypes for another's."""
    return re.findall(r"^ml\.[a-z]+|\d+", name)


_TO_16 = ("large", "xlarge", "2xlarge", "4xlarge", "8xlarge", "12xlarge", "16xlarge")
_UP_TO_32 = (*_TO_16, "24xlarge", "32xlarge")
_UP_TO_48 = (*_TO_16, "24xlarge", "48xlarge")
_GRAPHICS = (
    "xlarge",
    "2xlarge",
    "4xlarge",
    "8xlarge",
    "12xlarge",
    "16xlarge",
    "24xlarge",
    "48xlarge",
)

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
    f"ml.{family}.{size}"
    for family, sizes in (CPU_FAMILIES | GPU_FAMILIES).items()
    for size in sizes
)
GPU_AMI = "al2023-ami-sagemaker-inference-gpu-4-1"
"""SageMaker's host image with driver 580, which the container's CUDA 13 requires
(``ProductionVariant.InferenceAmiVersion`` in SageMaker's API reference)."""


def has_gpus(instance_type: str) -> bool:
    return instance_type.split(".")[1] in GPU_FAMILIES
