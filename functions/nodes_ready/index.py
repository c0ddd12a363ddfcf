"""Waits until instance groups of a HyperPod cluster have the nodes that what follows needs.

A cluster with continuous provisioning is in service before its nodes are. CloudFormation calls ``on_event``
once and ``is_complete`` until it says yes; an exception fails the deployment with its text.
"""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import boto3

GOOD = "Running"
SHOWN = 3
"""Messages of nodes that are quoted: CloudFormation cuts a reason off after a few hundred characters."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """The start of the wait, which ``is_complete`` gets with each call."""
    return {"PhysicalResourceId": event["ResourceProperties"]["ClusterName"], "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Whether each group of ``Groups`` has as many running nodes as it says there.

    Raises:
        TimeoutError: after ``TimeoutSeconds``, with what the nodes are doing and what to do.
    """
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    properties = event["ResourceProperties"]
    wanted = {name: int(number) for name, number in properties["Groups"].items()}
    nodes = _nodes(properties["ClusterName"])
    running = Counter(node["InstanceGroupName"] for node in nodes if node["InstanceStatus"]["Status"] == GOOD)
    missing = {name: number for name, number in wanted.items() if running[name] < number}
    if not missing:
        return {"IsComplete": True}
    waited = time.time() - float(event["Data"]["Start"])
    timeout = float(properties["TimeoutSeconds"])
    if waited >= timeout:
        raise TimeoutError(_message(properties["ClusterName"], missing, running, nodes, timeout))
    return {"IsComplete": False}


def _nodes(cluster_name: str) -> list[Event]:
    pages = boto3.client("sagemaker").get_paginator("list_cluster_nodes").paginate(ClusterName=cluster_name)
    return [node for page in pages for node in page["ClusterNodeSummaries"]]


def _message(
    cluster_name: str, missing: dict[str, int], running: Counter[str], nodes: list[Event], timeout: float
) -> str:
    groups = []
    for name, number in missing.items():
        statuses = Counter(
            node["InstanceStatus"]["Status"] for node in nodes if node["InstanceGroupName"] == name
        )
        found = ", ".join(f"{count} {status}" for status, count in sorted(statuses.items())) or "none"
        groups.append(f"{name} has {running[name]} of {number} running nodes (nodes: {found})")
    messages = [
        node["InstanceStatus"]["Message"]
        for node in nodes
        if node["InstanceGroupName"] in missing and node["InstanceStatus"].get("Message")
    ]
    said = "".join(f"; {text}" for text in list(dict.fromkeys(messages))[:SHOWN])
    return (
        f"after {timeout / 60:.0f} minutes {'; '.join(groups)}{said}. See `aws sagemaker list-cluster-events"
        f" --cluster-name {cluster_name}` (capacity, quotas, lifecycle scripts), then deploy again"
    )
