"""Versions of AWS's software that are known to be bad on HyperPod, with dates and sources.

Preflight refuses them, and never recommends one. Add a row when a fault is published, and leave rows in
place, because an account may still have the version.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import date

from config.facts.addons import VPC_CNI

Version = tuple[int, ...]
SLURM = "Slurm"
PYXIS = "pyxis"
NVIDIA_DRIVER = "NVIDIA driver"
AWS_OFI_NCCL = "aws-ofi-nccl"
ACCELERATED_FAMILIES = ("ml.g", "ml.p")


@dataclass(frozen=True)
class KnownBad:
    """Range of versions with a fault."""

    name: str
    """Add-on of EKS, or software of HyperPod's image."""
    first: Version
    last: Version
    """Last version with the fault."""
    published: date
    """Date of the report."""
    fault: str
    source: str
    types: tuple[str, ...] = ()
    """Beginnings of the names of instance types that have the fault; empty is all."""

    @property
    def versions(self) -> str:
        """Range in messages."""
        return f"{_text(self.first)} to {_text(self.last)}"


KNOWN_BAD = (
    KnownBad(
        VPC_CNI,
        (1, 22, 1),
        (1, 22, 3),
        date(2026, 7, 2),
        "gives the primary address of a HyperPod node to pods, and the node is lost",
        "aws/amazon-vpc-cni-k8s issue 3753",
    ),
    KnownBad(
        SLURM,
        (25, 11),
        (25, 11, 2),
        date(2026, 7, 9),
        "ends in a loop by a signal if a partition names a topology whose file is empty, which HyperPod's"
        " image did with a group of GPUs",
        "aws-samples/sample-physical-ai-scaffolding-kit issue 23",
        ACCELERATED_FAMILIES,
    ),
    KnownBad(
        PYXIS,
        (0, 21, 0),
        (0, 21, 0),
        date(2026, 1, 5),
        "hangs jobs in containers with Slurm 25.11 (one report)",
        "NVIDIA/pyxis issue 175",
    ),
    KnownBad(
        NVIDIA_DRIVER,
        (595,),
        (595, 91, 7),
        date(2026, 8, 28),
        "has no direct transfers between GPUs and EFA on P6e, and NCCL ends",
        "NVIDIA/aicr issue 2383",
        ("ml.p6e",),
    ),
    KnownBad(
        NVIDIA_DRIVER,
        (575,),
        (575, 999),
        date(2025, 8, 1),
        "does not support the sixth generation of G instances",
        "awslabs/amazon-eks-ami pull request 2346",
        ("ml.g6",),
    ),
    KnownBad(
        AWS_OFI_NCCL,
        (1, 18, 0),
        (1, 18, 0),
        date(2026, 8, 27),
        "hangs in large broadcasts between nodes",
        "aws/deep-learning-containers pull request 6668",
        ACCELERATED_FAMILIES,
    ),
)
SOFTWARE: Mapping[str, re.Pattern[str]] = {
    SLURM: re.compile(r"slurm\W{0,3}(?:version\W{0,2})?v?(\d+(?:\.\d+)+)", re.IGNORECASE),
    PYXIS: re.compile(r"pyxis\W{0,3}v?(\d+(?:\.\d+)+)", re.IGNORECASE),
    NVIDIA_DRIVER: re.compile(r"driver\W{0,3}(?:version\W{0,2})?(\d{3}(?:\.\d+)+)", re.IGNORECASE),
    AWS_OFI_NCCL: re.compile(r"ofi.nccl\W{0,3}v?(\d+(?:\.\d+)+)", re.IGNORECASE),
}
"""Forms in which names and descriptions of images give versions of software."""


def parse_version(text: str) -> Version:
    """Return the numbers of a version such as v1.22.2-eksbuild.1, without its build.

    Raises:
        ValueError: if the text has no version.
    """
    found = re.match(r"v?(\d+(?:\.\d+)+)", text)
    if found is None:
        raise ValueError(f"version: got {text}; a form such as v1.22.2-eksbuild.1 is expected")
    return tuple(int(part) for part in found[1].split("."))


def known_fault(name: str, version: str, instance_type: str = "") -> KnownBad | None:
    """Return the fault of a version on an instance type, or None if none is known."""
    numbers = parse_version(version)
    for row in KNOWN_BAD:
        is_hit = not row.types or instance_type.startswith(row.types)
        if is_hit and row.name == name and row.first <= numbers <= row.last:
            return row
    return None


def image_faults(text: str, instance_type: str) -> Iterator[tuple[str, KnownBad]]:
    """Yield the versions in an image's name or description that are known to be bad on the type."""
    for name, form in SOFTWARE.items():
        for version in form.findall(text):
            fault = known_fault(name, version, instance_type)
            if fault:
                yield version, fault


def _text(version: Version) -> str:
    return ".".join(map(str, version))
