"""Whether a sweep of all-reduces is as fast as it should be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from .all_reduce import Sweep
from .expectation import Expectation, size_text, wire_limit_gb_s
from .nccl_log import SOCKETS

TOLERANCE = 0.2
"""Share of a published figure that may be missing: AWS's two published runs on p5.48xlarge differ by 1 % at
2 GiB, and by 28 % at 1 GiB, where the older one had older versions of everything."""


@dataclass(frozen=True)
class Verdict:
    state: Literal["as expected", "low", "not judged"]
    text: str


def judge(expected: Expectation, sweep: Sweep) -> Verdict:
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
