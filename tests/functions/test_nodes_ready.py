"""The function that waits for nodes, against SageMaker's own API shapes."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest
from botocore.stub import Stubber

from functions.nodes_ready import index

CLUSTER = "esm2-eks"
START = 1_000_000.0
MINUTES = 60.0


def at(minutes: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.time, "time", lambda: START + minutes * MINUTES)


def event(
    groups: dict[str, str], *, kind: str = "Create", autoscaling: str = "false"
) -> dict[str, Any]:
    """Return the framework's event, in which numbers and booleans are strings."""
    return {
        "RequestType": kind,
        "PhysicalResourceId": CLUSTER,
        "ResourceProperties": {
            "ClusterName": CLUSTER,
            "Groups": groups,
            "Autoscaling": autoscaling,
            "TimeoutSeconds": "3000",
        },
        "Data": {"Start": START},
    }


def node(group: str, status: str, message: str | None = None) -> dict[str, Any]:
    return {
        "InstanceGroupName": group,
        "InstanceId": "i-0123456789abcdef0",
        "InstanceType": "ml.m5.2xlarge",
        "LaunchTime": datetime(2026, 1, 1, tzinfo=UTC),
        "InstanceStatus": {"Status": status, **({"Message": message} if message else {})},
    }


def lists(sagemaker: Stubber, *pages: list[dict[str, Any]]) -> None:
    for number, page in enumerate(pages):
        more = {"NextToken": f"page-{number + 1}"} if number + 1 < len(pages) else {}
        asked = {"ClusterName": CLUSTER, **({"NextToken": f"page-{number}"} if number else {})}
        sagemaker.add_response("list_cluster_nodes", {"ClusterNodeSummaries": page, **more}, asked)


def describes(sagemaker: Stubber, **more: Any) -> None:
    answer = {
        "ClusterArn": f"arn:aws:sagemaker:us-west-2:123456789012:cluster/{'a' * 12}",
        "ClusterStatus": "InService",
        "InstanceGroups": [],
        **more,
    }
    sagemaker.add_response("describe_cluster", answer, {"ClusterName": CLUSTER})


def test_a_wait_begins_with_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    at(0, monkeypatch)
    begun = index.on_event(event({"system": "1"}), None)
    assert begun == {"PhysicalResourceId": CLUSTER, "Data": {"Start": START}}


def test_it_ends_when_all_groups_have_their_nodes(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(5, monkeypatch)
    lists(
        sagemaker, [node("system", "Running"), node("more", "Pending")], [node("more", "Running")]
    )
    assert index.is_complete(event({"system": "1", "more": "1"}), None) == {"IsComplete": True}


@pytest.mark.parametrize(
    "status", ["Pending", "DeepHealthCheckInProgress", "Failure", "SystemUpdating"]
)
def test_waits_while_a_node_is_not_running(
    status: str, sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(5, monkeypatch)
    lists(sagemaker, [node("system", "Running"), node("system", status)])
    assert index.is_complete(event({"system": "2"}), None) == {"IsComplete": False}


def test_nodes_of_other_groups_do_not_count(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(5, monkeypatch)
    lists(sagemaker, [node("workers", "Running"), node("workers", "Running")])
    assert index.is_complete(event({"system": "1"}), None) == {"IsComplete": False}


def test_its_end_says_what_is_wrong_and_what_to_do(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(50, monkeypatch)
    failed = node("system", "Failure", "Lifecycle scripts did not run successfully.")
    lists(sagemaker, [failed, failed, node("system", "Pending")])
    with pytest.raises(TimeoutError) as raised:
        index.is_complete(event({"system": "2", "more": "1"}), None)
    text = str(raised.value)
    assert text == (
        "after 50 minutes: group system has 2 Failure, 1 Pending, and needs 2 Running;"
        " Lifecycle scripts did not run successfully.; group more has no nodes, and needs 1 Running."
        " `aws sagemaker list-cluster-events --cluster-name esm2-eks` shows why (capacity, quotas,"
        " lifecycle scripts); then deploy again"
    )


def test_nodes_that_come_at_the_last_moment_count(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(60, monkeypatch)
    lists(sagemaker, [node("system", "Running")])
    assert index.is_complete(event({"system": "1"}), None) == {"IsComplete": True}


@pytest.mark.parametrize(
    ("answer", "complete"),
    [
        ({"AutoScaling": {"Mode": "Enable", "Status": "InService"}}, True),
        ({"AutoScaling": {"Mode": "Enable", "Status": "Creating"}}, False),
        ({}, False),
    ],
)
def test_autoscaling_is_waited_for_too(
    answer: dict[str, Any], complete: bool, sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(5, monkeypatch)
    lists(sagemaker, [node("system", "Running")])
    describes(sagemaker, **answer)
    found = index.is_complete(event({"system": "1"}, autoscaling="true"), None)
    assert found == {"IsComplete": complete}


def test_autoscaling_that_does_not_come_is_named(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(51, monkeypatch)
    lists(sagemaker, [node("system", "Running")])
    describes(sagemaker, AutoScaling={"Mode": "Enable", "Status": "Failed"})
    with pytest.raises(TimeoutError, match="autoscaling has status Failed, not InService"):
        index.is_complete(event({"system": "1"}, autoscaling="true"), None)


def test_deletion_waits_for_nothing(sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cluster may be gone already, so no request is sent."""
    at(90, monkeypatch)
    assert index.is_complete(event({"system": "1"}, kind="Delete"), None) == {"IsComplete": True}


def test_reports_a_fault_of_the_service(
    sagemaker: Stubber, monkeypatch: pytest.MonkeyPatch
) -> None:
    at(1, monkeypatch)
    sagemaker.add_client_error("list_cluster_nodes", "AccessDeniedException")
    with pytest.raises(Exception, match="AccessDeniedException"):
        index.is_complete(event({"system": "1"}), None)
