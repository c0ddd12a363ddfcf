"""Interfaces that the VPC CNI leaves behind, on EC2 as moto has it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest

from tools.stacks.stack_contents import StackContents, StackResource
from tools.stacks.teardown import delete_pod_interfaces

CLUSTER = "esm2-eks"
pytestmark = pytest.mark.long


@pytest.fixture
def ec2(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "none")
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    from moto import mock_aws

    with mock_aws():
        yield boto3.client("ec2", region_name="us-west-2")


def network(*groups: str) -> StackContents:
    resources = [
        StackResource(f"Group{index}", "AWS::EC2::SecurityGroup", group, "Delete", {})
        for index, group in enumerate(groups)
    ]
    return StackContents("esm2-eks-eks-network", "id", "CREATE_COMPLETE", tuple(resources))


def interface(ec2: Any, subnet: str, group: str, cluster: str | None) -> str:
    tags = [{"Key": "cluster.k8s.amazonaws.com/name", "Value": cluster}] if cluster else []
    made = ec2.create_network_interface(
        SubnetId=subnet,
        Groups=[group],
        **(
            {"TagSpecifications": [{"ResourceType": "network-interface", "Tags": tags}]}
            if tags
            else {}
        ),
    )
    found: str = made["NetworkInterface"]["NetworkInterfaceId"]
    return found


def test_only_what_the_cluster_s_pods_left_is_deleted(ec2: Any) -> None:
    vpc = ec2.create_vpc(CidrBlock="10.0.0.0/16")["Vpc"]["VpcId"]
    subnet = ec2.create_subnet(VpcId=vpc, CidrBlock="10.0.0.0/24")["Subnet"]["SubnetId"]
    own, foreign = (
        ec2.create_security_group(GroupName=name, Description=name, VpcId=vpc)["GroupId"]
        for name in ("own", "foreign")
    )
    left = interface(ec2, subnet, own, CLUSTER)
    kept = {
        interface(ec2, subnet, own, "another"),
        interface(ec2, subnet, own, None),
        interface(ec2, subnet, foreign, CLUSTER),
    }
    image = ec2.describe_images()["Images"][0]["ImageId"]
    attached = interface(ec2, subnet, own, CLUSTER)
    ec2.run_instances(
        ImageId=image,
        MinCount=1,
        MaxCount=1,
        NetworkInterfaces=[{"DeviceIndex": 0, "NetworkInterfaceId": attached}],
    )
    assert delete_pod_interfaces(ec2, network(own), CLUSTER) == [left]
    there = {
        found["NetworkInterfaceId"]
        for found in ec2.describe_network_interfaces()["NetworkInterfaces"]
    }
    assert kept | {attached} <= there and left not in there
    assert delete_pod_interfaces(ec2, network(own), CLUSTER) == []


def test_a_network_without_groups_has_nothing_to_look_for(ec2: Any) -> None:
    assert delete_pod_interfaces(ec2, network(), CLUSTER) == []
