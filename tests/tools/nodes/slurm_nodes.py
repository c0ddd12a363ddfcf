"""A running Slurm cluster as SageMaker describes it."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

from tests.tools.accounts import cluster_description
from tests.tools.answering_aws import AnsweringAws

LAUNCHED = datetime(2026, 11, 1, 8, tzinfo=UTC)


def group(
    name: str, node_type: str, count: int, instance_type: str = "ml.g5.8xlarge"
) -> dict[str, Any]:
    return {
        "InstanceGroupName": name,
        "InstanceType": instance_type,
        "CurrentCount": count,
        "TargetCount": count,
        "SlurmConfig": {"NodeType": node_type},
    }


def node(
    group_name: str, index: int, *, status: str = "Running", message: str = ""
) -> dict[str, Any]:
    """The ``index``-th node of a group to be launched; its instance id and address end with the index."""
    return {
        "InstanceGroupName": group_name,
        "InstanceId": f"i-0{group_name[:1].encode().hex()}{index:012x}",
        "InstanceType": "ml.g5.8xlarge",
        "LaunchTime": LAUNCHED + timedelta(minutes=index),
        "InstanceStatus": {"Status": status, "Message": message},
        "PrivateDnsHostname": f"ip-10-0-{ord(group_name[0])}-{index}.us-west-2.compute.internal",
    }


def running_cluster(
    name: str,
    groups: list[dict[str, Any]],
    nodes: list[dict[str, Any]],
    *,
    status: str = "InService",
    failure: str = "",
) -> AnsweringAws:
    """SageMaker with this cluster."""
    aws = AnsweringAws("us-west-2")
    described = cluster_description(name, groups, status=status)
    aws.answer(
        "sagemaker", "DescribeCluster", described | ({"FailureMessage": failure} if failure else {})
    )
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": nodes})
    return aws
