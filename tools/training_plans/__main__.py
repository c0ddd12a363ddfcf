"""Training plans: ``python -m tools.training_plans search|list|buy|extend --cluster FILE``.

``search`` and ``list`` only read. ``buy`` and ``extend`` spend money, so a person types the amount in a
terminal. The exit status is 1 if it is not known whether the service has carried out a purchase.
"""

import argparse
import math
import re
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any

import boto3

from config.cluster_kinds import AnyCluster
from config.facts.instance_catalogue import INSTANCE_TYPES
from config.reading.loader import load_cluster
from config.resource_names import tags_of
from seqlm.training.strict_yaml import shown
from tools.aws_session import SENT_ONCE, all_items, aws_client, open_session
from tools.command_line import cluster_parser, format_table, run_command
from tools.json_output import add_json_option, publish
from tools.training_plans import offerings, plans, purchase
from tools.training_plans.offerings import HOURS_PER_DAY, Offering, Wanted
from tools.training_plans.plans import Plan
from tools.usage.period import parse_date

NOT_KNOWN = 1
"""Exit status if it is not known whether a purchase was carried out."""
MAX_INSTANCES = 256
"""Most instances of a search (API reference, ``InstanceCount``)."""
NAME = re.compile(r"[a-zA-Z0-9](-*[a-zA-Z0-9]){0,63}")
"""Form of a plan's name (API reference, ``TrainingPlanName``)."""
PLANNED = sorted(name for name, found in INSTANCE_TYPES.items() if found.training_plan)
"""Types that plans reserve."""


def main() -> int:
    options = _options()
    commands: dict[str, Callable[[AnyCluster, boto3.Session, argparse.Namespace], int]] = {
        "search": _search,
        "list": _list,
        "buy": _buy,
        "extend": _extend,
    }
    if options.action in ("buy", "extend"):
        purchase.refuse_without_person()
    cluster = load_cluster(options.cluster)
    session = open_session(region=cluster.region, profile=options.profile)
    return commands[options.action](cluster, session, options)


def _options() -> argparse.Namespace:
    parser = cluster_parser("Search, list, buy or extend training plans in the cluster's region.")
    parser.add_argument("action", choices=("search", "list", "buy", "extend"))
    parser.add_argument("--type", help="instance type, or type of UltraServers (ml.u-...)")
    parser.add_argument("--nodes", type=int, help="number of instances or UltraServers")
    parser.add_argument("--days", type=float, help="days of the plan or of its extension")
    parser.add_argument("--since", metavar="DATE", help="earliest start (default: now)")
    parser.add_argument("--until", metavar="DATE", help="latest end (default: any)")
    parser.add_argument("--plan", metavar="NAME", help="name of the plan")
    parser.add_argument("--offering", metavar="ID", help="offering that search has printed")
    parser.add_argument(
        "--another",
        action="store_true",
        help="buy although the account has a plan with the same capacity and dates",
    )
    add_json_option(parser)
    return parser.parse_args()


def _search(cluster: AnyCluster, session: boto3.Session, options: argparse.Namespace) -> int:
    """List offerings of plans, or of extensions of a plan."""
    sagemaker = aws_client(session, "sagemaker")
    if options.plan:
        found = offerings.search_extensions(
            sagemaker, _existing_plan(sagemaker, options.plan), _hours(options.days)
        )
        again = f"make plans-extend PLAN={options.plan} OFFERING=<offering>"
        if options.days:
            again += f" DAYS={options.days:g}"
    else:
        found = offerings.search_plans(sagemaker, _wanted(options))
        again = f"make plans-buy PLAN=<name> OFFERING=<offering> {_search_words(options)}"
    publish(region=cluster.region, offerings=[offering.as_json() for offering in found])
    if not found:
        print(
            f"{cluster.region}: nothing is offered for this search. Try other DAYS, fewer NODES, later "
            "dates, or another region"
        )
        return 0
    print(format_table(offerings.HEADER, [offering.row() for offering in found]))
    print(f"\nTimes are in UTC. To buy one, after its amount is shown again: {again}")
    return 0


