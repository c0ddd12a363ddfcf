"""Templates in an existing VPC: subnets of another account, and several address ranges."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest

from tests.local_aws.permissions import holds
from tests.stacks.intrinsics import ACCOUNT, Evaluator
from tests.stacks.synthesized import Templates, load, read_templates, resources, synthesize

OWNER = "210987654321"
REGION = "us-west-2"
VPC = "vpc-0123456789abcdef0"
SUBNET = "subnet-0123456789abcdef0"
ROUTES = "rtb-0123456789abcdef0"


def subnet(number: int, zone: int, cidr: str) -> dict[str, str]:
    return {
        "subnet_id": f"subnet-0123456789abcdef{number}",
        "availability_zone_id": f"usw2-az{zone}",
        "route_table_id": ROUTES,
        "cidr": cidr,
    }


NETWORK = {
    "vpc": "existing",
    "vpc_id": VPC,
    # AWS's own templates of HyperPod create one range per zone.
    "cidr": "10.192.0.0/16",
    "other_cidrs": ["10.1.0.0/16"],
    "private_subnets": [subnet(0, 2, "10.1.0.0/17"), subnet(1, 1, "100.64.0.0/18")],
    "interface_endpoints": True,
}
RANGES = ["10.192.0.0/16", "10.1.0.0/16", "100.64.0.0/18"]


@cache
def stacks(scheduler: str) -> Templates:
    changes: dict[str, Any] = {"network": NETWORK}
    if scheduler == "slurm":
        changes |= {"storage": {"home": {}}, "accounting_database": {}}
    return read_templates(synthesize(load(f"clusters/{scheduler}.yaml", **changes)))


def node_statements(scheduler: str) -> list[dict[str, Any]]:
    """Return the statements of all roles of nodes."""
    evaluate = Evaluator(stacks(scheduler), REGION)
    template = stacks(scheduler)[f"{scheduler.capitalize()}HyperPodStack"]
    found = [
        statement
        for role in resources(template, "AWS::IAM::Role").values()
        if "HyperPod cluster" in role["Properties"].get("Description", "")
        for policy in role["Properties"].get("Policies", [])
        for statement in policy["PolicyDocument"]["Statement"]
    ]
    return [evaluate(statement) for statement in found]


def is_allowed(statements: list[dict[str, Any]], action: str, **context: str) -> bool:
    keys = {f"ec2:{name}": arn for name, arn in context.items()}
    for statement in statements:
        actions = statement["Action"]
        if action in ([actions] if isinstance(actions, str) else actions) and holds(
            statement.get("Condition", {}), keys
        ):
            return True
    return False


@pytest.mark.parametrize("scheduler", ["slurm", "eks"])
@pytest.mark.parametrize("account", [ACCOUNT, OWNER])
def test_nodes_use_subnets_of_any_owner(scheduler: str, account: str) -> None:
    statements = node_statements(scheduler)
    here = f"arn:aws:ec2:{REGION}:{account}"
    resource_of = [
        statement["Resource"]
        for statement in statements
        if "ec2:CreateNetworkInterface" in statement["Action"]
    ]
    patterns = [pattern for listed in resource_of for pattern in listed if ":subnet/" in pattern]
    assert f"arn:aws:ec2:{REGION}:*:subnet/{SUBNET}" in patterns
    for action in ("CreateNetworkInterfacePermission", "DeleteNetworkInterface"):
        assert is_allowed(statements, f"ec2:{action}", Subnet=f"{here}:subnet/{SUBNET}")
        assert not is_allowed(statements, f"ec2:{action}", Subnet=f"{here}:subnet/subnet-0other")
    in_vpc = ["DetachNetworkInterface", "CreateTags"]
    if scheduler == "eks":
        in_vpc += ["AttachNetworkInterface", "AssignPrivateIpAddresses"]
    for action in in_vpc:
        assert is_allowed(statements, f"ec2:{action}", Vpc=f"{here}:vpc/{VPC}"), action
        assert not is_allowed(statements, f"ec2:{action}", Vpc=f"{here}:vpc/vpc-0other"), action


def test_endpoints_and_homes_admit_every_range() -> None:
    network = stacks("slurm")["SlurmNetworkStack"]
    admitted = {
        rule["CidrIp"]
        for group in resources(network, "AWS::EC2::SecurityGroup").values()
        for rule in group["Properties"].get("SecurityGroupIngress", [])
        if "CidrIp" in rule
    }
    assert admitted == set(RANGES)
    systems = resources(stacks("slurm")["SlurmStorageStack"], "AWS::FSx::FileSystem").values()
    (home,) = (
        found["Properties"]["OpenZFSConfiguration"]
        for found in systems
        if "OpenZFSConfiguration" in found["Properties"]
    )
    (exports,) = home["RootVolumeConfiguration"]["NfsExports"]
    assert [client["Clients"] for client in exports["ClientConfigurations"]] == RANGES
