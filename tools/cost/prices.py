"""Fetch prices from AWS's list into config/facts/prices: ``python -m tools.cost.prices [--region REGION]``.

With credentials, the Price List API answers queries. Without, AWS's public price files are read.

Fetched prices replace older ones. The rest of the file stays, with its older sources.

Products are identified by the usage type from bills, after a prefix for the region (USE1-, us-east-1-, or
none). Other projects that read the list document these usage types. No project documents MLflow's, so its
price is not fetched.
"""

import csv
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

from config.facts.price_list import COLUMNS, FOLDER
from config.facts.regions import ZONE_ID_PREFIXES
from config.reading.loader import load_cluster
from seqlm.training.whole_file import write_whole
from tools.aws_session import all_items, aws_client, open_session
from tools.command_line import cluster_parser, run_command
from tools.cost.offer_files import Opener, open_url, public_products
from tools.json_output import add_json_option, publish

REGION = r"(?:[A-Z]{2,4}\d?-|[a-z]{2}-[a-z]+-\d-)?"
"""Only the region's prefix; local zones and S3's tables and vectors have usage types with the same ending."""
INSTANCE_TYPE = r"(?P<type>ml\.[\w-]+\.\w+)"
"""Instance types, without reserved ones (``ml.p5.48xlarge-Reserved``), which also have on-demand terms."""
API_REGION = "us-east-1"
"""One of the few regions with the API, which has the prices of all regions."""
SOURCE = "price-list-api"
PUBLIC_SOURCE = "price-list-files"
Row = dict[str, str]


@dataclass(frozen=True)
class Query:
    service: str
    """ServiceCode of the AWS Price List."""
    attributes: Mapping[str, str]
    """Regular expressions that must match the product's whole attributes."""
    key: str
    """Key of the price, with the expressions' groups."""
    unit: str
    filters: Mapping[str, str] = field(default_factory=dict)
    """Filters that AWS applies, in addition to the region."""
    multiple: float = 1.0
    """Number of the list's units per unit here."""


@dataclass(frozen=True)
class Found:
    key: str
    usd: float
    unit: str
    sku: str
    published: str
    """Date of the service's price list."""


def main() -> int:
    parser = cluster_parser("Fetch a region's prices from AWS.")
    parser.add_argument("--region", help="for example us-west-2 (default: the cluster file's)")
    parser.add_argument(
        "--public", action="store_true", help="read AWS's public price files even with credentials"
    )
    add_json_option(parser)
    options = parser.parse_args()
    region = options.region or load_cluster(options.cluster).region
    if region not in ZONE_ID_PREFIXES:
        raise ValueError(f"--region: got {region}; allowed are {', '.join(ZONE_ID_PREFIXES)}")
    session = open_session(region=API_REGION, profile=options.profile)
    if options.public or session.get_credentials() is None:
        print(f"{region}: reading AWS's public price files, of which EC2's is large", flush=True)
        source = PUBLIC_SOURCE
        lines = refresh_from_files(region, FOLDER)
    else:
        source = SOURCE
        lines = refresh(aws_client(session, "pricing"), region, FOLDER)
    publish(region=region, source=source, lines=lines)
    for line in lines:
        print(line)
    return 0


def refresh(pricing: Any, region: str, folder: Path) -> list[str]:
    """Write the region's file from the API, and return lines that describe the changes.

    Raises:
        ValueError: if the list has none of the prices for the region. The file is then unchanged.
    """
    return _replace(_fetch(pricing, region), region, folder, SOURCE)


def refresh_from_files(region: str, folder: Path, *, opener: Opener = open_url) -> list[str]:
    """Write the region's file from AWS's public price files, and return lines that describe the changes.

    Raises:
        ValueError: if the files have none of the prices for the region, or another form. The file is then
            unchanged.
        OSError: if a file cannot be read.
    """
    found: dict[str, list[Found]] = defaultdict(list)
    for service in dict.fromkeys(query.service for query in QUERIES):
        queries = [query for query in QUERIES if query.service == service]
        products = public_products(
            service, region, partial(_is_wanted_by_any, queries), opener=opener
        )
        for product in products:
            for query in queries:
                if _passes_filters(query, product["product"]):
                    for price in matching(query, [product]):
                        found[price.key].append(price)
    return _replace(found, region, folder, PUBLIC_SOURCE)


