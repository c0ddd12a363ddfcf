"""Training plans that a cluster file uses: their states and ends, in ``make status``."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from config.facts.training_plans import WARNING_DAYS, groups_of_plans, plan_name
from tools.aws_session import aws_client, explain, open_session
from tools.command_line import format_table
from tools.json_output import publish
from tools.training_plans.plans import as_time, read_plan

DAY = timedelta(days=1)
HEADER = ("plan", "state", "end", "days left", "groups")
NOT_FOUND = "not found"


@dataclass(frozen=True)
class UsedPlan:
    """Training plan of a cluster file."""

    name: str
    state: str
    end: str
    """End in UTC; empty if the service names none."""
    days_left: float | None
    groups: list[str]
    """Names of the groups that use it."""


def print_plans(cluster: Cluster, profile: str | None) -> None:
    """Print the training plans of a cluster file; nothing if it has none.

    If they cannot be read, that becomes one line, because the report only adds to another one.
    """
    if not groups_of_plans(cluster):
        return
    session = open_session(region=cluster.region, profile=profile)
    try:
        found = _read(aws_client(session, "sagemaker"), cluster)
    except (BotoCoreError, ClientError) as error:
        print(f"\ntraining plans: cannot be read: {explain(error)}")
        return
    publish(plans=[asdict(plan) for plan in found])
    print("\ntraining plans:", *_lines(found), sep="\n")


def _read(sagemaker: Any, cluster: Cluster) -> list[UsedPlan]:
    now = datetime.now(UTC)
    found = []
    for arn, groups in groups_of_plans(cluster).items():
        plan = read_plan(sagemaker, plan_name(arn))
        left = plan.time_left(now) if plan else None
        found.append(
            UsedPlan(
                name=plan_name(arn),
                state=plan.state if plan else NOT_FOUND,
                end=as_time(plan.end) if plan else "",
                days_left=None if left is None else round(left / DAY, 1),
                groups=[group.name for group in groups],
            )
        )
    return found


def _lines(found: Sequence[UsedPlan]) -> list[str]:
    rows = [
        [
            plan.name,
            plan.state,
            f"{plan.end} UTC" if plan.end else "not named",
            "" if plan.days_left is None else f"{plan.days_left:g}",
            ", ".join(plan.groups),
        ]
        for plan in found
    ]
    lines = [f"  {line}" for line in format_table(HEADER, rows).splitlines()]
    for plan in found:
        if plan.days_left is not None and 0 < plan.days_left <= max(WARNING_DAYS):
            lines.append(
                f"  {plan.name} ends in {plan.days_left:g} days. make plans-search PLAN={plan.name} lists "
                "extensions"
            )
    return lines
