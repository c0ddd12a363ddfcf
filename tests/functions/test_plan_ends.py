"""The function that publishes the days to the end of training plans."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from botocore.stub import ANY, Stubber

from functions.plan_ends import index
from tests.functions.conftest import SESSION
from tests.tools.accounts import training_plan

EVENT = {
    "Plans": ["esm2-p5", "other"],
    "Namespace": "hyperpod-esm2",
    "MetricName": "DaysToPlanEnd",
    "Dimension": "TrainingPlan",
}


@pytest.fixture
def services(monkeypatch: pytest.MonkeyPatch) -> dict[str, Stubber]:
    clients = {name: SESSION.client(name) for name in ("sagemaker", "cloudwatch")}
    monkeypatch.setattr(boto3, "client", lambda name: clients[name])
    stubbers = {name: Stubber(client) for name, client in clients.items()}
    for stubber in stubbers.values():
        stubber.activate()
    return stubbers


def expect_value(cloudwatch: Stubber, published: list[dict[str, Any]]) -> None:
    expected = {"Namespace": "hyperpod-esm2", "MetricData": ANY}
    cloudwatch.add_response("put_metric_data", {}, expected)
    cloudwatch.client.meta.events.register(
        "provide-client-params.cloudwatch.PutMetricData",
        lambda params, **_: published.extend(params["MetricData"]),
    )


def test_days_are_published_for_each_plan_with_an_end(services: dict[str, Stubber]) -> None:
    published: list[dict[str, Any]] = []
    end = datetime.now(UTC) + timedelta(days=13, hours=12)
    endless = training_plan(TrainingPlanName="other")
    del endless["EndTime"]
    for name, plan in (("esm2-p5", training_plan(EndTime=end)), ("other", endless)):
        services["sagemaker"].add_response(
            "describe_training_plan", plan, {"TrainingPlanName": name}
        )
    expect_value(services["cloudwatch"], published)
    index.publish(EVENT, None)
    [value] = published
    assert (value["MetricName"], value["Dimensions"]) == (
        "DaysToPlanEnd",
        [{"Name": "TrainingPlan", "Value": "esm2-p5"}],
    )
    assert value["Value"] == pytest.approx(13.5, abs=0.01)
    for stubber in services.values():
        stubber.assert_no_pending_responses()


def test_a_plan_that_cannot_be_read_is_an_error(services: dict[str, Stubber]) -> None:
    services["sagemaker"].add_client_error("describe_training_plan", "ResourceNotFound")
    with pytest.raises(ClientError, match="ResourceNotFound"):
        index.publish(EVENT, None)
