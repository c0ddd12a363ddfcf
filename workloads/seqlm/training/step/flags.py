"""Flags that every process needs from all others: to stop, to complete a checkpoint, to report a failure.

They are summed with the figures of a step, on the device, so no step needs a sum over the hosts. The host
reads the sums with the figures, which is after the launch of the next step. All processes read them at the
same point of the loop.
"""

from dataclasses import dataclass
from typing import NamedTuple


class Flags(NamedTuple):
    """Flags of one process when it launches a step."""

    stops: bool = False
    """Whether it has received a signal to stop."""
    has_written: bool = False
    """Whether it has written its files of the checkpoint under way."""
    has_failed: bool = False
    """Whether it cannot write the record of the run."""


NO_FLAGS = Flags()
"""Flags of most steps."""


@dataclass(frozen=True)
class FlagCounts:
    """Numbers of processes that had set each flag when they launched a step."""

    step: int
    """Number of the step."""
    stop: int
    written: int
    failed: int
