"""Where a run goes: one group of a cluster, or some of its nodes."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from config.cluster import InstanceGroup
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksInstanceGroup
from config.facts.instance_catalogue import InstanceType, instance_type
from tools.plan.speed import PEAKS


@dataclass(frozen=True)
class Place:
    group: InstanceGroup
    hardware: InstanceType
    num_nodes: int

    @property
    def most_nodes(self) -> int:
        """That there are, or that Karpenter may have."""
        grown = self.group.max_instances if isinstance(self.group, EksInstanceGroup) else None
        return max(self.group.num_instances, grown or 0)

    @property
    def gpu(self) -> str:
        """The accelerator, by the name that ``PEAKS`` has."""
        assert self.hardware.accelerator is not None  # else it is no place
        return self.hardware.accelerator

    @property
    def device(self) -> str:
        """What a process has one of, for people."""
        return f"{self.gpu} NeuronCore" if self.hardware.is_neuron else self.gpu

    @property
    def device_memory_gib(self) -> int:
        return self.hardware.accelerator_memory_gib // self.hardware.processes_per_accelerator

    @property
    def world_size(self) -> int:
        """Processes: GPUs, or NeuronCores."""
        return self.num_nodes * self.hardware.num_accelerators * self.hardware.processes_per_accelerator


def find_place(cluster: AnyCluster, group: str | None, num_nodes: int | None) -> Place:
    """The group asked for, or the one with the most GPUs, on all its nodes unless told otherwise.

    A group without nodes, as Karpenter's are at first, is taken for as large as it may become.

    Raises:
        ValueError: if there is no such group, no GPUs in it, or fewer nodes than asked for.
    """
    places = [
        Place(candidate, instance_type(candidate.instance_type), candidate.num_instances)
        for candidate in cluster.instance_groups
        if candidate.runs_jobs and instance_type(candidate.instance_type).accelerator in PEAKS
    ]
    names = ", ".join(place.group.name for place in places) or "none"
    if group is not None:
        places = [place for place in places if place.group.name == group]
    if not places:
        raise ValueError(
            f"--group: got {group or 'nothing'}; groups of {cluster.name} with devices of a known"
            f" peak ({', '.join(PEAKS)}) are: {names}"
        )
    place = max(places, key=lambda place: dataclasses.replace(place, num_nodes=place.most_nodes).world_size)
    most = place.most_nodes
    nodes = (place.num_nodes or most) if num_nodes is None else num_nodes
    if not 1 <= nodes <= max(1, most):
        raise ValueError(
            f"--nodes: got {nodes}; {place.group.name} has {most}; give that at most, or change"
            " num_instances in the cluster file"
        )
    return Place(place.group, place.hardware, nodes)
