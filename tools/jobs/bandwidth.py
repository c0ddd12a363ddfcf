"""Expected bandwidth of all-reduces over nodes: the file that a bandwidth job has in place of a run file."""

from __future__ import annotations

import re
from collections.abc import Sequence

from config.facts.instance_catalogue import InstanceType
from tools.jobs.checks import Share
from workloads.launch.network.expectation import Expectation, Published

_AWS = "github.com/aws-samples/awsome-distributed-training, micro-benchmarks/nccl-tests/README.md"
PUBLISHED = {
    # The first from a user, with versions of 2022.
    "ml.p4d.24xlarge": Published(57.20, 1 << 30, 2, "github.com/NVIDIA/nccl/issues/527, 2022-07-25"),
    "ml.p4de.24xlarge": Published(78.33, 2 << 30, 2, _AWS),
    "ml.p5.48xlarge": Published(465.87, 4 << 30, 2, _AWS),
}
"""Published bus bandwidth of all-reduces between nodes of a type, by nccl-tests' ``all_reduce_perf``.

Each is for the largest message up to 4 GiB, the largest of ours. No figure is known for other types
with all their GPUs and all their EFA.
"""


def bandwidth_of(place: Share, settings: Sequence[str], problems: list[str]) -> Expectation:
    """Return what all-reduces over nodes should reach.

    Args:
        place: the nodes.
        settings: ``at_least=<GB/s>``, or nothing.
        problems: what is wrong is added to them.
    """
    at_least = _asked(settings, problems)
    if place.sizes and place.sizes[-1] * place.num_processes == 1:
        problems.append("NODES: got 1, with one process; an all-reduce needs two")
    hardware = place.hardware
    return Expectation(
        instance_type=hardware.name,
        gpus_per_node=hardware.num_accelerators,
        network_gb_s=hardware.network_gbps / 8,
        has_efa=bool(place.gpus and hardware.num_efa),
        published=PUBLISHED.get(hardware.name),
        at_least_gb_s=at_least,
    )


def bandwidth_run(hardware: InstanceType) -> str:
    """Name of the run."""
    return f"bandwidth-{hardware.name.removeprefix('ml.')}"


def _asked(settings: Sequence[str], problems: list[str]) -> float | None:
    """The user's own bound in GB/s, from the settings; what else is there is added to the problems."""
    found: float | None = None
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "at_least" and re.fullmatch(r"\d+(\.\d+)?", value):
            found = float(value)
        else:
            problems.append(f"{setting}: the bandwidth job takes at_least=<GB/s>, a number, and nothing else")
    return found
