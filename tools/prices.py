"""``python -m tools.prices [--region REGION]``: a region's prices, from AWS's list, into config/prices.

What the list has replaces what was there; the rest of the file stays, with its older sources.
"""

from __future__ import annotations

import csv
import io
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from config.loader import load_cluster
from config.price_list import COLUMNS, FOLDER
from config.regions import ZONE_ID_PREFIXES
from tools.aws_session import aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.price_queries import QUERIES, Found, Query, filters, matching

API_REGION = "us-east-1"
"""One of the few that have the API; it knows the prices of all."""
SOURCE = "price-list-api"
Row = dict[str, str]


def main() -> int:
    parser = cluster_parser("Fetch a region's prices from AWS.")
    parser.add_argument("--region", help="as us-west-2; that of the cluster file if not given")
    options = parser.parse_args()
    region = options.region or load_cluster(options.cluster).region
    if region not in ZONE_ID_PREFIXES:
        raise ValueError(f"--region: got {region}; allowed are {', '.join(ZONE_ID_PREFIXES)}")
    pricing = aws_client(open_session(region=API_REGION, profile=options.profile), "pricing")
    for line in refresh(pricing, region, FOLDER):
        print(line)
    return 0


def refresh(pricing: Any, region: str, folder: Path) -> list[str]:
    """Write the region's file; returns what there is to say about it.

    Raises:
        ValueError: if the list has nothing of all that for the region; the file stays as it is.
    """
    found: dict[str, list[Found]] = defaultdict(list)
    for service in dict.fromkeys((query.service, tuple(query.filters.items())) for query in QUERIES):
        queries = [query for query in QUERIES if (query.service, tuple(query.filters.items())) == service]
        products = _products(pricing, queries[0], region)
        for query in queries:
            for price in matching(query, iter(products)):
                found[price.key].append(price)
    doubtful = {key: prices for key, prices in found.items() if len({price.usd for price in prices}) > 1}
    certain = {key: prices[0] for key, prices in found.items() if key not in doubtful}
    if not certain:
        raise ValueError(
            f"{region}: the AWS Price List has none of the prices asked for; nothing was written. Compare"
            " tools/price_queries.py with `aws pricing get-products --service-code AmazonSageMaker`"
        )
    path = folder / f"{region}.csv"
    before = _rows(path)
    kept = {key: row for key, row in before.items() if key not in certain}
    _write(path, {**kept, **{key: _row(price) for key, price in certain.items()}})
    return [
        f"{path}: {len(certain)} prices of the AWS Price List",
        *_changes(before, certain),
        *(f"not taken, the list has several: {key} {_several(prices)}" for key, prices in doubtful.items()),
        *([f"as they were, the list has none: {', '.join(sorted(kept))}"] if kept else []),
    ]


def _products(pricing: Any, query: Query, region: str) -> list[str]:
    pages = pricing.get_paginator("get_products").paginate(
        ServiceCode=query.service, Filters=filters(query, region), FormatVersion="aws_v1"
    )
    return [product for page in pages for product in page["PriceList"]]


def _rows(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["key"]: dict(row) for row in csv.DictReader(file)}


def _row(price: Found) -> Row:
    usd = f"{price.usd:.10f}".rstrip("0").rstrip(".")
    values = (price.key, usd, price.unit, price.published, SOURCE, "")
    return dict(zip(COLUMNS, values, strict=True))


def _write(path: Path, rows: Mapping[str, Row]) -> None:
    text = io.StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[key] for key in sorted(rows))
    unfinished = path.with_suffix(".csv.tmp")
    unfinished.write_text(text.getvalue())
    unfinished.replace(path)


def _changes(before: Mapping[str, Row], now: Mapping[str, Found]) -> list[str]:
    changes = []
    for key in sorted(now):
        old = float(before[key]["usd"]) if key in before else None
        if old is not None and old != now[key].usd:
            changes.append(f"{key}: {old:g} -> {now[key].usd:g} USD per {now[key].unit}")
    return changes


def _several(prices: Sequence[Found]) -> str:
    return ", ".join(f"{price.usd:g} ({price.sku})" for price in prices)


if __name__ == "__main__":
    run_command(main)
