"""Resources of a job on Slurm and Kubernetes: options, nodes and shared file systems."""

import argparse
import re
from collections.abc import Sequence
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
    """Every number of nodes that the job may run on; none if there is a problem."""
    accelerators: int
    """Number per node."""

    @property
    def gpus(self) -> int:
        """Number per node."""
        return 0 if self.hardware.is_neuron else self.accelerators

    @property
    def neuron_devices(self) -> int:
        """Number per node."""
        return self.accelerators - self.gpus

    @property
    def num_processes(self) -> int:
        """Number per node."""
        return max(1, self.accelerators * self.hardware.processes_per_accelerator)


DATA_CPUS = 8
"""Cores for a preparation of data; more do not help (docs/architecture.md, "Data")."""


@dataclass(frozen=True)
class SharedFiles:
    """File systems that all nodes or pods of a cluster have."""

    mounts: Sequence[str]
    who: str
    """``nodes`` or ``pods``, for messages."""

    @property
    def where(self) -> str:
        return " or ".join(self.mounts)

    def has(self, path: str) -> bool:
        place = PurePosixPath(path)
        return ".." not in place.parts and any(place.is_relative_to(mount) for mount in self.mounts)

    def folder_problems(self, folder: str) -> list[str]:
        return [] if self.has(folder) else [f"--folder: got {folder}; {self.who} share {self.where}"]


def listed(problems: list[str]) -> str:
    return f"{len(problems)} problem(s)\n" + "\n".join(f"  {problem}" for problem in problems)


def accelerators_of(hardware: InstanceType, wanted: Wanted, problems: list[str], *, option: str) -> int:
    """Return the accelerators that a job takes of each node; ``option`` is the one that chose the nodes."""
    stage = STAGES[wanted.stage]
    found = hardware.num_accelerators
    if stage.one_process:
        return 0
    number = found if wanted.gpus_per_node is None else wanted.gpus_per_node
    if hardware.is_neuron and number and not stage.on_neuron:
        allowed = ", ".join(name for name, each in STAGES.items() if each.on_neuron)
        problems.append(
            f"{option}: {hardware.name} has {hardware.accelerator}, on which only {allowed} "
            f"runs; {wanted.stage} takes NVIDIA GPUs, or CPUs with --gpus-per-node 0"
        )
    elif hardware.is_neuron and number not in (0, found):
        problems.append(
            f"--gpus-per-node: got {number}; a job has the {found} devices of {hardware.name} for itself: "
            "give nothing, or 0 to run on CPUs"
        )
    elif not 0 <= number <= found:
        problems.append(f"--gpus-per-node: got {number}; {hardware.name} has {found}")
    return number


def sizes_of(wanted: Wanted, there: int, problems: list[str], *, own: int | None = None, who: str) -> range:
    """Every number of nodes that a job may run on; none if there is a problem.

    Args:
        wanted: the job's options.
        there: number of nodes in the cluster file.
        problems: what is wrong is added to them.
        own: number of nodes that training takes without ``nodes``; all that are there by default.
        who: the partition or groups with these nodes, for messages.
    """
    stage = STAGES[wanted.stage]
    asked = wanted.nodes or str(min(there, own or there) if stage.on_all_nodes else 1)
    found = re.fullmatch(r"(\d+)(?:-(\d+))?", asked)
    fewest, most = (int(found[1]), int(found[2] or found[1])) if found else (0, 0)
    if found is None or not 1 <= fewest <= most:
        problems.append(f"NODES: got {asked}; expected a number from 1, or a range such as 2-3")
    elif stage.one_process and most != 1:
        problems.append(f"NODES: got {asked}; data are prepared on 1 node")
    elif most > there:
        problems.append(f"NODES: got {asked}; {who} has {there} in the cluster file")
    else:
        return range(fewest, most + 1)
    return range(0)