def _list(cluster: AnyCluster, session: boto3.Session, options: argparse.Namespace) -> int:
    found = plans.list_plans(aws_client(session, "sagemaker"))
    publish(region=cluster.region, plans=[plan.as_json() for plan in found])
    if found:
        print(format_table(plans.HEADER, [plan.row() for plan in found]))
        print("\nTimes are in UTC. Values of training_plan_arn in the cluster file:")
        print("\n".join(f"  {plan.arn}" for plan in found))
    else:
        print(f"{cluster.region}: the account has no training plans")
    return 0


def _buy(cluster: AnyCluster, session: boto3.Session, options: argparse.Namespace) -> int:
    """Buy a plan: show it, have the amount typed, look whether it is unchanged, and send the request once."""
    name = _required("PLAN", options.plan)
    if not NAME.fullmatch(name):
        raise ValueError(
            f"PLAN: got {shown(name)}; expected up to 64 letters, digits, and single hyphens within"
        )
    offering_id = _required("OFFERING", options.offering)
    wanted = _wanted(options)
    sagemaker = aws_client(session, "sagemaker")
    existing = plans.list_plans(sagemaker)
    if any(plan.name == name for plan in existing):
        raise ValueError(
            f"PLAN: {name} exists already, so that this may be a repetition; make plans-list shows it. "
            "Another plan needs another name"
        )
    offering = offerings.find_offering(offerings.search_plans(sagemaker, wanted), offering_id)
    _refuse_twin(existing, offering, options.another)
    purpose = f"Buy training plan {name} in {cluster.region}"
    print(purchase.explanation(offering, purpose, purchase.CREATE_ACTIONS))
    purchase.confirm(offering)
    now = offerings.find_offering(offerings.search_plans(sagemaker, wanted), offering_id)
    purchase.check_unchanged(offering, now)
    buyer = aws_client(session, "sagemaker", SENT_ONCE)
    is_bought = purchase.send_once(
        lambda: buyer.create_training_plan(
            TrainingPlanName=name,
            TrainingPlanOfferingId=offering_id,
            Tags=[{"Key": key, "Value": value} for key, value in tags_of(cluster).items()],
        ),
        lambda: plans.read_plan(sagemaker, name) is not None,
        purchase.CREATE_ACTIONS,
    )
    publish(offering=offering.as_json(), is_bought=is_bought)
    if not is_bought:
        return _not_known(f"PLAN={name}: the service takes a name once")
    plan = plans.read_plan(sagemaker, name)
    if plan is None:
        print(f"bought {name}; make plans-list shows it soon")
        return 0
    publish(plan=plan.as_json())
    print(
        f"bought {plan.arn}: {plan.state}, {plan.capacity}\n"
        "In the cluster file, set training_plan_arn of the group to it, num_instances to at most "
        f"{plan.num_instances}, and availability_zone_id to its zone. Then: make preflight"
    )
    return 0


def _extend(cluster: AnyCluster, session: boto3.Session, options: argparse.Namespace) -> int:
    """Buy an extension of a plan, like a plan."""
    name = _required("PLAN", options.plan)
    offering_id = _required("OFFERING", options.offering)
    hours = _hours(options.days)
    sagemaker = aws_client(session, "sagemaker")
    plan = _existing_plan(sagemaker, name)
    _refuse_repetition(sagemaker, plan, offering_id)
    offering = offerings.find_offering(
        offerings.search_extensions(sagemaker, plan, hours), offering_id
    )
    end = plans.as_time(plan.end)
    purpose = f"Extend training plan {plan.name} in {cluster.region}, which ends {end} UTC"
    print(purchase.explanation(offering, purpose, purchase.EXTEND_ACTIONS))
    purchase.confirm(offering)
    now = offerings.find_offering(offerings.search_extensions(sagemaker, plan, hours), offering_id)
    purchase.check_unchanged(offering, now)
    buyer = aws_client(session, "sagemaker", SENT_ONCE)
    is_bought = purchase.send_once(
        lambda: buyer.extend_training_plan(TrainingPlanExtensionOfferingId=offering_id),
        lambda: offering_id in _bought_extensions(sagemaker, plan),
        purchase.EXTEND_ACTIONS,
    )
    publish(offering=offering.as_json(), is_bought=is_bought)
    if not is_bought:
        return _not_known("OFFERING: an extension that the plan has is not bought again")
    extended = plans.read_plan(sagemaker, name) or plan
    publish(plan=extended.as_json())
    print(f"extended {plan.name}; it ends {plans.as_time(extended.end)} UTC")
    return 0


