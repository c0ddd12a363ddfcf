"""Templates of the network and storage stacks for clusters that differ in every option, made once."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import yaml
from aws_cdk import App, Environment

from config.slurm_cluster import SlurmCluster
from stacks.network_stack import NetworkStack
from stacks.storage_stack import StorageStack
from tests.stacks.synthesized import once

ROOT = Path(__file__).parents[2]
EXISTING_KEY = "arn:aws:kms:us-east-1:111122223333:key/0a1b2c3d-0000-1111-2222-333344445555"
DATABASE = {"instance_class": "db.t4g.medium"}
GROUPS = [
    {
        "name": "controller",
        "role": "controller",
        "instance_type": "ml.m5.12xlarge",
        "num_instances": 1,
    },
    {
        "name": "workers",
        "role": "worker",
        "instance_type": "ml.g5.8xlarge",
        "num_instances": 2,
        "partition": "gpu",
    },
]
NEW_VPC = {"vpc": "new", "availability_zone_ids": ["use1-az6", "use1-az4"]}
EXISTING_VPC = {
    "vpc": "existing",
    "vpc_id": "vpc-0123456789abcdef0",
    "cidr": "172.16.0.0/16",
    "private_subnets": [
        {
            "subnet_id": f"subnet-0123456789abcde0{index}",
            "availability_zone_id": zone,
            "route_table_id": f"rtb-0123456789abcde0{table}",
            "cidr": f"172.16.{16 * index}.0/20",
        }
        for index, (zone, table) in enumerate([("use1-az6", 1), ("use1-az4", 1), ("use1-az2", 2)])
    ],
}
ALL_DESTROYED = {
    "kms": "create",
    "lustre": {"removal": "destroy"},
    "home": {"removal": "destroy"},
    "data_bucket": {"removal": "destroy"},
}


def cluster_of(**changes: Any) -> SlurmCluster:
    """A cluster in us-east-1 with the sections given."""
    base = {
        "scheduler": "slurm",
        "name": "tested",
        "region": "us-east-1",
        "network": NEW_VPC,
        "instance_groups": GROUPS,
    }
    return SlurmCluster.model_validate({**base, **changes})


@cache
def clusters() -> dict[str, SlurmCluster]:
    """Every cluster file that is shipped, and what they leave out."""
    shipped = {
        path.stem: SlurmCluster.model_validate(yaml.safe_load(path.read_text()))
        for path in sorted((ROOT / "clusters").glob("slurm*.yaml"))
    }
    return shipped | {
        "closed": cluster_of(
            network=NEW_VPC | {"internet": "none", "interface_endpoints": True},
            accounting_database=DATABASE,
            storage={"kms": "create"},
            node_setup={"downloads": "artifact_bucket"},
        ),
        "existing": cluster_of(
            network=EXISTING_VPC | {"s3_gateway_endpoint": True, "interface_endpoints": True},
            accounting_database=DATABASE,
            prometheus=False,
        ),
        "given-key": cluster_of(storage={"kms": EXISTING_KEY, "home": {}}),
        "bare-existing": cluster_of(network=EXISTING_VPC),
        "destroyed": cluster_of(storage=ALL_DESTROYED),
        "unlinked": cluster_of(
            storage={"data_bucket": {"lustre_path": None}, "lustre": {"backup_days": 14}}
        ),
        # The longest name, the longest region that HyperPod is offered in, the most zones.
        "largest": cluster_of(
            name="n" * 24,
            region="ap-southeast-2",
            network=NEW_VPC
            | {
                "availability_zone_ids": ["apse2-az1", "apse2-az2", "apse2-az3"],
                "interface_endpoints": True,
            },
            accounting_database=DATABASE,
            storage={"kms": "create", "home": {}, "lustre": {"metadata_iops": 12000}},
        ),
    }


def add_base_stacks(app: App) -> None:
    for name, cluster in clusters().items():
        environment = Environment(region=cluster.region)
        network = NetworkStack(app, f"{name}-network", cluster=cluster, env=environment).network
        StorageStack(app, f"{name}-storage", cluster=cluster, network=network, env=environment)


class Template:
    """A template by its resources."""

    def __init__(self, body: dict[str, Any]) -> None:
        self.body = body

    def resources(self, *types: str) -> dict[str, dict[str, Any]]:
        """Return resources by logical id; all of them without a type."""
        return {
            name: resource
            for name, resource in self.body["Resources"].items()
            if not types or resource["Type"] in types
        }

    def properties(self, resource_type: str) -> list[dict[str, Any]]:
        return [
            resource.get("Properties", {}) for resource in self.resources(resource_type).values()
        ]

    def only(self, resource_type: str) -> dict[str, Any]:
        (resource,) = self.resources(resource_type).values()
        return resource


KINDS = ("network", "storage")


def base_template_files(*names: str) -> list[Path]:
    """Return the templates of these clusters; findings of cdk-nag raise."""
    folder = once("base stacks", add_base_stacks)
    return [folder / f"{name}-{kind}.template.json" for name in names for kind in KINDS]


@cache
def templates() -> dict[tuple[str, str], Template]:
    """Return the templates, keyed by cluster and kind of stack."""
    return {
        (name, kind): Template(json.loads(file.read_text()))
        for name in clusters()
        for kind, file in zip(KINDS, base_template_files(name), strict=True)
    }


def network_template(name: str) -> Template:
    return templates()[name, "network"]


def storage_template(name: str) -> Template:
    return templates()[name, "storage"]


def strings_in(value: Any) -> Iterator[str]:
    """Every string of a template's part, keys included."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, dict):
        for key, item in value.items():
            yield key
            yield from strings_in(item)
    elif isinstance(value, list):
        for item in value:
            yield from strings_in(item)
