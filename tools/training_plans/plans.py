"""Training plans of an account: their state, dates and capacity."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from tools.aws_session import all_items, if_present
from tools.usage.period import as_text

ACTIVE_STATES = ("Pending", "Scheduled", "Active")
"""States of plans that have capacity, or will have it."""
MINUTES_PER_HOUR = 60
HEADER = ("plan", "state", "capacity", "free", "start", "end", "amount")


@dataclass(frozen=True)
class Plan:
    name: str
    arn: str
    state: str
    """Pending, Scheduled, Active, Expired or Failed."""
    capacity: str
    """Number, type and zone of the instances, as ``8 * ml.p5.48xlarge in use1-az6``."""
    num_instances: int
    num_free: int
    start: datetime | None
    end: datetime | None
    """End of the plan, with its extensions."""
    hours: float
    """Duration that the amount pays for."""
    amount: str
    """Price paid for the plan as the service writes it; empty if it names none."""
    currency: str

    def time_left(self, now: datetime) -> timedelta | None:
        """Return the time to the end of the plan; None if the service names no end."""
        return self.end - now if self.end else None

    def row(self) -> list[str]:
        """Return the cells of a table with ``HEADER``."""
        return [
            self.name,
            self.state,
            self.capacity,
            f"{self.num_free} of {self.num_instances}",
            as_time(self.start),
            as_time(self.end),
            as_amount(self.amount, self.currency),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "arn": self.arn,
            "state": self.state,
            "capacity": self.capacity,
            "num_instances": self.num_instances,
            "num_free": self.num_free,
            "start": as_time(self.start) or None,
            "end": as_time(self.end) or None,
            "amount": self.amount or None,
            "currency": self.currency or None,
        }


def list_plans(sagemaker: Any) -> list[Plan]:
    """Return the plans of the account in the region, the earliest start first."""
    found = all_items(
        sagemaker,
        "list_training_plans",
        "TrainingPlanSummaries",
        SortBy="StartTime",
        SortOrder="Ascending",
    )
    return [_plan(plan) for plan in found]


def read_plan(sagemaker: Any, name: str) -> Plan | None:
    """Return the plan with a name or ARN; None if it does not exist."""
    found = if_present(sagemaker.describe_training_plan, TrainingPlanName=name)
    return _plan(found) if found else None


def as_time(moment: datetime | None) -> str:
    """Return a time in UTC; empty without one."""
    return as_text(moment) if moment else ""


def as_days(hours: float) -> str:
    return f"{hours / 24:.4g}"


def as_amount(amount: str, currency: str) -> str:
    return f"{amount} {currency}".strip() if amount else "not named"


def _plan(found: dict[str, Any]) -> Plan:
    total = found.get("TotalInstanceCount", 0)
    parts = found.get("ReservedCapacitySummaries", [])
    places = [
        f"{part['TotalInstanceCount']} * {part['InstanceType']} in "
        f"{part.get('AvailabilityZoneId') or part.get('AvailabilityZone', 'an unnamed zone')}"
        for part in parts
    ]
    start = found.get("StartTime")
    end = found.get("EndTime")
    return Plan(
        name=found["TrainingPlanName"],
        arn=found["TrainingPlanArn"],
        state=found["Status"],
        capacity=", then ".join(dict.fromkeys(places)) or f"{total} instances",
        num_instances=total,
        num_free=found.get("AvailableInstanceCount", total),
        start=start.astimezone(UTC) if start else None,
        end=end.astimezone(UTC) if end else None,
        hours=found.get("DurationHours", 0) + found.get("DurationMinutes", 0) / MINUTES_PER_HOUR,
        amount=found.get("UpfrontFee", ""),
        currency=found.get("CurrencyCode", ""),
    )
