"""Publish the days to the end of each training plan as a metric, on which alarms are set.

The end is known only to SageMaker, and an extension moves it. So it is read again and again.
"""

from datetime import UTC, datetime, timedelta
from typing import Any

import boto3

Event = dict[str, Any]


def publish(event: Event, _context: object) -> None:
    """Publish one value for each plan that has an end.

    Raises:
        ClientError: if a plan does not exist or cannot be read, which the alarm on errors reports.
    """
    sagemaker = boto3.client("sagemaker")
    cloudwatch = boto3.client("cloudwatch")
    now = datetime.now(UTC)
    for name in event["Plans"]:
        end = sagemaker.describe_training_plan(TrainingPlanName=name).get("EndTime")
        if end is None:
            print(f"{name} has no end")
            continue
        cloudwatch.put_metric_data(
            Namespace=event["Namespace"],
            MetricData=[
                {
                    "MetricName": event["MetricName"],
                    "Dimensions": [{"Name": event["Dimension"], "Value": name}],
                    "Timestamp": now,
                    "Value": (end - now) / timedelta(days=1),
                    "Unit": "None",
                }
            ],
        )
