"""Expected bandwidth of all-reduces over nodes of a type, and the comparison of a sweep with it.

The submission of a job writes the expectation, and the job reads it.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from seqlm.training.report.page import size_text

from .nccl_log import SOCKETS

if TYPE_CHECKING:  # imports torch
    from .all_reduce import Point, Sweep

TOLERANCE = 0.2
"""Share of a published figure that may be missing. AWS's two published runs on p5.48xlarge differ by 1 % at
2 GiB. At 1 GiB they differ by 28 %, but the older run had older versions of all software."""


@dataclass(frozen=True)
class Published:
    """Published measurement by all_reduce_perf of nccl-tests."""

    bus_gb_s: float
    """Bus bandwidth in 1e9 bytes/s."""
    size_bytes: int
    num_nodes: int
    source: str


@dataclass(frozen=True)
class Expectation:
    """Expected bandwidth on nodes of an instance type."""

    instance_type: str
    gpus_per_node: int
    network_gb_s: float
    """Bandwidth of a node's network in each direction, in 1e9 bytes/s."""
    has_efa: bool
    published: Published | None
    at_least_gb_s: float | None
    """Bound that the user sets for the best size. Then a published figure does not count."""

    def text(self) -> str:
        """Return the contents of the file of expectations."""
        return json.dumps(asdict(self), indent=2) + "\n"


def read_expectation(path: Path) -> Expectation:
    """Read a file of expectations."""
    values = json.loads(path.read_text())
    published = values.pop("published")
    return Expectation(**values, published=Published(**published) if published else None)


def wire_limit_gb_s(network_gb_s: float, num_nodes: int, num_processes: int) -> float | None:
    """Return the largest possible bus bandwidth; None for one node, which does not use the network.

    Each of N nodes has to send at least 2 (N - 1) / N of the buffer (Patarasuk and Yuan, "Bandwidth optimal
    all-reduce algorithms for clusters of workstations", 2009). An all-reduce over n processes takes at least
    that time, so its bus bandwidth is at most that of the network x N (n - 1) / (n (N - 1)). For two nodes
    with many GPUs, this is nearly twice the bandwidth of the network; for many nodes it is close to it.
    """
    if num_nodes < 2:
        return None
    return network_gb_s * num_nodes * (num_processes - 1) / (num_processes * (num_nodes - 1))


@dataclass(frozen=True)
class Verdict:
    """Result of the comparison with an expectation."""

    state: Literal["as expected", "low", "not judged"]
    text: str


def judge(expected: Expectation, sweep: "Sweep") -> Verdict:
    """Compare a sweep with the user's bound, or with a published figure of the same size and scale."""
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
        text = f"{reached}; at_least is {expected.at_least_gb_s:g} GB/s"
        return Verdict("low" if is_low else "as expected", text)
    published = expected.published
    point = _comparable(expected, sweep)
    if published and point:
        share = point.bus_gb_s / published.bus_gb_s
        return Verdict(
            "low" if share < 1 - TOLERANCE else "as expected",
            f"{point.bus_gb_s:.4g} GB/s at {size_text(published.size_bytes)}, {share:.0%} of the published "
            f"{published.bus_gb_s:g} GB/s ({published.source}); {1 - TOLERANCE:.0%} is enough",
        )
    limit = wire_limit_gb_s(expected.network_gb_s, *sweep.scale)
    compared = (
        f", {best.bus_gb_s / limit:.0%} of the wire's limit of {limit:.4g} GB/s" if limit else ""
    )
    return Verdict(
        "not judged",
        f"{reached}{compared}; no measurement of as many nodes and GPUs of {expected.instance_type} is "
        'published: ARGS="at_least=<GB/s>" sets a bound of your own',
    )


def _comparable(expected: Expectation, sweep: "Sweep") -> "Point | None":
    """Return the result for the published size, if the sweep has the numbers of nodes and GPUs."""
    published = expected.published
    if published is None:
        return None
    num_gpus = published.num_nodes * expected.gpus_per_node
    if sweep.scale != (published.num_nodes, num_gpus):
        return None
    return next((point for point in sweep.points if point.size_bytes == published.size_bytes), None)
