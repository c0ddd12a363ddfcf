"""Offerings of training plans, and of extensions of a plan, as SageMaker lists them at the moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from config.facts.training_plans import TARGET
from tools.training_plans.plans import MINUTES_PER_HOUR, Plan, as_amount, as_days, as_time

HOURS_PER_DAY = 24
ULTRASERVER_PREFIX = "ml.u-"
"""Prefix of types of UltraServers, which a plan reserves as a whole, such as ml.u-p6e-gb200x72."""
HEADER = ("offering", "capacity", "start", "end", "days", "amount")


@dataclass(frozen=True)
class Wanted:
    """Capacity to search for."""

    instance_type: str
    num_instances: int
    """Number of instances, or of UltraServers."""
    hours: int
    since: datetime | None
    """Earliest start."""
    until: datetime | None
    """Latest end."""


@dataclass(frozen=True)
class Offering:
    """Plan, or extension of a plan, that can be bought; an unchanged one is equal in two searches."""

    offering_id: str
    capacity: str
    """Number, type and zone of the instances, as ``8 * ml.p5.48xlarge in us-east-1a``."""
    start: datetime | None
    end: datetime | None
    hours: float
    amount: str
    """Price of the whole offering as the service writes it; empty if it names none."""
    currency: str

    def row(self) -> list[str]:
        """Return the cells of a table with ``HEADER``."""
        return [
            self.offering_id,
            self.capacity,
            as_time(self.start),
            as_time(self.end),
            as_days(self.hours),
            as_amount(self.amount, self.currency),
        ]

    def as_json(self) -> dict[str, Any]:
        return {
            "id": self.offering_id,
            "capacity": self.capacity,
            "start": as_time(self.start) or None,
            "end": as_time(self.end) or None,
            "hours": self.hours,
            "amount": self.amount or None,
            "currency": self.currency or None,
        }


def search_plans(sagemaker: Any, wanted: Wanted) -> list[Offering]:
    """Return the offerings of plans for HyperPod, the service's best match first."""
    if wanted.instance_type.startswith(ULTRASERVER_PREFIX):
        capacity = {
            "UltraServerType": wanted.instance_type,
            "UltraServerCount": wanted.num_instances,
        }
    else:
        capacity = {"InstanceType": wanted.instance_type, "InstanceCount": wanted.num_instances}
    dates = {"StartTimeAfter": wanted.since, "EndTimeBefore": wanted.until}
    found = sagemaker.search_training_plan_offerings(
        TargetResources=[TARGET],
        DurationHours=wanted.hours,
        **capacity,
        **{name: date for name, date in dates.items() if date},
    )
    return [_plan_offering(offering) for offering in found["TrainingPlanOfferings"]]


def search_extensions(sagemaker: Any, plan: Plan, hours: int | None) -> list[Offering]:
    """Return the offerings that extend a plan.

    Args:
        sagemaker: client of SageMaker.
        plan: plan to extend.
        hours: duration of the extension; None for all durations that the service offers.
    """
    duration = {} if hours is None else {"DurationHours": hours}
    found = sagemaker.search_training_plan_offerings(TrainingPlanArn=plan.arn, **duration)
    return [
        Offering(
            offering_id=offering["TrainingPlanExtensionOfferingId"],
            capacity=f"extension of {plan.name} ({plan.capacity})",
            start=offering.get("StartDate"),
            end=offering.get("EndDate"),
            hours=offering.get("DurationHours", 0),
            amount=offering.get("UpfrontFee", ""),
            currency=offering.get("CurrencyCode", ""),
        )
        for offering in found.get("TrainingPlanExtensionOfferings", [])
    ]


def find_offering(offerings: Sequence[Offering], offering_id: str) -> Offering:
    """Return the offering with an id.

    Raises:
        ValueError: if it is not offered, with the ids that are.
    """
    for offering in offerings:
        if offering.offering_id == offering_id:
            return offering
    offered = ", ".join(offering.offering_id for offering in offerings) or "none"
    raise ValueError(
        f"OFFERING: got {offering_id}, which is not offered for this search: it was sold, it has expired, or "
        f"it belongs to another search. Offered now: {offered}. make plans-search lists them with prices"
    )


def _plan_offering(offering: dict[str, Any]) -> Offering:
    parts = offering.get("ReservedCapacityOfferings", [])
    starts = [part["StartTime"] for part in parts if "StartTime" in part]
    ends = [part["EndTime"] for part in parts if "EndTime" in part]
    minutes = offering.get("DurationMinutes", 0)
    return Offering(
        offering_id=offering["TrainingPlanOfferingId"],
        # A plan may consist of several periods with the same capacity.
        capacity=", then ".join(dict.fromkeys(_capacities(parts))),
        start=min(starts, default=None),
        end=max(ends, default=None),
        hours=offering.get("DurationHours", 0) + minutes / MINUTES_PER_HOUR,
        amount=offering.get("UpfrontFee", ""),
        currency=offering.get("CurrencyCode", ""),
    )


def _capacities(parts: Sequence[dict[str, Any]]) -> Iterator[str]:
    for part in parts:
        number = f"{part['InstanceCount']} * {part['InstanceType']}"
        if "UltraServerType" in part:
            number = f"{part.get('UltraServerCount', 1)} * {part['UltraServerType']} ({number})"
        yield f"{number} in {part.get('AvailabilityZone', 'an unnamed zone')}"
