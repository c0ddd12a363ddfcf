"""Newest operations and events that HyperPod reports for a cluster, and its stale images.

The service has operations and events for clusters with continuous provisioning.
"""

from collections.abc import Callable, Iterator
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

from config.cluster import Cluster
from tools.aws_session import aws_client, explain, open_session
from tools.command_line import format_table
from tools.json_output import publish
from tools.nodes.images import images_report

NUM_SHOWN = 5
"""Most operations, and most events, of a report."""
TIME = "%Y-%m-%d %H:%M"
COLUMNS = {
    "operations": ("time", "type", "status", "details"),
    "events": ("time", "level", "place", "description"),
}
"""Columns of each part of the report, for ``--json``."""


def activity(sagemaker: Any, cluster_name: str) -> str:
    """Return the newest operations and events as text.

    A part that cannot be read becomes a line with the reason, because the report only adds to another one.
    """
    parts = [
        _part("operations", _operations, sagemaker, cluster_name),
        _part("events", _events, sagemaker, cluster_name),
    ]
    return "\n".join(parts)


def print_activity(cluster: Cluster, profile: str | None) -> None:
    """Print stale images, and with continuous provisioning the newest operations and events."""
    sagemaker = aws_client(open_session(region=cluster.region, profile=profile), "sagemaker")
    print(f"\n{images_report(sagemaker, cluster.name)}")
    if cluster.continuous_provisioning:
        print(activity(sagemaker, cluster.name))


def _part(
    name: str,
    rows: Callable[[Any, str], Iterator[list[str]]],
    sagemaker: Any,
    cluster_name: str,
) -> str:
    try:
        found = list(rows(sagemaker, cluster_name))
    except (BotoCoreError, ClientError) as error:
        return f"{name}: cannot be read: {explain(error)}"
    publish(**{name: [dict(zip(COLUMNS[name], row, strict=True)) for row in found]})
    if not found:
        return f"{name}: none"
    table = format_table(found[0], found[1:])
    return f"newest {name}:\n" + "\n".join(f"  {line}" for line in table.splitlines())


def _operations(sagemaker: Any, cluster_name: str) -> Iterator[list[str]]:
    found = sagemaker.list_cluster_operations(
        ClusterName=cluster_name,
        MaxResults=NUM_SHOWN,
        SortBy="CreationTime",
        SortOrder="Descending",
    )
    for operation in found["ClusterOperationSummaries"]:
        details = ""
        if operation["Status"] == "InProgress":
            described = sagemaker.describe_cluster_operation(
                ClusterName=cluster_name, OperationId=operation["OperationId"]
            )
            details = ", ".join(_details(described))
        yield [
            f"{operation['CreationTime']:{TIME}}",
            operation["Type"],
            operation["Status"],
            details,
        ]


def _details(operation: dict[str, Any]) -> Iterator[str]:
    """Yield what an operation does in each group, as ``workers 2 -> 4 nodes``."""
    for scaling in operation.get("ScalingDetails", []):
        before = scaling.get("Original", {}).get("TargetCount", "?")
        after = scaling.get("Desired", {}).get("TargetCount", "?")
        yield f"{scaling.get('InstanceGroupName', 'a group')} {before} -> {after} nodes"
    for check in operation.get("DeepHealthCheckDetails", []):
        instances = check.get("InstanceIds", [])
        which = f"{len(instances)} node(s)" if instances else "all nodes"
        yield f"{check['InstanceGroupName']} {which}: {', '.join(check['DeepHealthChecks'])}"


def _events(sagemaker: Any, cluster_name: str) -> Iterator[list[str]]:
    found = sagemaker.list_cluster_events(
        ClusterName=cluster_name,
        MaxResults=NUM_SHOWN,
        SortBy="EventTime",
        SortOrder="Descending",
    )
    for event in found["Events"]:
        place = " ".join(
            event[key] for key in ("InstanceGroupName", "InstanceId") if event.get(key)
        )
        yield [
            f"{event['EventTime']:{TIME}}",
            event.get("EventLevel", ""),
            place or event["ResourceType"],
            " ".join(event.get("Description", "").split()),
        ]
