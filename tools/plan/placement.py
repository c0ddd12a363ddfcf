"""Placement of a run: one group of a cluster, or some of its nodes."""

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
    def device(self) -> str:
        """Device of one process, as text for people."""
        return f"{self.gpu} NeuronCore" if self.hardware.is_neuron else self.gpu

    @property
    def device_memory_gib(self) -> int:
        return self.hardware.accelerator_memory_gib // self.hardware.processes_per_accelerator

    @property
    def world_size(self) -> int:
        """Number of processes, which is the number of GPUs or NeuronCores."""
        return (
            self.num_nodes
            * self.hardware.num_accelerators
            * self.hardware.processes_per_accelerator
        )


def find_place(cluster: AnyCluster, group: str | None, num_nodes: int | None) -> Place:
    """Return the given group, or the one with the most GPUs, with all its nodes or the given number.

    A group without nodes, which Karpenter's are at first, counts with its largest size.

    Raises:
        ValueError: if the group does not exist, has no GPUs, or has fewer nodes than requested.
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
    place = max(
        places, key=lambda place: dataclasses.replace(place, num_nodes=place.most_nodes).world_size
    )
    most = place.most_nodes
    nodes = (place.num_nodes or most) if num_nodes is None else num_nodes
    if not 1 <= nodes <= max(1, most):
        raise ValueError(
            f"--nodes: got {nodes}; {place.group.name} has {most}; set that or less, or change"
            " num_instances in the cluster file"
        )
    return Place(place.group, place.hardware, nodes)
