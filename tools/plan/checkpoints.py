"""How often to save, for the failures that are to be expected.

A checkpoint every tau seconds costs delta seconds each, and a failure, one every M seconds, loses tau / 2 on
average and the restart. Young (1974, "A first order approximation to the optimum checkpoint interval") has
the least at sqrt(2 delta M); Daly (2006, "A higher order estimate of the optimum checkpoint interval for
restart dumps", equation 37) refines it for delta that is not small against M.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tools.plan.memory import ADAM_STATE, FP32, Layout
from tools.plan.model_size import Parameters

GPU_HOURS_BETWEEN_FAILURES = 16_384 * 54 * 24 / 419
"""Meta, "The Llama 3 Herd of Models" (2024), section 3.3.4: 419 unexpected interruptions in 54 days of 16,384
H100. Other clusters fail more often or less; --failure-hours takes what yours does."""
RESTART_SECONDS = 900.0
"""From a failure until training goes on: found, node replaced or rebooted, job requeued, checkpoint read. An
assumption: nothing of it has been timed on AWS."""
STAGING_BYTES_PER_SECOND = 10e9
"""Of one GPU to its host's memory, which training waits for; the files are written behind its back. A part of
what PCIe 4.0 x16 carries, an assumption as well."""


@dataclass(frozen=True)
class Checkpoints:
    stall_seconds: float
    """For which training waits at each."""
    write_seconds: float
    """Until the files are on Lustre."""
    mean_seconds_between_failures: float
    interval_seconds: float
    lost_share: float
    """Of the time: stalls, repeated steps and restarts, at this interval."""


def checkpoint_bytes(parameters: Parameters) -> int:
    """Weights and AdamW's moments of what is trained, in fp32."""
    return parameters.trained * (FP32 + ADAM_STATE)


def daly_interval(stall_seconds: float, failure_seconds: float) -> float:
    """Seconds of work between two checkpoints."""
    if stall_seconds >= 2 * failure_seconds:
        return failure_seconds
    ratio = math.sqrt(stall_seconds / (2 * failure_seconds))
    return math.sqrt(2 * stall_seconds * failure_seconds) * (1 + ratio / 3 + ratio**2 / 9) - stall_seconds


def lost_share(interval: float, stall: float, failure_seconds: float) -> float:
    """Of the time, to first order."""
    return stall / interval + (interval / 2 + RESTART_SECONDS) / failure_seconds


def plan_checkpoints(
    layout: Layout, *, lustre_bytes_per_second: float, failure_hours: float | None = None
) -> Checkpoints:
    """For a job of the layout's size; ``failure_hours`` is the job's own mean time between failures.

    Raises:
        ValueError: if failures come so fast that nothing is left of the time.
    """
    size = checkpoint_bytes(layout.parameters)
    stall = size / layout.shards / STAGING_BYTES_PER_SECOND
    write = size / lustre_bytes_per_second
    hours = failure_hours or GPU_HOURS_BETWEEN_FAILURES / layout.world_size
    failures = hours * 3600
    # The next one starts when the last one is written.
    interval = max(daly_interval(stall, failures), write)
    lost = lost_share(interval, stall, failures)
    if lost >= 1:
        raise ValueError(
            f"--failure-hours: {hours:.2g} hours between failures are less than saving and restarting take"
            f" ({RESTART_SECONDS / 60:.0f} min each time); give more, or take fewer nodes"
        )
    return Checkpoints(stall, write, failures, interval, lost)
