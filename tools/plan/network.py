"""Time of collective operations over GPUs of several nodes: a model, not a measurement.

An operation takes a latency and a time of transfer. Both follow NCCL's own model, by which it chooses between
rings and trees (NVIDIA/nccl, ``src/graph/tuning.cc``, ``ncclTopoTuneModel``), for its protocol of large
messages. For S bytes, n processes and N nodes:

* A ring sends (n - 1) / n S through each link for a gather or a scatter, and twice that for an all-reduce
  (nccl-tests, ``doc/PERFORMANCE.md``; Patarasuk and Yuan 2009). It has n - 1 steps, or twice as many.
* A double binary tree sends 2 S out of each node, or S between two nodes (Sanders, Speck and Traeff 2009;
  NVIDIA, "Massively Scale Your Deep Learning Training with NCCL 2.4"). Its latency grows with log2 N. Within
  a node of g GPUs, each link is taken to carry 2 (g - 1) / g S, which is the least without a reduction in
  the switch (NVLink SHARP, Hopper and later).

All-reduces take the faster of both, as with NCCL. Gathers and scatters are rings.

Nominal bandwidths are multiplied with shares. With these, the model agrees within 7 % with the four
all-reduces of 1 GiB that NCCL's issue 527 reports for one to four p4d.24xlarge. The largest all-reduces that
AWS reports for two p4de and two p5 took 28 % and 17 % less time than in the model. Those of 1 to 64 MiB took
up to 1.75 times as long on two p5. The tests have these figures. For more nodes of p5, p5e, p5en or p6, no
figure is known.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from config.facts.instance_catalogue import InstanceType
from tools.plan.messages import Members, Message

NETWORK_SHARE = 0.6
"""Share of EFA's nominal bandwidth that collectives reach: 29.6 of 50 GB/s on four p4d.24xlarge
(github.com/NVIDIA/nccl/issues/527, 2022). No other figure for more than two nodes is known. For every other
type this is an assumption; ``--network-share`` changes it."""
BASE_SECONDS = 8.4e-6
"""Latency of any operation."""
NETWORK_HOP_SECONDS = 14e-6
"""Latency per step between nodes. NCCL's figure is for InfiniBand; that of EFA is assumed to be the same."""
RING = "ring"
TREE = "tree"
BITS_PER_BYTE = 8


@dataclass(frozen=True)
class Link:
    """Connection of a GPU with the others of its node."""

    nominal_bytes_per_second: float
    """Bandwidth in each direction."""
    share: float
    """Share of it that collectives reach."""
    hop_seconds: Mapping[str, float]
    """Latency per step of a ring and of a tree, from NCCL."""
    name: str

    @property
    def bytes_per_second(self) -> float:
        return self.share * self.nominal_bytes_per_second


def _nvlink(bytes_per_second: float) -> Link:
    """Return NVLink with the given bandwidth.

    A fifth is lost to its protocol: 370 of 450 GB/s on H100 (github.com/NVIDIA/nccl-tests/issues/212).
    """
    return Link(bytes_per_second, 0.8, {RING: 3.4e-6, TREE: 4.0e-6}, "NVLink")


_PCIE = Link(32e9, 0.5, {RING: 5.7e-6, TREE: 4.0e-6}, "PCIe 4.0 x16")
"""Data cross the memory of the host. The share is an assumption without a source."""

LINKS: Mapping[str, Link] = {
    "A10G": _PCIE,
    "L4": _PCIE,
    "L40S": _PCIE,
    "A100": _nvlink(300e9),
    "H100": _nvlink(450e9),
    "H200": _nvlink(450e9),
    "B200": _nvlink(900e9),
}
"""Links by the name of the GPU; bandwidths are half of the totals in NVIDIA's data sheets."""


@dataclass(frozen=True)
class Group:
    """Processes that take part in an operation."""

    size: int
    num_nodes: int
    sharing: int
    """Groups that use the network of a node at the same time."""


@dataclass(frozen=True)
class Network:
    """Connections of the GPUs of a cluster."""

    link: Link
    node_bytes_per_second: float
    """Bandwidth that collectives reach between a node and the others, in each direction."""
    gpus_per_node: int

    def group(self, members: Members, shards: int, replicas: int) -> Group:
        """Return a group of a run; processes of a copy of the model are neighbours."""
        world_size = shards * replicas
        num_nodes = math.ceil(world_size / self.gpus_per_node)
        if members == "all":
            return Group(world_size, num_nodes, 1)
        nodes_per_copy = math.ceil(shards / self.gpus_per_node)
        if members == "shards":
            copies_per_node = max(1, self.gpus_per_node // shards)
            return Group(shards, nodes_per_copy, copies_per_node)
        return Group(
            replicas, math.ceil(num_nodes / nodes_per_copy), min(shards, self.gpus_per_node)
        )

    def seconds(self, message: Message, group: Group) -> float:
        """Return the seconds of one operation of a message over NCCL."""
        if group.size == 1:
            return 0.0
        if message.collective != "all-reduce":
            return self._ring_seconds(message.num_bytes, group, rounds=1)
        return min(
            self._ring_seconds(message.num_bytes, group, rounds=2),
            self._tree_seconds(message.num_bytes, group),
        )

    def _ring_seconds(self, num_bytes: float, group: Group, *, rounds: Literal[1, 2]) -> float:
        network_steps = rounds * (group.num_nodes - 1)
        steps = rounds * (group.size - 1)
        latency = (
            BASE_SECONDS
            + (steps - network_steps) * self.link.hop_seconds[RING]
            + network_steps * NETWORK_HOP_SECONDS
        )
        sent = rounds * (group.size - 1) / group.size * num_bytes
        return latency + sent / self._slowest(group)

    def _tree_seconds(self, num_bytes: float, group: Group) -> float:
        per_node = group.size / group.num_nodes
        depth = math.ceil(math.log2(group.num_nodes))
        latency = BASE_SECONDS + 2 * (
            (per_node - 1) * self.link.hop_seconds[TREE] + depth * NETWORK_HOP_SECONDS
        )
        within = 2 * (per_node - 1) / per_node * num_bytes / self.link.bytes_per_second
        times_sent = min(2, group.num_nodes - 1)
        between = times_sent * num_bytes * group.sharing / self.node_bytes_per_second
        return latency + max(within, between)

    def _slowest(self, group: Group) -> float:
        """Return the bytes per second of the slowest connection of a ring."""
        found = []
        if group.size > group.num_nodes:
            found.append(self.link.bytes_per_second)
        if group.num_nodes > 1:
            found.append(self.node_bytes_per_second / group.sharing)
        return min(found)


def network_of(hardware: InstanceType, share: float = NETWORK_SHARE) -> Network | None:
    """Return the connections of nodes of a type; None if the model does not apply to it.

    Args:
        hardware: instance type.
        share: share of EFA's nominal bandwidth that collectives reach.
    """
    if not hardware.accelerator or hardware.accelerator not in LINKS or not hardware.num_efa:
        return None
    nominal = hardware.network_gbps * 1e9 / BITS_PER_BYTE
    return Network(LINKS[hardware.accelerator], share * nominal, hardware.num_gpus)