def _not_known(why: str) -> int:
    print(
        "NOT KNOWN whether it was bought. Look at make plans-list in a few minutes. To repeat the command is "
        f"safe with the same {why}"
    )
    return NOT_KNOWN


def _wanted(options: argparse.Namespace) -> Wanted:
    """Return the capacity to search for.

    Raises:
        ValueError: if a value is missing, or no plan can have it.
    """
    kind = _required("TYPE", options.type)
    if kind not in PLANNED and not kind.startswith(offerings.ULTRASERVER_PREFIX):
        raise ValueError(
            f"TYPE: got {shown(kind)}; plans reserve {', '.join(PLANNED)}, and UltraServers "
            f"({offerings.ULTRASERVER_PREFIX}...)"
        )
    number = _required("NODES", options.nodes)
    if not 1 <= number <= MAX_INSTANCES:
        raise ValueError(f"NODES: got {number}; a plan has 1 to {MAX_INSTANCES} instances")
    hours = _hours(_required("DAYS", options.days))
    assert hours is not None
    since = parse_date("SINCE", options.since) if options.since else None
    until = parse_date("UNTIL", options.until) if options.until else None
    if until and until <= (since or datetime.now(UTC)):
        raise ValueError(
            f"SINCE, UNTIL: the latest end {plans.as_time(until)} must be after the earliest start "
            f"{plans.as_time(since) or 'now'}"
        )
    return Wanted(kind, number, hours, since, until)


def _search_words(options: argparse.Namespace) -> str:
    """Return the variables of make that repeat a search."""
    values = {
        "TYPE": options.type,
        "NODES": options.nodes,
        "DAYS": f"{options.days:g}",
        "SINCE": options.since,
        "UNTIL": options.until,
    }
    return " ".join(f"{name}={value}" for name, value in values.items() if value)


def _required(variable: str, value: Any) -> Any:
    if value is None:
        raise ValueError(f"{variable}: it is missing; add {variable}=... (docs/capacity.md)")
    return value


def _hours(days: float | None) -> int | None:
    if days is None:
        return None
    # argparse's float also reads nan and inf.
    if not math.isfinite(days) or round(days * HOURS_PER_DAY) < 1:
        raise ValueError(f"DAYS: got {days:g}; expected a positive number, such as 14")
    return round(days * HOURS_PER_DAY)


def _existing_plan(sagemaker: Any, name: str) -> Plan:
    plan = plans.read_plan(sagemaker, name)
    if plan is None:
        raise ValueError(
            f"PLAN: there is no plan {shown(name)} in {sagemaker.meta.region_name}; see make plans-list"
        )
    return plan


def _refuse_twin(existing: Sequence[Plan], offering: Offering, is_wanted: bool) -> None:
    """Refuse what looks like a second purchase of the same capacity under another name."""
    twins = [
        plan.name
        for plan in existing
        if plan.state in plans.ACTIVE_STATES
        and (plan.start, plan.end) == (offering.start, offering.end)
        and (plan.amount, plan.currency) == (offering.amount, offering.currency)
    ]
    if twins and not is_wanted:
        raise ValueError(
            f"OFFERING: the account has {', '.join(twins)} with the same dates and amount. To buy another, "
            "add ARGS=--another"
        )


def _bought_extensions(sagemaker: Any, plan: Plan) -> list[str]:
    """Return the ids of the offerings with which a plan was extended."""
    history = all_items(
        sagemaker,
        "describe_training_plan_extension_history",
        "TrainingPlanExtensions",
        TrainingPlanArn=plan.arn,
    )
    return [extension["TrainingPlanExtensionOfferingId"] for extension in history]


def _refuse_repetition(sagemaker: Any, plan: Plan, offering_id: str) -> None:
    if offering_id in _bought_extensions(sagemaker, plan):
        raise ValueError(
            f"OFFERING: {plan.name} was extended with {offering_id} already; it ends "
            f"{plans.as_time(plan.end)} UTC"
        )


if __name__ == "__main__":
    run_command(main)
