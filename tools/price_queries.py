"""Which products of the AWS Price List are the prices of ``config/prices``, and how an answer is read.

Products are told by their usage type, as bills name them, behind the region's name (USE1-, us-east-1-, or
nothing). Other projects that read the list name these; MLflow's nobody names, so it is not asked for.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

REGION = r"(?:[A-Z]{2,4}\d?-|[a-z]{2}-[a-z]+-\d-)?"
"""And nothing more: local zones, S3's tables and vectors have usage types that end alike."""
INSTANCE_TYPE = r"(?P<type>ml\.[\w-]+\.\w+)"
"""Without what is reserved, ``ml.p5.48xlarge-Reserved``, which has on-demand terms too."""


@dataclass(frozen=True)
class Query:
    service: str
    """ServiceCode."""
    attributes: Mapping[str, str]
    """Regular expressions that the product's attributes match as a whole."""
    key: str
    """Of the price, with the expressions' groups."""
    unit: str
    filters: Mapping[str, str] = field(default_factory=dict)
    """What AWS already leaves out the rest by, beside the region."""
    multiple: float = 1.0
    """Units of the list in one of ours."""


@dataclass(frozen=True)
class Found:
    key: str
    usd: float
    unit: str
    sku: str
    published: str
    """Day of the service's price list."""


def _usage(pattern: str) -> dict[str, str]:
    return {"usagetype": REGION + pattern}


MARIADB = {"databaseEngine": "MariaDB", "deploymentOption": "Single-AZ"}
NAT = {"productFamily": "NAT Gateway"}
LUSTRE = {"fileSystemType": "Lustre", "storageType": "SSD", "throughputCapacity": r"(?P<tier>\d{3,4})\b.*"}
# Ours has a standby in its zone, which the list words otherwise than "Single-AZ" alone.
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
        "AmazonS3", _usage("TimedStorage-ByteHrs"), "s3.standard", "GB-month", {"productFamily": "Storage"}
    ),
    Query("AmazonECR", _usage("TimedStorage-ByteHrs"), "ecr.storage", "GB-month"),
    Query("AmazonEKS", _usage("AmazonEKS-Hours:perCluster"), "eks.control_plane", "hour"),
    Query("AmazonEC2", _usage("NatGateway-Hours"), "nat.gateway", "hour", NAT),
    Query("AmazonEC2", _usage("NatGateway-Bytes"), "nat.traffic", "GB", NAT),
    Query("AmazonVPC", _usage("PublicIPv4:InUseAddress"), "address.public", "hour"),
    Query("AmazonVPC", _usage("VpcEndpoint-Hours"), "endpoint.interface", "hour"),
    Query("AmazonVPC", _usage("VpcEndpoint-Bytes"), "endpoint.traffic", "GB"),
    Query("awskms", _usage("KMS-Keys"), "kms.key", "month"),
    Query("AmazonCloudWatch", _usage("DataProcessing-Bytes"), "logs.ingestion", "GB"),
    Query("AmazonRDS", _usage(r"InstanceUsage:(?P<class_>db\..+)"), "rds.{class_}", "hour", MARIADB),
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


def filters(query: Query, region: str) -> list[dict[str, str]]:
    """What GetProducts is asked for."""
    wanted = {"regionCode": region, **query.filters}
    return [{"Type": "TERM_MATCH", "Field": name, "Value": value} for name, value in wanted.items()]


def matching(query: Query, products: Iterator[str | dict[str, Any]]) -> Iterator[Found]:
    """Prices on demand of the products that a query means; JSON texts, as boto3 hands them on."""
    for text in products:
        product = json.loads(text) if isinstance(text, str) else text
        attributes = product["product"]["attributes"]
        groups: dict[str, str] = {}
        for name, pattern in query.attributes.items():
            match = re.fullmatch(pattern, attributes.get(name, ""))
            if match is None:
                break
            groups |= match.groupdict()
        else:
            usd = _on_demand_usd(product)
            if usd:
                yield Found(
                    key=query.key.format(**groups),
                    usd=round(usd * query.multiple, 10),
                    unit=query.unit,
                    sku=product["product"]["sku"],
                    published=product["publicationDate"][:10],
                )


def _on_demand_usd(product: Mapping[str, Any]) -> float | None:
    """Of the first tier that is not free; None for what is not sold on demand, or not in dollars."""
    tiers = [
        (float(dimension.get("beginRange", 0)), float(dimension["pricePerUnit"]["USD"]))
        for term in product.get("terms", {}).get("OnDemand", {}).values()
        for dimension in term["priceDimensions"].values()
        if "USD" in dimension["pricePerUnit"]
    ]
    return next((usd for _, usd in sorted(tiers) if usd > 0), None)
