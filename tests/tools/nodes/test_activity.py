"""Newest operations and events of a cluster."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped
from tools.nodes import activity
from tools.nodes.activity import NUM_SHOWN, print_activity

CLUSTER = shipped("slurm")
ARN = "arn:aws:sagemaker:us-west-2:123456789012:cluster/abcdefghijkl"
ID = "01234567-89ab-cdef-0123-456789abcdef"
TIME = datetime(2026, 11, 27, 9, 5, tzinfo=UTC)


def operation(kind: str, status: str, **details: Any) -> dict[str, Any]:
    return {
        "OperationId": ID,
        "ClusterArn": ARN,
        "Type": kind,
        "Status": status,
        "CreationTime": TIME,
        **details,
    }


def event(description: str, **more: str) -> dict[str, Any]:
    return {
        "EventId": ID,
        "ClusterArn": ARN,
        "ClusterName": CLUSTER.name,
        "ResourceType": "Cluster",
        "EventTime": TIME,
        "Description": description,
        **more,
    }


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = AnsweringAws(CLUSTER.region)
    aws.answer("sagemaker", "ListClusterOperations", {"ClusterOperationSummaries": []})
    aws.answer("sagemaker", "ListClusterEvents", {"Events": []})
    aws.answer("sagemaker", "ListClusterNodes", {"ClusterNodeSummaries": []})
    monkeypatch.setattr(activity, "open_session", lambda region, profile: aws.session)
    return aws


def printed(capsys: pytest.CaptureFixture[str]) -> str:
    print_activity(CLUSTER, None)
    return capsys.readouterr().out


def test_the_newest_ones_are_shown_with_what_they_change(
    aws: AnsweringAws, capsys: pytest.CaptureFixture[str]
) -> None:
    requests: list[Parameters] = []

    def operations(parameters: Parameters) -> dict[str, Any]:
        requests.append(parameters)
        listed = [operation("Scaling", "InProgress"), operation("DeepHealthCheck", "Done")]
        return {"ClusterOperationSummaries": listed, "NextToken": "more"}

    scaling = {
        "InstanceGroupName": "workers",
        "Status": "InProgress",
        "Original": {"CurrentCount": 2, "TargetCount": 2},
        "Desired": {"CurrentCount": 2, "TargetCount": 4},
    }
    aws.answer("sagemaker", "ListClusterOperations", operations)
    aws.answer(
        "sagemaker",
        "DescribeClusterOperation",
        operation("Scaling", "InProgress", ScalingDetails=[scaling]),
    )
    place = {"InstanceGroupName": "workers", "InstanceId": "i-0123456789abcdef0"}
    events = [event("insufficient\n capacity", EventLevel="Error", **place), event("updated")]
    aws.answer("sagemaker", "ListClusterEvents", {"Events": events, "NextToken": "more"})
    said = printed(capsys)
    assert "  2026-11-27 09:05  Scaling          InProgress  workers 2 -> 4 nodes\n" in said
    assert "  2026-11-27 09:05  DeepHealthCheck  Done\n" in said
    assert "2026-11-27 09:05  Error  workers i-0123456789abcdef0  insufficient capacity\n" in said
    assert said.endswith("Cluster                      updated\n")
    assert [request["MaxResults"] for request in requests] == [NUM_SHOWN]
    assert aws.calls.count(("sagemaker", "DescribeClusterOperation")) == 1


def test_a_running_health_check_names_its_checks(
    aws: AnsweringAws, capsys: pytest.CaptureFixture[str]
) -> None:
    found = operation("DeepHealthCheck", "InProgress")
    aws.answer("sagemaker", "ListClusterOperations", {"ClusterOperationSummaries": [found]})
    checks = [
        {"InstanceGroupName": "workers", "DeepHealthChecks": ["InstanceStress"]},
        {
            "InstanceGroupName": "p5",
            "InstanceIds": ["i-0123456789abcdef0"],
            "DeepHealthChecks": ["InstanceStress", "InstanceConnectivity"],
        },
    ]
    aws.answer("sagemaker", "DescribeClusterOperation", found | {"DeepHealthCheckDetails": checks})
    expected = (
        "workers all nodes: InstanceStress, p5 1 node(s): InstanceStress, InstanceConnectivity\n"
    )
    assert expected in printed(capsys)


def test_a_part_that_cannot_be_read_is_one_line(
    aws: AnsweringAws, capsys: pytest.CaptureFixture[str]
) -> None:
    aws.answer("sagemaker", "ListClusterOperations", Refusal("AccessDeniedException", "not you"))
    said = printed(capsys)
    assert "operations: cannot be read: " in said and "not you" in said
    assert said.endswith("events: none\n")


def test_without_continuous_provisioning_the_service_has_neither(
    aws: AnsweringAws, capsys: pytest.CaptureFixture[str]
) -> None:
    print_activity(CLUSTER.model_copy(update={"continuous_provisioning": False}), None)
    assert capsys.readouterr().out == "\nimages: none is reported as stale\n"
    assert set(aws.calls) == {("sagemaker", "ListClusterNodes")}
