"""Delete the network interfaces of pods after the nodes are gone.

The VPC CNI deletes its interfaces itself, unless their node ends first. Then they have no owner, and prevent
the deletion of subnets and security group.

CloudFormation calls ``on_event`` once, and ``is_complete`` until it returns true. Only a deletion has work to
do. It follows the deletion of the nodes.
"""

import time
from typing import Any

import boto3
from botocore.exceptions import ClientError

CLUSTER_TAG = "tag:cluster.k8s.amazonaws.com/name"
"""Filter by the tag with which the VPC CNI creates its interfaces."""
NOT_FOUND = "InvalidNetworkInterfaceID.NotFound"
"""Error code of an interface that does not exist."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """Return the time of the start, which ``is_complete`` receives with each call."""
    name = event["ResourceProperties"]["ClusterName"]
    return {"PhysicalResourceId": f"{name}-pod-interfaces", "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Return whether no interface of pods of ``ClusterName`` is left in ``SecurityGroupId``.

    Raises:
        TimeoutError: after ``TimeoutSeconds``, with the interfaces that are still attached.
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
    attached: list[str] = []
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
            f"the nodes are gone, but interfaces are still attached after {timeout / 60:.0f} minutes:"
            f" {', '.join(attached)}. `aws ec2 describe-network-interfaces --network-interface-ids"
            f" {attached[0]}` shows to what; detach them, and delete the stack again"
        )
    return {"IsComplete": False}


def _delete(client: Any, interface_id: str) -> None:
    """Delete an interface, which may have been deleted meanwhile."""
    try:
        client.delete_network_interface(NetworkInterfaceId=interface_id)
    except ClientError as error:
        if error.response["Error"]["Code"] != NOT_FOUND:
            raise
