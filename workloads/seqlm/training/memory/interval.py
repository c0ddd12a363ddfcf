"""Number of steps between two states in memory, given or computed from the measured cost."""

import math
from dataclasses import dataclass

from seqlm.training.processes import Processes

MAX_BLOCKED_SHARE = 0.01
"""Largest share of the time for which copies block training, if the interval is computed."""
PROBE_STEPS = 10
"""Steps before each of the first saves of a computed interval. The second save measures the cost, because the
first one allocates memory."""
MEASURED_SAVE = 2
"""Number of the save whose cost is reported. The next one reports it."""


@dataclass(frozen=True)
class Cost:
    """Cost of the last save on this process."""

    blocked_seconds: float = 0.0
    """Time that training stood still."""
    background_seconds: float = 0.0
    """Time of the write and of the copy to another node, beside training."""


class Interval:
    """Steps between two states.

    Args:
        steps: number of steps; None computes it from the cost of the first saves.
        save_every_steps: steps between two checkpoints. States that are no more frequent are of no use.
    """

    def __init__(self, steps: int | None, save_every_steps: int) -> None:
        self._steps = steps or PROBE_STEPS
        self._is_computed = steps is None
        self._save_every_steps = save_every_steps
        self._num_saves = 0
        self._last_step = 0
        self._last_seconds = 0.0

    @property
    def is_never(self) -> bool:
        """Whether states are no more frequent than checkpoints, so that none are kept."""
        return self._is_computed and self._steps >= self._save_every_steps

    def is_due(self, step: int) -> bool:
        """Return whether a state is to be kept after this step."""
        return step % self._steps == 0

    def measured(self, step: int, cost: Cost, seconds: float, here: Processes) -> list[str]:
        """Count a save that begins, and return the report about the cost of the first ones.

        Args:
            step: step of the save.
            cost: cost of the save before.
            seconds: time by ``time.monotonic``.
            here: this process; every process calls this.
        """
        report: list[str] = []
        if self._num_saves == MEASURED_SAVE:
            per_step = (seconds - self._last_seconds) / max(1, step - self._last_step)
            measured = (cost.blocked_seconds, cost.background_seconds, per_step)
            of_all = here.gather({here.rank: measured}).values()
            blocked, background, step_seconds = (
                max(column) for column in zip(*of_all, strict=True)
            )
            if self._is_computed:
                least_seconds = max(blocked / MAX_BLOCKED_SHARE, background)
                self._steps = max(1, math.ceil(least_seconds / step_seconds))
            share = blocked / (self._steps * step_seconds)
            kept = f"every {self._steps} steps"
            if self.is_never:
                kept = (
                    f"none, because every {self._steps} steps is no more frequent than checkpoints"
                )
            report.append(
                f"states in memory: {kept}; a copy blocks training for {blocked:.3f} s ({share:.1%} of the "
                f"interval) and is complete {background:.1f} s later"
            )
        self._num_saves += 1
        self._last_step = step
        self._last_seconds = seconds
        return report
