"""Resources of a job on Slurm and Kubernetes: options, nodes and shared file systems."""

import argparse
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import PurePosixPath
from typing import Any, Self

from config.facts.instance_catalogue import InstanceType
from seqlm.runs.stages import STAGES


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """Options of a job that do not depend on the scheduler."""

    stage: str
    image: str | None = None
    nodes: str | None = None
    """Number of nodes, or a range; ``2-3`` starts with at least 2, and uses a third if available."""
    gpus_per_node: int | None = None
    folder: str | None = None
    """Folder on the shared file system that holds runs, data and downloads."""
    hang_seconds: int

    @classmethod
    def of(cls, options: argparse.Namespace, **changes: Any) -> Self:
        """Read the command-line options that have the fields' names; ``changes`` replace some."""
        given = vars(options) | changes
        return cls(**{field.name: given[field.name] for field in fields(cls)})


@dataclass(frozen=True, kw_only=True)
class Share:
    """Resources that a job uses on nodes of one type."""

    hardware: InstanceType
    sizes: range
    """Every number of nodes that the job may run on; empty if the number that was given is not allowed."""
    accelerators: int
    """Number of accelerators per node."""

    @property
    def gpus(self) -> int:
        """Return the number of NVIDIA GPUs per node."""
        return 0 if self.hardware.is_neuron else self.accelerators

    @property
    def neuron_devices(self) -> int:
        """Return the number of Neuron devices per node."""
        return self.accelerators - self.gpus

    @property
    def num_processes(self) -> int:
        """Return the number of processes per node."""
        return max(1, self.accelerators * self.hardware.processes_per_accelerator)


DATA_CPUS = 8
"""Cores for a preparation of data; more do not help (docs/architecture.md, "Data")."""


@dataclass(frozen=True)
class SharedFiles:
    """File systems that all nodes or pods of a cluster mount."""

    mounts: Sequence[str]
    """Mount points."""
    who: str
    """``nodes`` or ``pods``, for messages."""

    @property
    def where(self) -> str:
        """Return the mount points for a message."""
        return " or ".join(self.mounts)

    def has(self, path: str) -> bool:
        """Return whether a path is on one of the file systems."""
        place = PurePosixPath(path)
        return ".." not in place.parts and any(place.is_relative_to(mount) for mount in self.mounts)

    def folder_problems(self, folder: str) -> Iterator[str]:
        """Yield what is wrong with the folder of the runs."""
        if not self.has(folder):
            yield f"--folder: got {folder}; {self.who} share {self.where}"


def listed(problems: Sequence[str]) -> str:
    """Return the message for several problems, one per line."""
    lines = "\n".join(f"  {problem}" for problem in problems)
    return f"{len(problems)} problem(s)\n{lines}"


def accelerators_of(hardware: InstanceType, wanted: Wanted) -> int:
    """Return the number of accelerators that a job takes of each node."""
    if STAGES[wanted.stage].one_process:
        return 0
    return hardware.num_accelerators if wanted.gpus_per_node is None else wanted.gpus_per_node


def accelerator_problems(hardware: InstanceType, wanted: Wanted, *, option: str) -> Iterator[str]:
    """Yield what is wrong with the accelerators of a job.

    Args:
        hardware: instance type of the nodes.
        wanted: options of the job.
        option: option that chose the nodes, for messages.
    """
    found = hardware.num_accelerators
    number = accelerators_of(hardware, wanted)
    if hardware.is_neuron and number and not STAGES[wanted.stage].on_neuron:
        allowed = ", ".join(name for name, stage in STAGES.items() if stage.on_neuron)
        yield (
            f"{option}: {hardware.name} has {hardware.accelerator}, on which only {allowed} "
            f"runs; {wanted.stage} takes NVIDIA GPUs, or CPUs with --gpus-per-node 0"
        )
    elif hardware.is_neuron and number not in (0, found):
        yield (
            f"--gpus-per-node: got {number}; a job has the {found} devices of {hardware.name} for itself: "
            "give nothing, or 0 to run on CPUs"
        )
    elif not 0 <= number <= found:
        yield f"--gpus-per-node: got {number}; {hardware.name} has {found}"


@dataclass(frozen=True)
class AvailableNodes:
    """Nodes from which a job takes some."""

    number: int
    """Number of nodes in the cluster file."""
    name: str
    """Partition or groups with these nodes, for messages."""
    own: int | None = None
    """Number of nodes of the team's quota; None if there is no quota."""


def sizes_of(wanted: Wanted, nodes: AvailableNodes) -> range:
    """Return every number of nodes that a job may run on; empty if the given number is not allowed."""
    if any(size_problems(wanted, nodes)):
        return range(0)
    fewest, most = _asked(wanted, nodes)
    return range(fewest, most + 1)


def size_problems(wanted: Wanted, nodes: AvailableNodes) -> Iterator[str]:
    """Yield what is wrong with the number of nodes."""
    fewest, most = _asked(wanted, nodes)
    given = wanted.nodes or most
    if not 1 <= fewest <= most:
        yield f"NODES: got {given}; expected a number from 1, or a range such as 2-3"
    elif STAGES[wanted.stage].one_process and most != 1:
        yield f"NODES: got {given}; data are prepared on 1 node"
    elif most > nodes.number:
        yield f"NODES: got {given}; {nodes.name} has {nodes.number} in the cluster file"


def _asked(wanted: Wanted, nodes: AvailableNodes) -> tuple[int, int]:
    """Return the fewest and the most nodes of the request; (0, 0) if the text is no number or range."""
    if not wanted.nodes:
        number = 1
        if STAGES[wanted.stage].on_all_nodes:
            number = min(nodes.number, nodes.own or nodes.number)
        return number, number
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", wanted.nodes)
    if found is None:
        return 0, 0
    return int(found[1]), int(found[2] or found[1])
