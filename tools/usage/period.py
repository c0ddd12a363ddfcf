"""Period of a bill: ``SINCE`` and ``UNTIL``."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from seqlm.training.strict_yaml import shown

EXPECTED = "a date such as 2026-11-01 or 2026-11-01T08:30, in UTC"
SECONDS_PER_HOUR = 3600


@dataclass(frozen=True)
class Period:
    """Time from ``since`` up to ``until``, which is excluded, in seconds since 1970."""

    since: int
    until: int

    @property
    def hours(self) -> float:
        return (self.until - self.since) / SECONDS_PER_HOUR

    def seconds_of(self, start: int, end: int) -> int:
        """Return the seconds from ``start`` to ``end`` that lie in the period."""
        return max(0, min(end, self.until) - max(start, self.since))


def parse_period(since: str, until: str, now: datetime) -> Period:
    """Return the period of two dates.

    Args:
        since: first second; empty for the first day of the month in which the period ends.
        until: first second after the period; empty for now.
        now: present time.

    Raises:
        ValueError: if a date is not valid, or the period is empty or has not begun.
    """
    end = parse_date("UNTIL", until) if until else now
    start = parse_date("SINCE", since) if since else _month_of(end - timedelta(seconds=1))
    # First, because without UNTIL the end is now, which the user has not typed.
    if start >= now:
        raise ValueError(
            f"SINCE: got {as_text(start)}, which is not before now, {as_text(now)}; give an earlier date"
        )
    if start >= end:
        raise ValueError(
            f"SINCE, UNTIL: got {as_text(start)} and {as_text(end)}; SINCE must be before UNTIL, which is "
            "excluded. November is SINCE=2026-11-01 UNTIL=2026-12-01"
        )
    return Period(int(start.timestamp()), int(end.timestamp()))


def as_text(moment: datetime) -> str:
    """Return a time as text in UTC, without seconds if there are none."""
    return f"{moment.astimezone(UTC):%Y-%m-%d %H:%M:%S}".removesuffix(":00")


def second_text(second: int) -> str:
    """Return the time of a second since 1970 as text in UTC."""
    return as_text(datetime.fromtimestamp(second, UTC))


def parse_date(variable: str, text: str) -> datetime:
    """Return the time of a date in ISO 8601; a date without a zone is in UTC."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(f"{variable}: got {shown(text)}; expected {EXPECTED}") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _month_of(moment: datetime) -> datetime:
    """Return the beginning of the month."""
    return moment.astimezone(UTC).replace(day=1, hour=0, minute=0, second=0, microsecond=0)