def _is_wanted_by_any(queries: Sequence[Query], product: Mapping[str, Any]) -> bool:
    return any(
        _passes_filters(query, product) and all(_matches(query, product["attributes"]))
        for query in queries
    )


def _passes_filters(query: Query, product: Mapping[str, Any]) -> bool:
    """Return whether a product has what the API would filter by."""
    fields = {**product["attributes"], **product}
    return all(fields.get(name) == value for name, value in query.filters.items())


def _replace(found: Mapping[str, list[Found]], region: str, folder: Path, source: str) -> list[str]:
    doubtful = {
        key: prices for key, prices in found.items() if len({price.usd for price in prices}) > 1
    }
    certain = {key: prices[0] for key, prices in found.items() if key not in doubtful}
    if not certain:
        raise ValueError(
            f"{region}: the AWS Price List has none of the requested prices; nothing was written. Compare"
            " tools/cost/prices.py with `aws pricing get-products --service-code AmazonSageMaker`"
        )
    path = folder / f"{region}.csv"
    before = _rows(path)
    kept = {key: row for key, row in before.items() if key not in certain}
    _write(path, {**kept, **{key: _row(price, source) for key, price in certain.items()}})
    lines = [f"{path}: {len(certain)} prices from the AWS Price List", *_changes(before, certain)]
    for key, prices in doubtful.items():
        several = ", ".join(f"{price.usd:g} ({price.sku})" for price in prices)
        lines.append(f"skipped, because the list has several: {key} {several}")
    if kept:
        lines.append(f"unchanged, because the list has none: {', '.join(sorted(kept))}")
    return lines


def _fetch(pricing: Any, region: str) -> dict[str, list[Found]]:
    """Return the prices of all queries by key. Queries with the same filters share one request."""
    found: dict[str, list[Found]] = defaultdict(list)
    products: dict[str, list[dict[str, Any]]] = {}
    for query in QUERIES:
        fields = {"regionCode": region, **query.filters}
        request = f"{query.service} {fields}"
        if request not in products:
            filters = [
                {"Type": "TERM_MATCH", "Field": name, "Value": value}
                for name, value in fields.items()
            ]
            listed = all_items(
                pricing,
                "get_products",
                "PriceList",
                ServiceCode=query.service,
                Filters=filters,
                FormatVersion="aws_v1",
            )
            products[request] = [json.loads(product) for product in listed]
        for price in matching(query, products[request]):
            found[price.key].append(price)
    return found


def _rows(path: Path) -> dict[str, Row]:
    if not path.exists():
        return {}
    with path.open(newline="") as file:
        return {row["key"]: dict(row) for row in csv.DictReader(file)}


def _row(price: Found, source: str) -> Row:
    return {
        "key": price.key,
        "usd": f"{price.usd:.10f}".rstrip("0").rstrip("."),
        "unit": price.unit,
        "as_of": price.published,
        "source": source,
        "stand_in": "",
    }


def _write(path: Path, rows: Mapping[str, Row]) -> None:
    text = StringIO()
    writer = csv.DictWriter(text, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows[key] for key in sorted(rows))
    write_whole(path, text.getvalue())


def _changes(before: Mapping[str, Row], now: Mapping[str, Found]) -> list[str]:
    return [
        f"{key}: {float(before[key]['usd']):g} -> {now[key].usd:g} USD per {now[key].unit}"
        for key in sorted(now)
        if key in before and float(before[key]["usd"]) != now[key].usd
    ]


def _usage(pattern: str) -> dict[str, str]:
    return {"usagetype": REGION + pattern}


