"""Processes that compute their packs more slowly than others on the same kind of device, for a while."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median_low

from .pass_times import SharedTimes

SLOW_RATIO = 1.1
"""Time of a pack over the median from which a process is slow."""
SLOW_SECONDS = 180.0
"""Time for which a process must have been slow at each logged step before it is named."""


@dataclass(frozen=True)
class SlowProcess:
    """Process that is named."""

    process: int
    ratio: float
    """Time of a pack over the median of its kind, at the last logged step."""
    seconds: float
    """Time for which the process has been slow."""


@dataclass(frozen=True)
class Changes:
    """Processes that have become slow, and those that are slow no longer."""

    slow: tuple[SlowProcess, ...] = ()
    recovered: tuple[int, ...] = ()


class SlowProcesses:
    """Processes that are slow. All processes of a run find the same from the same times.

    Args:
        kinds: name of the device of each process. A process is compared with those of its kind.
    """

    def __init__(self, kinds: Sequence[str]) -> None:
        self._kinds = kinds
        self._since: dict[int, float] = {}
        """Time of the first logged step since which each slow process has been slow."""
        self._named: set[int] = set()

    def update(self, times: SharedTimes) -> Changes:
        """Return what has changed with the times of a logged step."""
        if not times.are_known:
            return Changes()
        slow: list[SlowProcess] = []
        recovered: list[int] = []
        for process in range(len(times.seconds)):
            ratio = self._over_median(times, process)
            if ratio < SLOW_RATIO:
                self._since.pop(process, None)
                if process in self._named:
                    self._named.remove(process)
                    recovered.append(process)
                continue
            seconds = times.at_seconds - self._since.setdefault(process, times.at_seconds)
            if seconds >= SLOW_SECONDS and process not in self._named:
                self._named.add(process)
                slow.append(SlowProcess(process, ratio, seconds))
        return Changes(tuple(slow), tuple(recovered))

    def _over_median(self, times: SharedTimes, process: int) -> float:
        """Return the time of a process over the median of its kind; of two it is the lower one."""
        alike = [
            seconds
            for seconds, kind in zip(times.seconds, self._kinds, strict=True)
            if kind == self._kinds[process]
        ]
        return times.seconds[process] / median_low(alike)
