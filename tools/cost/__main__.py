"""Cost of a cluster: ``python -m tools.cost --cluster FILE [hours=200 ...]``, or ``--endpoint FILE``."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from config.cluster import InstanceGroup
from config.cluster_kinds import AnyCluster
from config.eks_cluster import EksCluster, EksInstanceGroup
from config.endpoint import Endpoint
from config.facts.price_list import (
    HOURS_PER_MONTH,
    PriceList,
    dearest,
    load_prices,
    node_keys,
    sources,
)
from config.reading.loader import load_cluster
from config.resource_names import CLUSTER_TAG
from config.slurm_cluster import SlurmCluster
from config.storage import EFA_NOT_CONFIGURED
from tools.command_line import cluster_parser, format_table, run_command
from tools.cost.bill import Bill, Line, Usage, hourly_usd, make_bill, parse_usage
from tools.cost.cluster_items import cluster_items, endpoint_items, read_endpoint
from tools.cost.plan_prices import NO_PLANS, PaidPlan, read_paid_plans
from tools.json_output import add_json_option, publish

NIGHT_HOURS = 14
"""Hours from 18:00 to 8:00."""
CONTROLLER_USD = 0.25
"""USD per hour up to which no controller is called large; an ml.m5.xlarge with 16 GiB costs less."""
WEEKEND_HOURS = 62
"""Hours from Friday, 18:00, to Monday, 8:00."""


def main() -> int:
    parser = cluster_parser("Print the monthly and hourly cost of a cluster or endpoint.")
    parser.add_argument(
        "--endpoint", type=Path, metavar="FILE", help="endpoint file, instead of a cluster file"
    )
    parser.add_argument(
        "--plans",
        action="store_true",
        help="read the amounts of the file's training plans from the account, instead of on-demand prices",
    )
    parser.add_argument(
        "usage", nargs="*", metavar="NAME=VALUE", help="monthly usage, see tools/cost/bill.py"
    )
    add_json_option(parser)
    options = parser.parse_intermixed_args()
    usage = parse_usage(options.usage)
    billed: AnyCluster | Endpoint
    plans = NO_PLANS
    if options.endpoint:
        if options.plans:
            raise ValueError("--plans: an endpoint has no training plans; omit it")
        billed = read_endpoint(options.endpoint)
        items = endpoint_items(billed, usage)
        kind = "endpoint"
    else:
        billed = load_cluster(options.cluster)
        if options.plans:
            plans = read_paid_plans(billed, options.profile)
        items = cluster_items(billed, usage, plans)
        kind = billed.scheduler
    prices = {
        **load_prices(billed.region),
        **{paid.key: paid.price for paid in plans.values()},
    }
    bill = make_bill(billed.region, items, prices)
    if isinstance(billed, Endpoint):
        notes = scaling_note(billed, prices)
    else:
        notes = [
            *idle_notes(bill),
            *controller_note(billed, prices),
            *capacity_notes(billed, prices, plans),
            *unpriced_notes(billed),
            *budget_note(billed, bill),
            usage_note(usage),
        ]
    notes = [*notes, *price_notes(bill)]
    publish(
        name=billed.name,
        kind=kind,
        region=billed.region,
        monthly_usd=bill.monthly_usd,
        hourly_usd=hourly_usd(bill.monthly_usd),
        lines=[_published(line, bill) for line in bill.lines],
        unpriced=bill.lacking,
        notes=notes,
    )
    print(f"{billed.name} ({kind}) in {billed.region}, on demand\n")
    print(bill_table(bill), *notes, "\nPrices:", sep="\n")
    described = sources()
    for name in sorted({line.price.source for line in bill.lines if line.price}):
        print(f"  {name}: {described[name]}")
    return 0


def _published(line: Line, bill: Bill) -> dict[str, Any]:
    """Return a line of the bill for ``--json``."""
    return {
        "service": line.item.service,
        "dimensions": line.item.dimensions,
        "key": line.item.key,
        "scope": line.item.scope,
        "monthly_usd": line.monthly_usd if line.price else None,
        "is_borrowed": _is_borrowed(line, bill),
    }


def bill_table(bill: Bill) -> str:
    """Return the table of services, dimensions and USD per month and hour; notes explain ``*``."""
    header = ("AWS service", "Dimensions", "USD / month", "USD / hour")
    rows = []
    for line in bill.lines:
        dimensions = line.item.dimensions + (" *" if _is_borrowed(line, bill) else "")
        amounts = _amounts(line.monthly_usd) if line.price else ("not known", "not known")
        rows.append([line.item.service, dimensions, *amounts])
    least = "at least " if bill.lacking else ""
    total = bill.monthly_usd
    rows.append(["Total", "", *(f"{least}{amount}" for amount in _amounts(total))])
    borrowed = sum(line.monthly_usd for line in bill.lines if _is_borrowed(line, bill))
    if borrowed:
        dimensions = f"prices of other regions or products * ({borrowed / total:.0%})"
        rows.append(["of which", dimensions, *_amounts(borrowed)])
    return format_table(header, rows)


def _amounts(monthly_usd: float) -> tuple[str, str]:
    """Return the cells of a monthly cost: per month, and per hour."""
    return f"{monthly_usd:.2f}", f"{hourly_usd(monthly_usd):.3f}"


def _is_borrowed(line: Line, bill: Bill) -> bool:
    """Return whether the price belongs to another region or product."""
    return bool(line.price and (line.price.region != bill.region or line.price.stand_in))


def price_notes(bill: Bill) -> list[str]:
    """Return notes about borrowed prices, by their origin, and about missing prices."""
    keys_of: dict[str, list[str]] = defaultdict(list)
    for key, line in {line.item.key: line for line in bill.lines}.items():
        price = line.price
        if price and _is_borrowed(line, bill):
            elsewhere = f"as it is in {price.region}" if price.region != bill.region else ""
            origin = " ".join(filter(None, (price.stand_in, elsewhere)))
            keys_of[origin].append(key)
    notes = [f"* {origin}: {', '.join(keys)}" for origin, keys in keys_of.items()]
    if bill.lacking:
        notes.append(
            f"Not in the total, because no price is known: {', '.join(bill.lacking)}."
            f" `make prices REGION={bill.region}` fetches prices from AWS."
        )
    elif notes:
        notes.append(f"`make prices REGION={bill.region}` replaces them with AWS's own list.")
    return notes


def idle_notes(bill: Bill) -> list[str]:
    """Return notes about the cost of idle nodes, which cost as much as busy ones while they exist."""
    hourly = hourly_usd(bill.monthly_usd_of("nodes"))
    night = hourly * NIGHT_HOURS
    weekend = hourly * WEEKEND_HOURS
    kept = bill.monthly_usd_of("kept")
    return [
        f"Idle nodes cost the same: {hourly:.2f} USD per hour for nodes and their metrics, logs and traffic,"
        f" {night:.0f} USD per night ({NIGHT_HOURS} h), {weekend:.0f} USD per weekend ({WEEKEND_HOURS} h).",
        f"`make destroy` ends this and leaves {kept:.2f} USD per month for the rest until `make teardown`."
        " Retained resources bill even after that.",
    ]


def controller_note(cluster: AnyCluster, prices: PriceList) -> list[str]:
    """Return a warning if most of the cost without workers is the controller."""
    if not isinstance(cluster, SlurmCluster):
        return []
    usd = {
        group.name: group.num_instances * price.usd
        for group in cluster.instance_groups
        if (price := dearest(node_keys(group.types), prices))
    }
    controllers = [group for group in cluster.instance_groups if group.role == "controller"]
    of_controllers = sum(usd.get(group.name, 0) for group in controllers)
    of_workers = sum(usd.get(group.name, 0) for group in cluster.instance_groups if group.runs_jobs)
    others = sum(usd.values()) - of_controllers
    if of_controllers <= CONTROLLER_USD or of_controllers <= others:
        return []
    types = ", ".join(group.types_text for group in controllers)
    return [
        f"Most of the cost of nodes is the controller: {types} costs {of_controllers:.2f} USD per hour, the"
        f" workers {of_workers:.2f}. The services of a controller needed 0.3 GiB and 0.06 processors with"
        " 1,000 jobs in the queue (docs/cost.md)."
    ]


def capacity_notes(
    cluster: AnyCluster, prices: PriceList, plans: Mapping[str, PaidPlan] = NO_PLANS
) -> Iterator[str]:
    """Yield notes about groups whose bill differs from on-demand prices."""
    for paid in plans.values():
        yield paid.note
    for group in cluster.instance_groups:
        if group.training_plan_arn and group.training_plan_arn not in plans:
            yield (
                f"{group.name}: a training plan is paid at purchase, at its own price, which differs from the"
                " table. ARGS=--plans reads it from the account."
            )
        if group.capacity == "spot":
            yield f"{group.name}: spot costs less than the on-demand price in the table, and varies."
        if len(group.types) > 1:
            yield _range_note(group, prices)
        price = dearest(node_keys(group.types), prices)
        if isinstance(group, EksInstanceGroup) and group.max_instances and price:
            most = group.max_instances * price.usd
            yield f"{group.name}: Karpenter may start {group.max_instances} for {most:.2f} USD per hour."


def _range_note(group: InstanceGroup, prices: PriceList) -> str:
    """Return a note about the prices of a group with several types."""
    known = {
        name: prices[key].usd
        for name, key in zip(group.types, node_keys(group.types), strict=True)
        if key in prices
    }
    unknown = [name for name in group.types if name not in known]
    parts = []
    if known:
        cheapest, *_ = sorted(known, key=known.__getitem__)
        highest = max(known, key=known.__getitem__)
        parts.append(
            f"a node costs {known[cheapest]:.2f} ({cheapest}) to {known[highest]:.2f} USD per hour "
            f"({highest}), and the table has the dearest"
        )
    if unknown:
        parts.append(f"no price is known for {', '.join(unknown)}")
    return f"{group.name}: {'; '.join(parts)}."


def unpriced_notes(cluster: AnyCluster) -> list[str]:
    """Return notes about features that the table does not show: billed by use, or without effect."""
    lustre = cluster.storage.lustre
    notes = [f"{EFA_NOT_CONFIGURED}."] if lustre and lustre.lacks_efa_client else []
    if isinstance(cluster, EksCluster) and cluster.kubernetes.existing:
        notes.append(
            f"Not in the total: the control plane of EKS cluster {cluster.kubernetes.existing}, which is"
            " billed already."
        )
    if isinstance(cluster, EksCluster) and cluster.container_insights:
        notes.append(
            "Not in the total: Container Insights, which bills per observation and for its logs."
        )
    return notes


def usage_note(usage: Usage) -> str:
    """Return the assumptions behind the lines that depend on usage."""
    return (
        f"Assumed: nodes exist for {usage.hours:g} of {HOURS_PER_MONTH} hours, {usage.data_gb:g} GB in"
        f" S3, {usage.image_gb:g} GB of images, {usage.nat_gb:g} GB through NAT, {usage.endpoint_gb:g}"
        f" GB through endpoints, {usage.logs_gb:g} GB of logs."
        " Change it: ARGS='hours=200 data_gb=2000 nat_gb=500 ...' (tools/cost/bill.py)."
    )


def budget_note(cluster: AnyCluster, bill: Bill) -> list[str]:
    if cluster.budget is None:
        return []
    limit = cluster.budget.monthly_usd
    total = bill.monthly_usd
    how = "above" if total > limit else "within"
    return [
        f"{total:.0f} USD per month are {how} the budget of {limit} USD, which counts nothing until the tag"
        f" {CLUSTER_TAG} is activated as a cost allocation tag in the paying account."
    ]


def scaling_note(endpoint: Endpoint, prices: PriceList) -> list[str]:
    price = prices.get(f"hosting.{endpoint.instance_type}")
    most = endpoint.instances.max
    if price is None or most == endpoint.instances.min:
        return []
    return [f"Scaled to {most} instances it costs {most * price.usd:.2f} USD per hour."]


if __name__ == "__main__":
    run_command(main)
