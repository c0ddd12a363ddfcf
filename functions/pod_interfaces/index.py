"""Deletes the network interfaces that pods had, once the nodes are gone.

The VPC CNI takes its interfaces away itself, unless its node ends first. Then they have no owner, and hold
subnets and security group for ever. CloudFormation calls ``on_event`` once and ``is_complete`` until it says
yes; at a deletion, which comes after that of the nodes, there is something to do.
"""

import time
from typing import Any

import boto3
from botocore.exceptions import ClientError

CLUSTER_TAG = "tag:cluster.k8s.amazonaws.com/name"
"""The VPC CNI writes it on every interface that it makes."""
GONE = "InvalidNetworkInterfaceID.NotFound"

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """The start of the wait, which ``is_complete`` gets with each call."""
    name = event["ResourceProperties"]["ClusterName"]
    return {"PhysicalResourceId": f"{name}-pod-interfaces", "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Whether no interface of pods of ``ClusterName`` is left in ``SecurityGroupId``.

    Raises:
        TimeoutError: after ``TimeoutSeconds``, with the interfaces that something is still attached to.
    """
    if event["RequestType"] != "Delete":
        return {"IsComplete": True}
    properties = event["ResourceProperties"]
    client = boto3.client("ec2")
    pages = client.get_paginator("describe_network_interfaces").paginate(
        Filters=[
            {"Name": "group-id", "Values": [properties["SecurityGroupId"]]},
            {"Name": CLUSTER_TAG, "Values": [properties["ClusterName"]]},
        ]
    )
    attached = []
    for interface in [interface for page in pages for interface in page["NetworkInterfaces"]]:
        interface_id = interface["NetworkInterfaceId"]
        if interface["Status"] == "available":
            _delete(client, interface_id)
        else:
            attached.append(interface_id)
    if not attached:
        return {"IsComplete": True}
    timeout = float(properties["TimeoutSeconds"])
    if time.time() - float(event["Data"]["Start"]) >= timeout:
        raise TimeoutError(
            f"after {timeout / 60:.0f} minutes nodes are gone, and yet attached to something:"
            f" {', '.join(attached)}. `aws ec2 describe-network-interfaces --network-interface-ids"
            f" {attached[0]}` says to what; detach them, and delete the stack again"
        )
    return {"IsComplete": False}


def _delete(client: Any, interface_id: str) -> None:
    try:
        client.delete_network_interface(NetworkInterfaceId=interface_id)
    except ClientError as error:
        if error.response["Error"]["Code"] != GONE:
            raise
