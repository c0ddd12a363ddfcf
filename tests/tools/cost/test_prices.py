"""Prices from the Price List API: requests, reading of products, and changes of the file."""

from __future__ import annotations

import csv
import io
import json
import sys
from email.message import Message
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import HTTPError, URLError

import pytest

from config.facts.price_list import PriceList, load_prices
from tests.tools.answering_aws import AnsweringAws, Parameters
from tools.aws_session import aws_client
from tools.command_line import cluster_parser
from tools.cost.offer_files import PUBLIC_FILES
from tools.cost.prices import refresh, refresh_from_files

REGION = "us-west-2"
Tier = tuple[str, str]
"""Start of a price range, and dollars."""


def product(
    sku: str, attributes: dict[str, str], *tiers: Tier, currency: str = "USD", family: str = "x"
) -> str:
    """Return a product in GetProducts' form aws_v1, which is JSON with attributes and nested terms."""
    code = f"{sku}.JRTCKXETXF"
    dimensions = {
        f"{code}.{index}": {
            "rateCode": f"{code}.{index}",
            "unit": "Hrs",
            "beginRange": begin,
            "endRange": "Inf",
            "description": "",
            "appliesTo": [],
            "pricePerUnit": {currency: usd},
        }
        for index, (begin, usd) in enumerate(tiers)
    }
    terms = {
        code: {
            "offerTermCode": "JRTCKXETXF",
            "sku": sku,
            "effectiveDate": "2026-11-01T00:00:00Z",
            "priceDimensions": dimensions,
            "termAttributes": {},
        }
    }
    described = {"regionCode": REGION, **attributes}
    return json.dumps(
        {
            "product": {"productFamily": family, "sku": sku, "attributes": described},
            "serviceCode": "x",
            "terms": {"OnDemand": terms} if tiers else {},
            "version": "20261118",
            "publicationDate": "2026-11-18T17:00:00Z",
        }
    )


def used(usagetype: str, usd: str, **attributes: str) -> str:
    return product(usagetype.upper(), {"usagetype": usagetype, **attributes}, ("0", usd))


ZFS = {"fileSystemType": "OpenZFS"}
THROUGHPUT = "Provisioned Throughput"
LISTS: dict[str, list[str]] = {
    "AmazonSageMaker": [
        used("USW2-Cluster:ml.g5.8xlarge", "3.0600000000", instanceType="ml.g5.8xlarge-Cluster"),
        used("USW2-ReservedCluster:ml.g5.8xlarge", "1.0"),
        used("USW2-Cluster:ml.p5.48xlarge-Reserved", "31.0"),
        used("USW2-Studio:JupyterLab-ml.g5.8xlarge", "2.0"),
        used("USW2-Studio:KernelGateway-ml.g5.8xlarge", "2.1"),
        used("USW2-Cluster:ml.p6-b200.48xlarge", "130.5"),
        used("USW2-Cluster:VolumeUsage.gp3", "0.1120000000"),
        used("USW2-Host:ml.g5.xlarge", "1.4080000000"),
    ],
    "AmazonFSx": [
        product(
            f"LUSTRE{tier}",
            {
                "fileSystemType": "Lustre",
                "storageType": "SSD",
                "throughputCapacity": f"{tier} MB/s/TiB",
            },
            ("0", usd),
        )
        for tier, usd in (("125", "0.145"), ("250", "0.21"))
    ]
    + [
        product(
            "ZFS1", {**ZFS, "deploymentOption": "Single-AZ", "storageType": "SSD"}, ("0", "0.09")
        ),
        product(
            "ZFS2", {**ZFS, "deploymentOption": "Single-AZ_2N", "storageType": "SSD"}, ("0", "0.12")
        ),
        product("ZFS3", {**ZFS, "deploymentOption": "Single-AZ"}, ("0", "0.26"), family=THROUGHPUT),
        product(
            "ZFS4", {**ZFS, "deploymentOption": "Single-AZ_2N"}, ("0", "0.5"), family=THROUGHPUT
        ),
    ],
    "AmazonGrafana": [
        used("USW2-Grafana:EditorUser", "9.0"),
        used("USW2-Grafana:ViewerUser", "5.0"),
    ],
    "AmazonS3": [
        product(
            "S3",
            {"usagetype": "USW2-TimedStorage-ByteHrs"},
            ("51200", "0.022"),
            ("0", "0.023"),
            family="Storage",
        ),
        product(
            "S3T",
            {"usagetype": "USW2-Tables-TimedStorage-ByteHrs"},
            ("0", "0.0265"),
            family="Storage",
        ),
    ],
    "AmazonEC2": [
        product(name, {"usagetype": name}, ("0", usd), family="NAT Gateway")
        for name, usd in (
            ("USW2-NatGateway-Hours", "0.05"),
            ("USW2-NatGateway-Bytes", "0.05"),
            ("USW2-LAX1-NatGateway-Hours", "0.06"),
        )
    ],
    "AmazonPrometheus": [
        product(
            "AMP",
            {"usagetype": "USW2-AMP:MetricSampleCount"},
            ("0", "0.00000009"),
            ("2e9", "0.000000035"),
        )
    ],
    "awskms": [product("FREE", {"usagetype": "us-west-2-KMS-Keys"}, ("0", "0.0"), ("1", "1.0"))],
    # These are not sold on demand, in another currency, or listed twice with different prices.
    "AmazonECR": [product("PLAN", {"usagetype": "USW2-TimedStorage-ByteHrs"})],
    "AmazonEKS": [
        product(
            "CNY", {"usagetype": "USW2-AmazonEKS-Hours:perCluster"}, ("0", "0.6"), currency="CNY"
        )
    ],
    "AmazonVPC": [used("USW2-VpcEndpoint-Hours", "0.01"), used("USW2-VpcEndpoint-Hours", "0.02")],
    "AmazonRDS": [
        used(
            "USW2-InstanceUsage:db.t4g.medium",
            "0.065",
            databaseEngine="MariaDB",
            deploymentOption="Single-AZ",
        )
    ],
}


