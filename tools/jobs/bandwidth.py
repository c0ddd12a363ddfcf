"""A job that measures all-reduces over nodes: it has no run file, but a file of what is expected of them."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import PurePosixPath
from typing import Any

from config.facts.instance_catalogue import InstanceType
from config.slurm_cluster import SlurmCluster
from tools.jobs.checks import listed
from tools.jobs.slurm.request import Wanted, common_fields, folder_problems, placement
from workloads.launch.job_file import Job
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


def bandwidth_request(
    cluster: SlurmCluster, settings: list[str], wanted: Wanted, *, version: str
) -> dict[str, Any]:
    """What slurm_submit.py takes on the cluster; where the code is, is added when it is there.

    Args:
        cluster: where it runs.
        settings: ``at_least=<GB/s>``, or nothing.
        wanted: other options.
        version: of the code.

    Raises:
        ValueError: listing all that does not fit together.
    """
    problems = folder_problems(cluster, wanted.folder)
    at_least = asked_bandwidth(settings, problems)
    place = placement(cluster, wanted, problems)
    if place.sizes and place.sizes[-1] * place.num_processes == 1:
        problems.append("NODES: got 1, with one process; an all-reduce needs two")
    if problems:
        raise ValueError(listed(problems))
    hardware = place.hardware
    expected = expectation(hardware, has_efa=bool(place.gpus and hardware.num_efa), at_least_gb_s=at_least)
    name = hardware.name.removeprefix("ml.")
    job = Job(
        **common_fields(cluster, wanted, place),
        version=version,
        overrides=(),
        run_dir=str(PurePosixPath(wanted.folder) / "runs" / f"bandwidth-{name}"),
        data_manifest="",
    )
    return {"config": expected.text(), "job": asdict(job), "sbatch": place.options(wanted, name)}


def expectation(hardware: InstanceType, *, has_efa: bool, at_least_gb_s: float | None) -> Expectation:
    """What all-reduces over nodes of a type should reach."""
    return Expectation(
        instance_type=hardware.name,
        gpus_per_node=hardware.num_accelerators,
        network_gb_s=hardware.network_gbps / 8,
        has_efa=has_efa,
        published=PUBLISHED.get(hardware.name),
        at_least_gb_s=at_least_gb_s,
    )


def asked_bandwidth(settings: Sequence[str], problems: list[str]) -> float | None:
    """The user's own bound in GB/s, from the settings; what else is there is added to the problems."""
    found: float | None = None
    for setting in settings:
        name, _, value = setting.partition("=")
        if name == "at_least" and re.fullmatch(r"\d+(\.\d+)?", value):
            found = float(value)
        else:
            problems.append(f"{setting}: the bandwidth job takes at_least=<GB/s>, a number, and nothing else")
    return found
