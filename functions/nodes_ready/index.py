"""Waits until instance groups of a HyperPod cluster have the nodes that what follows needs.

A cluster with continuous provisioning is in service before its nodes are, and before its autoscaling is.
CloudFormation calls ``on_event`` once and ``is_complete`` until it says yes; an exception fails the
deployment with its text.
"""

import time
from collections import Counter
from typing import Any

import boto3

GOOD, AUTOSCALING_GOOD = "Running", "InService"
SHOWN = 3
"""Messages of nodes that are quoted: CloudFormation cuts a reason off after a few hundred characters."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """The start of the wait, which ``is_complete`` gets with each call."""
    return {"PhysicalResourceId": event["ResourceProperties"]["ClusterName"], "Data": {"Start": time.time()}}


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Whether each group of ``Groups`` has as many running nodes as it says there, and ``Autoscaling`` is on.

    Raises:
        TimeoutError: after ``TimeoutSeconds``, with what the nodes are doing and what to do.
    """
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    properties = event["ResourceProperties"]
    wanted = {name: int(number) for name, number in properties["Groups"].items()}
    client = boto3.client("sagemaker")
    pages = client.get_paginator("list_cluster_nodes").paginate(ClusterName=properties["ClusterName"])
    nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
    running = Counter(node["InstanceGroupName"] for node in nodes if node["InstanceStatus"]["Status"] == GOOD)
    missing = {name: number for name, number in wanted.items() if running[name] < number}
    problems = [_shortage(name, number, nodes) for name, number in missing.items()]
    if properties["Autoscaling"] == "true":
        cluster = client.describe_cluster(ClusterName=properties["ClusterName"])
        status = cluster.get("AutoScaling", {}).get("Status", "none")
        if status != AUTOSCALING_GOOD:
            problems.append(f"autoscaling has status {status}, not {AUTOSCALING_GOOD}")
    if not problems:
        return {"IsComplete": True}
    timeout = float(properties["TimeoutSeconds"])
    if time.time() - float(event["Data"]["Start"]) >= timeout:
        raise TimeoutError(
            f"after {timeout / 60:.0f} minutes: {'; '.join(problems)}. `aws sagemaker list-cluster-events"
            f" --cluster-name {properties['ClusterName']}` shows why (capacity, quotas, lifecycle scripts);"
            " then deploy again"
        )
    return {"IsComplete": False}


def _shortage(name: str, number: int, nodes: list[Event]) -> str:
    """States of a group's nodes, with messages of some of them."""
    statuses = [node["InstanceStatus"] for node in nodes if node["InstanceGroupName"] == name]
    counted = Counter(status["Status"] for status in statuses)
    found = ", ".join(f"{count} {status}" for status, count in sorted(counted.items())) or "no nodes"
    said = dict.fromkeys(status["Message"] for status in statuses if status.get("Message"))
    return "; ".join([f"group {name} has {found}, and needs {number} {GOOD}", *list(said)[:SHOWN]])
