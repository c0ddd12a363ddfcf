"""Prices of training plans: the amount that an account paid for each, per hour of the plan."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from decimal import Decimal, InvalidOperation
from types import MappingProxyType

from config.cluster import Cluster
from config.facts.price_list import Price
from config.facts.training_plans import groups_of_plans, plan_name
from tools.aws_session import aws_client, open_session
from tools.training_plans.plans import Plan, as_amount, as_days, as_time, read_plan

SOURCE = "training-plan"
"""Key in ``sources.csv``."""
CURRENCY = "USD"


@dataclass(frozen=True)
class PaidPlan:
    """Training plan whose price is known."""

    plan: Plan
    price: Price
    """USD per hour of the whole plan."""

    @property
    def key(self) -> str:
        """Return the key of the price in a bill."""
        return f"plan.{self.plan.name}"

    @property
    def text(self) -> str:
        """Return what was paid."""
        amount = as_amount(self.plan.amount, self.plan.currency)
        return f"{self.plan.capacity}, {amount} for {as_days(self.plan.hours)} days"

    @property
    def note(self) -> str:
        time = f"{as_time(self.plan.start)} to {as_time(self.plan.end)} UTC"
        return (
            f"{self.plan.name}: {as_amount(self.plan.amount, self.plan.currency)} are paid at purchase, with "
            f"or without a cluster, for {time}. The table spreads them over the plan's hours."
        )


NO_PLANS: Mapping[str, PaidPlan] = MappingProxyType({})
"""Plans of a bill that reads none."""


def read_paid_plans(cluster: Cluster, profile: str | None) -> Mapping[str, PaidPlan]:
    """Return the plans of a cluster file by ARN, with the prices that the account paid.

    Raises:
        ValueError: if a plan does not exist, or has no price in USD.
    """
    session = open_session(region=cluster.region, profile=profile)
    sagemaker = aws_client(session, "sagemaker")
    paid = {}
    for arn in groups_of_plans(cluster):
        name = plan_name(arn)
        plan = read_plan(sagemaker, name)
        if plan is None:
            raise ValueError(
                f"--plans: there is no plan {name} in {cluster.region}; see make plans-list"
            )
        paid[arn] = PaidPlan(plan, _price(plan, cluster.region))
    return paid


def _price(plan: Plan, region: str) -> Price:
    """Return the price of a plan per hour."""
    try:
        amount = float(Decimal(plan.amount))
    except InvalidOperation:
        amount = 0.0
    if not amount or not plan.hours or plan.currency != CURRENCY:
        raise ValueError(
            f"--plans: {plan.name} costs {as_amount(plan.amount, plan.currency)} for {plan.hours:g} hours; "
            f"the table needs an amount in {CURRENCY} and a duration. Omit --plans"
        )
    today = f"{datetime.now(UTC):%Y-%m-%d}"
    return Price(amount / plan.hours, "hour", today, SOURCE, stand_in="", region=region)
