"""``python -m tools.cost --cluster FILE [hours=200 nat_gb=500 ...]``, or ``--endpoint FILE``."""

from __future__ import annotations

from pathlib import Path

from config.facts.price_list import load_prices, sources
from config.reading.loader import load_cluster
from tools.command_line import cluster_parser, run_command
from tools.cost.bill import Bill, Usage, make_bill, parse_usage
from tools.cost.cluster_items import cluster_items, endpoint_items, read_endpoint
from tools.cost.report import (
    bill_table,
    budget_note,
    capacity_notes,
    idle_notes,
    price_notes,
    scaling_note,
    unpriced_notes,
    usage_note,
)


def main() -> int:
    parser = cluster_parser("What a cluster, or an endpoint, costs a month and an hour.")
    parser.add_argument("--endpoint", type=Path, metavar="FILE", help="endpoint file, in place of a cluster")
    parser.add_argument("usage", nargs="*", metavar="NAME=VALUE", help="of tools/cost/bill.py")
    options = parser.parse_intermixed_args()
    usage = parse_usage(options.usage)
    if options.endpoint:
        _print_endpoint(options.endpoint, usage)
    else:
        _print_cluster(options.cluster, usage)
    return 0


def _print_cluster(path: Path, usage: Usage) -> None:
    cluster = load_cluster(path)
    prices = load_prices(cluster.region)
    bill = make_bill(cluster_items(cluster, usage), prices)
    print(f"{cluster.name} ({cluster.scheduler}) in {cluster.region}, on demand\n")
    _print(
        bill,
        [
            *idle_notes(bill),
            *capacity_notes(cluster, prices),
            *unpriced_notes(cluster),
            *budget_note(cluster, bill),
            usage_note(usage),
        ],
    )


def _print_endpoint(path: Path, usage: Usage) -> None:
    endpoint = read_endpoint(path)
    prices = load_prices(endpoint.region)
    bill = make_bill(endpoint_items(endpoint, usage), prices)
    print(f"{endpoint.name} (endpoint) in {endpoint.region}, on demand\n")
    _print(bill, scaling_note(endpoint, prices))


def _print(bill: Bill, notes: list[str]) -> None:
    print(bill_table(bill), *notes, *price_notes(bill), sep="\n")
    described = sources()
    print("\nPrices:")
    for name in sorted({line.price.source for line in bill.lines if line.price}):
        print(f"  {name}: {described[name]}")


if __name__ == "__main__":
    run_command(main)
