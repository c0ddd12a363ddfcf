"""Network interfaces that pods had and nobody has any more."""

from __future__ import annotations

from typing import Any

from tools.stack_contents import StackContents

CLUSTER_TAG = "tag:cluster.k8s.amazonaws.com/name"
"""The VPC CNI writes it on every interface that it makes."""


def delete_pod_interfaces(ec2: Any, network: StackContents, cluster_name: str) -> list[str]:
    """Delete what the VPC CNI of a cluster left in the network's security group, and say what.

    It takes its interfaces away itself, unless its node ends first. Then they are nobody's, and hold subnets
    and security group for ever. Only those that are attached to nothing are deleted.
    """
    groups = [group.physical_id for group in network.of_type("AWS::EC2::SecurityGroup")]
    if not groups:
        return []
    filters = [
        {"Name": "group-id", "Values": groups},
        {"Name": "status", "Values": ["available"]},
        {"Name": CLUSTER_TAG, "Values": [cluster_name]},
    ]
    pages = ec2.get_paginator("describe_network_interfaces").paginate(Filters=filters)
    left = [interface["NetworkInterfaceId"] for page in pages for interface in page["NetworkInterfaces"]]
    for interface_id in left:
        ec2.delete_network_interface(NetworkInterfaceId=interface_id)
    return left
