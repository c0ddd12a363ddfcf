"""Placement of a run: one group of a cluster, or some of its nodes."""

import dataclasses
from dataclasses import dataclass

from config.cluster import InstanceGroup
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksInstanceGroup
from config.facts.gpu_slices import GpuSlice
from config.facts.instance_catalogue import InstanceType, known
from tools.plan.memory import Layout
from tools.plan.speed import PEAKS, speed


@dataclass(frozen=True)
class Place:
    group: InstanceGroup
    hardware: InstanceType
    """Hardware of each node; of several types the smallest memory. The accelerator is any of them until
    ``with_slowest_gpu`` sets it."""
    num_nodes: int

    @property
    def most_nodes(self) -> int:
        """Number of existing nodes, or of nodes that Karpenter may add."""
        grown = self.group.max_instances if isinstance(self.group, EksInstanceGroup) else None
        return max(self.group.num_instances, grown or 0)

    @property
    def gpu(self) -> str:
        """Accelerator, by its name in ``PEAKS``."""
        assert (
            self.hardware.accelerator is not None
        )  # ``find_place`` skips groups without accelerators
        return self.hardware.accelerator

    @property
    def gpu_slice(self) -> GpuSlice | None:
        """Slice of a GPU that the run has; None for whole GPUs."""
        return self.group.gpu_slice if isinstance(self.group, EksInstanceGroup) else None

    @property
    def gpu_share(self) -> float:
        """Share of a GPU's multiprocessors that one process has."""
        return self.gpu_slice.gpu_share if self.gpu_slice else 1.0

    @property
    def nodes_paid(self) -> float:
        """Number of nodes whose price belongs to the run."""
        return 1 / self.gpu_slice.per_node(self.hardware) if self.gpu_slice else self.num_nodes

    @property
    def gpus_paid(self) -> float:
        """Number of GPUs whose energy belongs to the run."""
        return 1 / self.gpu_slice.per_gpu if self.gpu_slice else self.world_size

    @property
    def device(self) -> str:
        """Device of one process, as text for people."""
        if self.gpu_slice:
            return f"slice {self.gpu_slice.profile} of {self.gpu}"
        return f"{self.gpu} NeuronCore" if self.hardware.is_neuron else self.gpu

    @property
    def device_memory_gib(self) -> float:
        if self.gpu_slice:
            return self.gpu_slice.memory_gib(self.hardware)
        return self.hardware.accelerator_memory_gib // self.hardware.processes_per_accelerator

    @property
    def world_size(self) -> int:
        """Number of processes, which is the number of GPUs or NeuronCores; 1 on a slice."""
        if self.gpu_slice:
            return 1
        return (
            self.num_nodes
            * self.hardware.num_accelerators
            * self.hardware.processes_per_accelerator
        )


def find_place(cluster: AnyCluster, group: str | None, num_nodes: int | None) -> Place:
    """Return the given group, or the one with the most GPUs, with all its nodes or the given number.

    A group without nodes, which Karpenter's are at first, counts with its largest size. A run on a group
    with divided GPUs has one slice.

    Raises:
        ValueError: if the group does not exist, has no GPUs, or has fewer nodes than requested.
    """
    places = [
        Place(candidate, candidate.hardware, candidate.num_instances)
        for candidate in cluster.instance_groups
        if candidate.runs_jobs and all(name in PEAKS for name in accelerators(candidate))
    ]
    names = ", ".join(place.group.name for place in places) or "none"
    if group is not None:
        places = [place for place in places if place.group.name == group]
    if not places:
        raise ValueError(
            f"--group: got {group or 'nothing'}; groups of {cluster.name} with devices of a known"
            f" peak ({', '.join(PEAKS)}) are: {names}"
        )
    place = max(
        places, key=lambda place: dataclasses.replace(place, num_nodes=place.most_nodes).world_size
    )
    if place.gpu_slice and num_nodes not in (None, 1):
        raise ValueError(
            f"--nodes: got {num_nodes}; the GPUs of {place.group.name} are divided, and a run has one slice,"
            " because NCCL connects no slices; remove it, or give another --group"
        )
    most = 1 if place.gpu_slice else place.most_nodes
    nodes = min(place.num_nodes or most, most) if num_nodes is None else num_nodes
    if most == 0:
        raise ValueError(
            f"--group: {place.group.name} has no nodes; set num_instances in the cluster file"
        )
    if not 1 <= nodes <= most:
        raise ValueError(
            f"--nodes: got {nodes}; {place.group.name} has {most}; set 1 to {most}, or change"
            " num_instances in the cluster file"
        )
    return Place(place.group, place.hardware, nodes)


def accelerators(group: InstanceGroup) -> list[str]:
    """Return the accelerator of each of a group's types; an empty text for a type without."""
    return [found.accelerator or "" for found in known(group.types)]


def with_slowest_gpu(place: Place, layout: Layout, mfu: float | None) -> Place:
    """Return the place with the accelerator of its types on which the run is slowest: a step waits for it.

    A higher peak does not make an accelerator faster if its memory is slower: an L4 has the higher peak and
    the lower estimate than an A10G.

    Args:
        place: nodes of the run.
        layout: run on these nodes.
        mfu: share of each accelerator's peak to assume; None looks it up.
    """

    def rates(gpu: str) -> tuple[float, float]:
        found = speed(layout, gpu=gpu, mfu=mfu)
        return found.residues_per_second_low, found.residues_per_second_high

    slowest = min(accelerators(place.group), key=rates)
    return dataclasses.replace(
        place, hardware=dataclasses.replace(place.hardware, accelerator=slowest)
    )
