"""Where a run goes: one group of a cluster, or some of its nodes."""

from __future__ import annotations

from dataclasses import dataclass

from config.cluster import InstanceGroup
from config.cluster_kinds import AnyCluster
from config.instance_catalogue import InstanceType, instance_type
from workloads.esm2.peak_rates import PEAK_BF16_FLOPS


@dataclass(frozen=True)
class Place:
    group: InstanceGroup
    hardware: InstanceType
    num_nodes: int

    @property
    def gpu(self) -> str:
        assert self.hardware.accelerator is not None  # else it is no place
        return self.hardware.accelerator

    @property
    def world_size(self) -> int:
        return self.num_nodes * self.hardware.num_accelerators


def find_place(cluster: AnyCluster, group: str | None, num_nodes: int | None) -> Place:
    """The group asked for, or the one with the most GPUs, on all its nodes unless told otherwise.

    Raises:
        ValueError: if there is no such group, no GPUs in it, or fewer nodes than asked for.
    """
    places = [
        Place(candidate, instance_type(candidate.instance_type), candidate.num_instances)
        for candidate in cluster.instance_groups
        if candidate.runs_jobs and instance_type(candidate.instance_type).accelerator in PEAK_BF16_FLOPS
    ]
    names = ", ".join(place.group.name for place in places) or "none"
    if group is not None:
        places = [place for place in places if place.group.name == group]
    if not places:
        raise ValueError(
            f"--group: got {group or 'nothing'}; groups of {cluster.name} with GPUs of a known peak"
            f" ({', '.join(PEAK_BF16_FLOPS)}) are: {names}"
        )
    place = max(places, key=lambda place: place.world_size)
    nodes = place.num_nodes if num_nodes is None else num_nodes
    if not 1 <= nodes <= max(1, place.num_nodes):
        raise ValueError(
            f"--nodes: got {nodes}; {place.group.name} has {place.num_nodes}; give that at most, or change"
            " num_instances in the cluster file"
        )
    return Place(place.group, place.hardware, nodes)