def pricing(lists: dict[str, list[str]]) -> tuple[Any, list[Parameters]]:
    aws = AnsweringAws("us-east-1")
    asked: list[Parameters] = []

    def answer(parameters: Parameters) -> dict[str, Any]:
        asked.append(parameters)
        wanted = {one["Field"]: one["Value"] for one in parameters["Filters"]}
        found = [
            text
            for text in lists.get(parameters["ServiceCode"], [])
            if json.loads(text)["product"]["productFamily"] == wanted.get("productFamily", "")
            or "productFamily" not in wanted
        ]
        return {"FormatVersion": "aws_v1", "PriceList": found}

    aws.answer("pricing", "GetProducts", answer)
    return aws_client(aws.session, "pricing"), asked


def refreshed(folder: Path, lists: dict[str, list[str]]) -> tuple[PriceList, list[str]]:
    client, _ = pricing(lists)
    said = refresh(client, REGION, folder)
    return load_prices(REGION, folder), said


def test_products_of_every_page_become_prices(tmp_path: Path) -> None:
    prices, _ = refreshed(tmp_path, LISTS)
    assert {key: price.usd for key, price in prices.items()} == {
        "hyperpod.ml.g5.8xlarge": 3.06,
        "hyperpod.ml.p6-b200.48xlarge": 130.5,
        "hyperpod.volume": 0.112,
        "hosting.ml.g5.xlarge": 1.408,
        "studio.ml.g5.8xlarge": 2.0,
        "lustre.125": 0.145,
        "lustre.250": 0.21,
        "openzfs.ssd": 0.12,
        "openzfs.throughput": 0.5,
        "grafana.editor": 9,
        "s3.standard": 0.023,
        "nat.gateway": 0.05,
        "nat.traffic": 0.05,
        "prometheus.samples": 0.09,
        "kms.key": 1.0,
        "rds.db.t4g.medium": 0.065,
    }
    assert {(price.as_of, price.source, price.region) for price in prices.values()} == {
        ("2026-11-18", "price-list-api", REGION)
    }


def test_requests_each_list_once_and_only_for_the_region(tmp_path: Path) -> None:
    client, asked = pricing(LISTS)
    refresh(client, REGION, tmp_path)
    lists = [json.dumps([call["ServiceCode"], call["Filters"]]) for call in asked]
    assert len(lists) == len(set(lists)) and {call["ServiceCode"] for call in asked} >= set(LISTS)
    for call in asked:
        wanted = {
            one["Field"]: one["Value"] for one in call["Filters"] if one["Type"] == "TERM_MATCH"
        }
        assert wanted["regionCode"] == REGION and len(wanted) == len(call["Filters"])
    assert {one["Value"] for call in asked for one in call["Filters"]} >= {
        "MariaDB",
        "Single-AZ",
        "NAT Gateway",
        THROUGHPUT,
    }


def test_older_prices_stay_if_the_list_has_none(tmp_path: Path) -> None:
    older = "key,usd,unit,as_of,source,stand_in\nmlflow.small,0.6,hour,2026,sagemaker-page,\n"
    stood_in = (
        "hyperpod.ml.g5.8xlarge,3,hour,2026-09-01,price-list-studio,the price of SageMaker Studio\n"
    )
    (tmp_path / f"{REGION}.csv").write_text(older + stood_in)
    prices, said = refreshed(tmp_path, LISTS)
    g5 = prices["hyperpod.ml.g5.8xlarge"]
    mlflow = prices["mlflow.small"]
    assert (g5.usd, g5.source, g5.stand_in) == (3.06, "price-list-api", "")
    assert (mlflow.usd, mlflow.source) == (0.6, "sagemaker-page")
    assert "hyperpod.ml.g5.8xlarge: 3 -> 3.06 USD per hour" in said
    assert "unchanged, because the list has none: mlflow.small" in said
    with (tmp_path / f"{REGION}.csv").open(newline="") as file:
        keys = [row["key"] for row in csv.DictReader(file)]
    assert keys == sorted(keys)


def test_skips_products_with_two_prices(tmp_path: Path) -> None:
    prices, said = refreshed(tmp_path, LISTS)
    assert "endpoint.interface" not in prices
    assert any(
        "skipped, because the list has several: endpoint.interface 0.01" in line for line in said
    )


