"""What all-reduces over nodes of a type should reach: written by whoever submits the job, read by the job."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path


@dataclass(frozen=True)
class Published:
    """A measurement by nccl-tests' all_reduce_perf that somebody has published."""

    bus_gb_s: float
    """1e9 bytes/s."""
    size_bytes: int
    num_nodes: int
    source: str


@dataclass(frozen=True)
class Expectation:
    instance_type: str
    gpus_per_node: int
    network_gb_s: float
    """Of a node's network, in each direction; 1e9 bytes/s."""
    has_efa: bool
    published: Published | None
    at_least_gb_s: float | None
    """The user's own bound for the best size; then a published figure does not count."""

    def text(self) -> str:
        return json.dumps(asdict(self), indent=2) + "\n"


def read_expectation(path: Path) -> Expectation:
    """Read what ``Expectation.text`` gave."""
    values = json.loads(path.read_text())
    published = values.pop("published")
    return Expectation(**values, published=Published(**published) if published else None)


def wire_limit_gb_s(network_gb_s: float, num_nodes: int, num_processes: int) -> float | None:
    """The most that the bus bandwidth can be; None on one node, where nothing crosses the network.

    Each of N nodes has to send at least 2 (N - 1) / N of the buffer (Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", 2009), so an all-reduce over n processes takes at
    least that time, and its bus bandwidth is at most the network's x N (n - 1) / (n (N - 1)). For two nodes
    with many GPUs that is nearly twice the network's, for many nodes as much as the network's.
    """
    if num_nodes < 2:
        return None
    return network_gb_s * num_nodes * (num_processes - 1) / (num_processes * (num_nodes - 1))


def size_text(size_bytes: int) -> str:
    """As ``4 KiB``."""
    for power, unit in ((30, "GiB"), (20, "MiB"), (10, "KiB")):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):g} {unit}"
    return f"{size_bytes} B"
