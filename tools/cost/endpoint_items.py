"""What an endpoint file has AWS bill, for a model behind SageMaker's contract."""

from __future__ import annotations

from pathlib import Path

from config.endpoint import Endpoint
from config.endpoint_file import load_endpoint
from config.price_list import HOURS_PER_MONTH
from config.yaml_document import read_document
from tools.cost.items import Item
from tools.cost.usage import Usage


def read_endpoint(path: Path) -> Endpoint:
    """An endpoint file also without image and model, which have no price.

    Raises:
        ValueError: listing everything else that is wrong with it.
    """
    region = read_document(path).get("region", "us-east-1")
    image = f"000000000000.dkr.ecr.{region}.amazonaws.com/none@sha256:{'0' * 64}"
    lacking = {"image": image, "model": "s3://none/none/"}
    given = {name: value for name, value in lacking.items() if name not in read_document(path)}
    return load_endpoint(path, given)


def endpoint_items(endpoint: Endpoint, usage: Usage) -> list[Item]:
    """Of a month with the fewest instances that scaling keeps."""
    fewest, kind = endpoint.instances.min, endpoint.instance_type
    logs = f"CloudWatch Logs ({usage.logs_gb:g} GB)"
    items = [
        Item("Hosting", f"{fewest} * {kind}", f"hosting.{kind}", fewest * HOURS_PER_MONTH, "kept"),
        Item("Observability", logs, "logs.ingestion", usage.logs_gb, "kept"),
    ]
    if endpoint.kms == "create":
        items.append(Item("Keys", "KMS, a key", "kms.key", 1, "kept"))
    return items