def test_an_empty_list_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / f"{REGION}.csv"
    file.write_text("key,usd,unit,as_of,source,stand_in\n")
    client, _ = pricing({})
    with pytest.raises(ValueError, match="nothing was written"):
        refresh(client, REGION, tmp_path)
    assert file.read_text() == "key,usd,unit,as_of,source,stand_in\n"
    assert [path.name for path in tmp_path.iterdir()] == [file.name]


def test_the_region_s_own_price_takes_precedence(tmp_path: Path) -> None:
    row = "key,usd,unit,as_of,source,stand_in\nnat.gateway,{},hour,,infracost,\n"
    for region, usd in (("us-east-1", "0.045"), ("eu-west-1", "0.048")):
        (tmp_path / f"{region}.csv").write_text(row.format(usd))
    own = load_prices("eu-west-1", tmp_path)
    other = load_prices("sa-east-1", tmp_path)
    assert (own["nat.gateway"].usd, own["nat.gateway"].region) == (0.048, "eu-west-1")
    assert (other["nat.gateway"].usd, other["nat.gateway"].region) == (0.045, "us-east-1")


@pytest.mark.parametrize(
    ("module", "prog"), [("tools.cost.__main__", "tools.cost"), ("tools.cost.prices",) * 2]
)
def test_usage_names_the_module(module: str, prog: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By default argparse would print __main__.py."""
    run = SimpleNamespace(__spec__=SimpleNamespace(name=module))
    monkeypatch.setitem(sys.modules, "__main__", run)
    assert cluster_parser("...").prog == f"python -m {prog}"


class InSmallPieces(io.BytesIO):
    """A connection that delivers few bytes at a time."""

    def read(self, size: int | None = -1) -> bytes:
        return super().read(7)


def offer_file(service: str, products: list[str], *, tail: str) -> bytes:
    """Return a file of AWS's public price list; its reserved prices, which nothing reads, are ``tail``."""
    read = [json.loads(text) for text in products]
    head = {
        "formatVersion": "v1.0",
        "disclaimer": "This pricing list is for informational purposes only. ä",
        "offerCode": service,
        "version": "20261118170000",
        "publicationDate": "2026-11-18T17:00:00Z",
        "products": {one["product"]["sku"]: one["product"] for one in read},
    }
    on_demand = {one["product"]["sku"]: one["terms"].get("OnDemand", {}) for one in read}
    text = json.dumps(head, indent=2, ensure_ascii=False).removesuffix("\n}")
    return f'{text},\n"terms": {{"OnDemand": {json.dumps(on_demand, indent=1)}{tail}'.encode()


def from_files(folder: Path, lists: dict[str, list[str]], *, tail: str = "}}") -> list[str]:
    def opener(url: str) -> io.BytesIO:
        service = url.removeprefix(f"{PUBLIC_FILES}/offers/v1.0/aws/").partition("/")[0]
        assert url.endswith(f"/aws/{service}/current/{REGION}/index.json")
        return InSmallPieces(offer_file(service, lists.get(service, []), tail=tail))

    return refresh_from_files(REGION, folder, opener=opener)


def test_public_files_give_the_same_prices_as_the_api(tmp_path: Path) -> None:
    by_api = tmp_path / "api"
    by_files = tmp_path / "files"
    by_api.mkdir()
    by_files.mkdir()
    # Two products of this list have one number, which a file cannot have.
    lists = {name: products for name, products in LISTS.items() if name != "AmazonVPC"}
    expected, _ = refreshed(by_api, lists)
    from_files(by_files, lists, tail=', "Reserved": not read')
    prices = load_prices(REGION, by_files)
    assert {key: (price.usd, price.unit, price.as_of) for key, price in prices.items()} == {
        key: (price.usd, price.unit, price.as_of) for key, price in expected.items()
    }
    assert {price.source for price in prices.values()} == {"price-list-files"}


def test_a_public_file_that_is_cut_changes_nothing(tmp_path: Path) -> None:
    def opener(url: str) -> io.BytesIO:
        return InSmallPieces(offer_file("any", LISTS["AmazonSageMaker"], tail="")[:900])

    with pytest.raises(ValueError, match=r"index\.json: the file is cut or is not JSON"):
        refresh_from_files(REGION, tmp_path, opener=opener)
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (
            URLError("Name or service not known"),
            "could not be read: Name or service not known; check",
        ),
        (TimeoutError("timed out"), "could not be read: timed out; check the connection"),
        (HTTPError("", 403, "Forbidden", Message(), None), "answers 403 Forbidden; omit --public"),
    ],
)
def test_a_public_file_that_cannot_be_read_is_explained(
    error: OSError, message: str, tmp_path: Path
) -> None:
    def opener(url: str) -> io.BytesIO:
        raise error

    with pytest.raises(ValueError, match=message):
        refresh_from_files(REGION, tmp_path, opener=opener)
    assert not list(tmp_path.iterdir())


def test_a_public_file_without_our_products_changes_nothing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="nothing was written"):
        from_files(tmp_path, {})
