"""The function that counts faults in the health agent's log, against moto's CloudWatch Logs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from functions.health_log import index

GROUP = "/aws/sagemaker/Clusters/esm2/abcdefghij12"
PROPERTIES = {
    "LogGroupName": GROUP,
    "Pattern": '{ $.HealthMonitoringAgentDetectionEvent = "HealthEvent" }',
    "MetricNamespace": "hyperpod-esm2",
    "MetricName": "esm2-health-events",
}


@pytest.fixture
def logs(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-west-2")
    with mock_aws():
        yield boto3.client("logs")


def event(kind: str, group: str = GROUP, **properties: str) -> dict[str, Any]:
    return {
        "RequestType": kind,
        "PhysicalResourceId": group,
        "ResourceProperties": PROPERTIES | {"LogGroupName": group} | properties,
    }


def filters(logs: Any, group: str = GROUP) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = logs.describe_metric_filters(logGroupName=group)["metricFilters"]
    return found


@pytest.mark.parametrize("service_was_first", [False, True])
def test_faults_are_counted_in_a_group_of_either_creator(
    logs: Any, service_was_first: bool
) -> None:
    if service_was_first:
        logs.create_log_group(logGroupName=GROUP)
    assert index.on_event(event("Create"), None) == {"PhysicalResourceId": GROUP}
    assert index.is_complete(event("Create"), None) == {"IsComplete": True}
    (created,) = filters(logs)
    assert created["filterPattern"] == PROPERTIES["Pattern"]
    (metric,) = created["metricTransformations"]
    assert (metric["metricNamespace"], metric["metricName"]) == (
        "hyperpod-esm2",
        "esm2-health-events",
    )
    streams = logs.describe_log_streams(logGroupName=GROUP)["logStreams"]
    assert [stream["logStreamName"] for stream in streams] == [index.TEST_STREAM]


def test_an_update_changes_the_filter_of_the_same_name(logs: Any) -> None:
    index.on_event(event("Create"), None)
    index.on_event(event("Update", Pattern="{ $.x = 1 }"), None)
    # CloudWatch replaces a filter of the same name, and moto keeps both.
    found = filters(logs)
    assert {one["filterName"] for one in found} == {index.FILTER_NAME}
    assert found[-1]["filterPattern"] == "{ $.x = 1 }"


def test_another_cluster_has_another_group(logs: Any) -> None:
    index.on_event(event("Create"), None)
    other = f"{GROUP[:-2]}34"
    update = event("Update", other) | {"PhysicalResourceId": GROUP}
    assert index.on_event(update, None) == {"PhysicalResourceId": other}
    assert len(filters(logs, other)) == 1


def test_a_deletion_keeps_the_log(logs: Any) -> None:
    index.on_event(event("Create"), None)
    for _ in range(2):
        index.on_event(event("Delete"), None)
        assert filters(logs) == []
    assert logs.describe_log_groups(logGroupNamePrefix=GROUP)["logGroups"]
    index.on_event(event("Delete", "/aws/sagemaker/Clusters/esm2/gone"), None)
