"""Best interval between checkpoints for the expected failures.

A checkpoint every tau seconds costs delta seconds. A failure every M seconds costs tau / 2 on average, and
the restart. According to Young (1974, "A first order approximation to the optimum checkpoint interval") the
cost is lowest at tau = sqrt(2 delta M). Daly (2006, "A higher order estimate of the optimum checkpoint
interval for restart dumps", equation 37) refines this for delta that is not small compared with M.
"""

import math
from dataclasses import dataclass

from seqlm.training.memory.layout import STATES_KEPT
from seqlm.training.memory.layout import Layout as Distribution
from tools.plan.memory import ADAM_STATE, FP32, Layout
from tools.plan.model_size import Parameters

GPU_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""Mean time between failures in GPU hours: 419 unexpected interruptions in 54 days on 16,384 H100 (Meta, "The
Llama 3 Herd of Models", 2024, section 3.3.4). Other clusters differ; --failure-hours takes your own
figure."""
RESTART_SECONDS = 900.0
"""Seconds from a failure until training resumes: detect it, replace or reboot the node, requeue the job, read
the checkpoint. This is an assumption that has not been measured on AWS."""
STAGING_BYTES_PER_SECOND = 10e9
"""Rate of the copy from one GPU to its host's memory, for which training waits; files are written in the
background. This is an assumption, and a part of the bandwidth of PCIe 4.0 x16."""


@dataclass(frozen=True)
class Checkpoints:
    stall_seconds: float
    """Seconds that training waits at each checkpoint."""
    write_seconds: float
    """Seconds until the files are on Lustre."""
    mean_seconds_between_failures: float
    interval_seconds: float
    lost_share: float
    """Share of the time for stalls, repeated steps and restarts at this interval."""


def checkpoint_bytes(parameters: Parameters) -> int:
    """Return the size of trained weights and AdamW's moments in fp32."""
    return parameters.trained * (FP32 + ADAM_STATE)


def node_memory_bytes(layout: Layout, *, num_nodes: int, is_managed: bool = False) -> int:
    """Return the memory of a node that the run's states in memory take; 0 if it keeps none.

    Args:
        layout: layout of the run.
        num_nodes: number of nodes, with equal numbers of processes.
        is_managed: whether HyperPod's managed tier keeps the states. Its own copies are not counted.
    """
    steps = layout.config.train.memory_checkpoint_steps
    if steps == 0 or (steps is None and num_nodes == 1):
        return 0
    if is_managed:
        return STATES_KEPT * checkpoint_bytes(layout.parameters) // num_nodes
    distribution = Distribution(layout.world_size, layout.world_size // num_nodes, layout.shards)
    if distribution.problem:
        return 0
    return distribution.node_bytes(checkpoint_bytes(layout.parameters))


def daly_interval(stall_seconds: float, failure_seconds: float) -> float:
    """Return the seconds of work between two checkpoints."""
    if stall_seconds >= 2 * failure_seconds:
        return failure_seconds
    ratio = math.sqrt(stall_seconds / (2 * failure_seconds))
    return (
        math.sqrt(2 * stall_seconds * failure_seconds) * (1 + ratio / 3 + ratio**2 / 9)
        - stall_seconds
    )


def lost_share(interval: float, stall: float, failure_seconds: float) -> float:
    """Return the lost share of the time, to first order."""
    return stall / interval + (interval / 2 + RESTART_SECONDS) / failure_seconds


def plan_checkpoints(
    layout: Layout, *, lustre_bytes_per_second: float, failure_hours: float | None = None
) -> Checkpoints:
    """Plan checkpoints for a layout; ``failure_hours`` is the job's own mean time between failures.

    Raises:
        ValueError: if failures are so frequent that no time is left for training.
    """
    size = checkpoint_bytes(layout.parameters)
    stall = size / layout.shards / STAGING_BYTES_PER_SECOND
    write = size / lustre_bytes_per_second
    hours = failure_hours or GPU_HOURS_BETWEEN_FAILURES / layout.world_size
    failures = hours * 3600
    # The next checkpoint starts when the last one is written.
    interval = max(daly_interval(stall, failures), write)
    lost = lost_share(interval, stall, failures)
    if lost >= 1:
        raise ValueError(
            f"--failure-hours: {hours:.2g} hours between failures are less than the time to save and restart"
            f" ({RESTART_SECONDS / 60:.0f} min each time); set more hours, or use fewer nodes"
        )
    return Checkpoints(stall, write, failures, interval, lost)
