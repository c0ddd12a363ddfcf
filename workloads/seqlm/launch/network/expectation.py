"""Expected bandwidth of all-reduces over nodes of a type, and the comparison of a sweep with it.

The submission of a job writes the expectation, and the job reads it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqlm.training.report.page import size_text

from .nccl_log import SOCKETS

if TYPE_CHECKING:  # brings torch
    from .all_reduce import Sweep

TOLERANCE = 0.2
"""Share of a published figure that may be missing: AWS's two published runs on p5.48xlarge differ by 1 % at
2 GiB, and by 28 % at 1 GiB, where the older one had older versions of everything."""


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
    """Bandwidth of a node's network in each direction, in 1e9 bytes/s."""
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


@dataclass(frozen=True)
class Verdict:
    state: Literal["as expected", "low", "not judged"]
    text: str


def judge(expected: Expectation, sweep: "Sweep") -> Verdict:
    """Compare with the user's bound, with a published figure of the same size and scale, or with nothing."""
    best = sweep.best
    reached = f"{best.bus_gb_s:.4g} GB/s at {size_text(best.size_bytes)}"
    if expected.has_efa and sweep.num_nodes > 1 and sweep.network.startswith(SOCKETS):
        return Verdict(
            "low",
            f"{reached}, over TCP: {expected.instance_type} has EFA, but NCCL found no plugin for it. Is "
            "aws-ofi-nccl in the image, or in /opt/amazon/ofi-nccl on the nodes?",
        )
    if expected.at_least_gb_s is not None:
        is_low = best.bus_gb_s < expected.at_least_gb_s
        return Verdict(
            "low" if is_low else "as expected", f"{reached}; at_least is {expected.at_least_gb_s:g} GB/s"
        )
    figure = expected.published
    if figure and sweep.scale == (figure.num_nodes, figure.num_nodes * expected.gpus_per_node):
        for point in sweep.points:
            if point.size_bytes == figure.size_bytes:
                share = point.bus_gb_s / figure.bus_gb_s
                return Verdict(
                    "low" if share < 1 - TOLERANCE else "as expected",
                    f"{point.bus_gb_s:.4g} GB/s at {size_text(figure.size_bytes)}, {share:.0%} of the "
                    f"published {figure.bus_gb_s:g} GB/s ({figure.source}); {1 - TOLERANCE:.0%} is enough",
                )
    limit = wire_limit_gb_s(expected.network_gb_s, *sweep.scale)
    compared = f", {best.bus_gb_s / limit:.0%} of the wire's limit of {limit:.4g} GB/s" if limit else ""
    return Verdict(
        "not judged",
        f"{reached}{compared}; no measurement of as many nodes and GPUs of {expected.instance_type} is "
        'published: ARGS="at_least=<GB/s>" sets a bound of your own',
    )