MARIADB = {"databaseEngine": "MariaDB", "deploymentOption": "Single-AZ"}
NAT = {"productFamily": "NAT Gateway"}
LUSTRE = {
    "fileSystemType": "Lustre",
    "storageType": "SSD",
    "throughputCapacity": r"(?P<tier>\d{3,4})\b.*",
}
# The cluster's file system has a standby in its zone, for which the list adds words to "Single-AZ".
OPENZFS = {"fileSystemType": "OpenZFS", "deploymentOption": r"Single-AZ.+"}
QUERIES = (
    Query("AmazonSageMaker", _usage(f"Cluster:{INSTANCE_TYPE}"), "hyperpod.{type}", "hour"),
    Query("AmazonSageMaker", _usage(r"Cluster:VolumeUsage\.gp[23]"), "hyperpod.volume", "GB-month"),
    Query("AmazonSageMaker", _usage(f"Host:{INSTANCE_TYPE}"), "hosting.{type}", "hour"),
    Query("AmazonSageMaker", _usage(f"Studio:JupyterLab-{INSTANCE_TYPE}"), "studio.{type}", "hour"),
    Query("AmazonFSx", LUSTRE, "lustre.{tier}", "GB-month"),
    Query("AmazonFSx", {**OPENZFS, "storageType": "SSD"}, "openzfs.ssd", "GB-month"),
    Query(
        "AmazonFSx",
        OPENZFS,
        "openzfs.throughput",
        "MBps-month",
        {"productFamily": "Provisioned Throughput"},
    ),
    Query(
        "AmazonS3",
        _usage("TimedStorage-ByteHrs"),
        "s3.standard",
        "GB-month",
        {"productFamily": "Storage"},
    ),
    Query("AmazonECR", _usage("TimedStorage-ByteHrs"), "ecr.storage", "GB-month"),
    Query("AmazonEKS", _usage("AmazonEKS-Hours:perCluster"), "eks.control_plane", "hour"),
    Query("AmazonEKS", _usage("AmazonEKS-Hours:extendedSupport"), "eks.extended_support", "hour"),
    Query("AmazonEC2", _usage("NatGateway-Hours"), "nat.gateway", "hour", NAT),
    Query("AmazonEC2", _usage("NatGateway-Bytes"), "nat.traffic", "GB", NAT),
    Query("AmazonVPC", _usage("PublicIPv4:InUseAddress"), "address.public", "hour"),
    Query("AmazonVPC", _usage("VpcEndpoint-Hours"), "endpoint.interface", "hour"),
    Query("AmazonVPC", _usage("VpcEndpoint-Bytes"), "endpoint.traffic", "GB"),
    Query("awskms", _usage("KMS-Keys"), "kms.key", "month"),
    Query("AmazonCloudWatch", _usage("DataProcessing-Bytes"), "logs.ingestion", "GB"),
    Query(
        "AmazonRDS", _usage(r"InstanceUsage:(?P<class_>db\..+)"), "rds.{class_}", "hour", MARIADB
    ),
    Query("AmazonRDS", _usage("RDS:GP3-Storage"), "rds.storage", "GB-month", MARIADB),
    Query(
        "AmazonPrometheus",
        _usage("AMP:MetricSampleCount"),
        "prometheus.samples",
        "million samples",
        multiple=1e6,
    ),
    Query("AmazonGrafana", _usage("Grafana:EditorUser"), "grafana.editor", "user-month"),
)


def _matches(query: Query, attributes: Mapping[str, str]) -> list[re.Match[str] | None]:
    return [
        re.fullmatch(pattern, attributes.get(name, ""))
        for name, pattern in query.attributes.items()
    ]


def matching(query: Query, products: Sequence[Mapping[str, Any]]) -> Iterator[Found]:
    """Yield the on-demand prices of the products that match a query."""
    for product in products:
        matches = _matches(query, product["product"]["attributes"])
        usd = _on_demand_usd(product)
        if all(matches) and usd:
            groups = {
                name: text for match in matches if match for name, text in match.groupdict().items()
            }
            yield Found(
                key=query.key.format(**groups),
                usd=round(usd * query.multiple, 10),
                unit=query.unit,
                sku=product["product"]["sku"],
                published=product["publicationDate"][:10],
            )


def _on_demand_usd(product: Mapping[str, Any]) -> float | None:
    """Return the price of the first tier that is not free; None if not sold on demand and in dollars."""
    tiers = [
        (float(dimension.get("beginRange", 0)), float(dimension["pricePerUnit"]["USD"]))
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if "USD" in dimension["pricePerUnit"]
    ]
    return next((usd for _, usd in sorted(tiers) if usd > 0), None)


if __name__ == "__main__":
    run_command(main)
