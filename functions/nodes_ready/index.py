"""Wait until instance groups of a HyperPod cluster have the nodes that later resources need.

A cluster with continuous provisioning is in service before its nodes are, and before its autoscaling is.

CloudFormation calls ``on_event`` once, and ``is_complete`` until it returns true. An exception fails the
deployment with its text.
"""

import time
from collections import Counter
from typing import Any

import boto3

RUNNING = "Running"
"""State of a node that is ready for Kubernetes."""
AUTOSCALING_ON = "InService"
MAX_MESSAGES = 3
"""Number of messages of nodes that are quoted, because CloudFormation shortens reasons to a few hundred
characters."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """Return the time of the start, which ``is_complete`` receives with each call."""
    return {
        "PhysicalResourceId": event["ResourceProperties"]["ClusterName"],
        "Data": {"Start": time.time()},
    }


def is_complete(event: Event, _context: object) -> dict[str, bool]:
    """Return whether each group has its number of running nodes, and autoscaling is on.

    The numbers are in ``Groups``. Autoscaling must be on only if ``Autoscaling`` is true.

    Raises:
        TimeoutError: after ``TimeoutSeconds``, with the states of the nodes and advice.
    """
    if event["RequestType"] == "Delete":
        return {"IsComplete": True}
    properties = event["ResourceProperties"]
    wanted = {name: int(number) for name, number in properties["Groups"].items()}
    client = boto3.client("sagemaker")
    pages = client.get_paginator("list_cluster_nodes").paginate(
        ClusterName=properties["ClusterName"]
    )
    nodes = [node for page in pages for node in page["ClusterNodeSummaries"]]
    running: Counter[str] = Counter()
    for node in nodes:
        if node["InstanceStatus"]["Status"] == RUNNING:
            running[node["InstanceGroupName"]] += 1
    problems = [
        _shortage(name, number, nodes) for name, number in wanted.items() if running[name] < number
    ]
    if properties["Autoscaling"] == "true":
        cluster = client.describe_cluster(ClusterName=properties["ClusterName"])
        status = cluster.get("AutoScaling", {}).get("Status", "none")
        if status != AUTOSCALING_ON:
            problems.append(f"autoscaling has status {status}, not {AUTOSCALING_ON}")
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
    """Return a message with the states of a group's nodes, and with messages of some of them."""
    statuses = [node["InstanceStatus"] for node in nodes if node["InstanceGroupName"] == name]
    counts = Counter(status["Status"] for status in statuses)
    found = ", ".join(f"{count} {status}" for status, count in sorted(counts.items())) or "no nodes"
    messages = list(
        dict.fromkeys(status["Message"] for status in statuses if status.get("Message"))
    )
    return "; ".join(
        [f"group {name} has {found}, and needs {number} {RUNNING}", *messages[:MAX_MESSAGES]]
    )
