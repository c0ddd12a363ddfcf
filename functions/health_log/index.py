"""Count the faults that HyperPod's health monitoring agent writes to its log group.

The service creates the group when an agent first writes, which may be later than the deployment. So the group
is created here if it does not exist, with a metric filter. CloudFormation could do neither: it fails if the
group exists, and a metric filter needs the group.
"""

from typing import Any

import boto3

FILTER_NAME = "health-events"
TEST_STREAM = "test-alert"
"""Log stream to which a person writes a test event."""

Event = dict[str, Any]


def on_event(event: Event, _context: object) -> Event:
    """Create or update the metric filter, or delete it; the log group and its entries stay.

    The resource is the log group's name. Another cluster has another group, and CloudFormation deletes the
    filter of the former one.
    """
    logs = boto3.client("logs")
    properties = event["ResourceProperties"]
    if event["RequestType"] == "Delete":
        group = event["PhysicalResourceId"]
        try:
            logs.delete_metric_filter(logGroupName=group, filterName=FILTER_NAME)
        except logs.exceptions.ResourceNotFoundException:
            print(f"{group} has no filter {FILTER_NAME}")
        return {"PhysicalResourceId": group}
    group = properties["LogGroupName"]
    key = {"kmsKeyId": properties["KmsKeyId"]} if properties.get("KmsKeyId") else {}
    for create, names in (
        (logs.create_log_group, {"logGroupName": group, **key}),
        (logs.create_log_stream, {"logGroupName": group, "logStreamName": TEST_STREAM}),
    ):
        try:
            create(**names)
        except logs.exceptions.ResourceAlreadyExistsException:
            print(f"{names} exists")
    logs.put_metric_filter(
        logGroupName=group,
        filterName=FILTER_NAME,
        filterPattern=properties["Pattern"],
        metricTransformations=[
            {
                "metricNamespace": properties["MetricNamespace"],
                "metricName": properties["MetricName"],
                "metricValue": "1",
                "unit": "Count",
            }
        ],
    )
    return {"PhysicalResourceId": group}


def is_complete(_event: Event, _context: object) -> dict[str, bool]:
    return {"IsComplete": True}
