"""Progress of a long computation, as lines on stderr."""

import sys
import time
from datetime import timedelta

PROGRESS_SECONDS = 10
"""Seconds between two lines."""


class WorkProgress:
    """Print how much of ``total`` is done, every ``PROGRESS_SECONDS``.

    Args:
        doing: first word of each line.
        total: amount of work.
        unit: unit of ``total``. With one, lines also have the rate and the remaining time.
        shows: whether this process prints.
    """

    def __init__(self, doing: str, total: int, unit: str = "", *, shows: bool = True) -> None:
        self._doing, self._total, self._unit, self._shows = doing, total, unit, shows
        self._done, self._began = 0, time.monotonic()
        self._shown = self._began

    def add(self, number: int) -> None:
        """Count work that is done."""
        self._done += number
        now = time.monotonic()
        if not self._shows or now - self._shown < PROGRESS_SECONDS:
            return
        self._shown = now
        line = f"{self._doing}: {self._done:,} of {self._total:,}{self._unit and f' {self._unit}'}"
        line += f" ({self._done / self._total:.0%})"
        if self._unit:
            rate = self._done / (now - self._began)
            left = timedelta(seconds=round((self._total - self._done) / rate))
            line += f", {rate:,.0f} {self._unit}/s, ETA {left}"
        print(line, file=sys.stderr)
