"""make cost ARGS=--plans: what was paid for a training plan instead of on-demand prices."""

from __future__ import annotations

from typing import Any

import pytest

from tests.tools.accounts import training_plan
from tests.tools.answering_aws import AnsweringAws, Refusal
from tests.tools.json_documents import RunJson
from tools.cost import __main__ as cost
from tools.cost import plan_prices

CLUSTER = ("--cluster", "clusters/slurm-p5.yaml")


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> AnsweringAws:
    aws = AnsweringAws("us-east-1")
    monkeypatch.setattr(plan_prices, "open_session", lambda region, profile: aws.session)
    return aws


def compute(document: dict[str, Any]) -> dict[str, float]:
    """Monthly USD of the lines about nodes, by the key of their price."""
    lines = document["result"]["lines"]
    return {line["key"]: line["monthly_usd"] for line in lines if line["service"] == "Compute"}


@pytest.mark.parametrize(
    ("hours", "monthly"),
    [
        # Longer than a month, so that the month has a share.
        (1460, 50_000),
        # A week is paid as a whole.
        (168, 100_000),
    ],
)
def test_the_amount_replaces_on_demand_prices(
    hours: int, monthly: float, aws: AnsweringAws, run_json: RunJson
) -> None:
    plan = training_plan(UpfrontFee="100000", CurrencyCode="USD", DurationHours=hours)
    aws.answer("sagemaker", "DescribeTrainingPlan", plan)
    before = compute(run_json(cost.main, *CLUSTER))
    assert aws.calls == []
    document = run_json(cost.main, *CLUSTER, "--plans")
    after = compute(document)
    assert after["plan.esm2-p5"] == pytest.approx(monthly)
    assert before.keys() - after.keys() == {"hyperpod.ml.p5.48xlarge"}
    assert any("100000 USD are paid at purchase" in note for note in document["result"]["notes"])


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (Refusal("ResourceNotFound"), "no plan esm2-p5 in us-east-1"),
        (training_plan(DurationHours=24), "costs not named for 24 hours"),
        (
            training_plan(UpfrontFee="5", CurrencyCode="EUR", DurationHours=24),
            "costs 5 EUR for 24 hours; the table needs an amount in USD",
        ),
    ],
)
def test_plans_without_a_price_in_usd_are_refused(
    answer: Any, message: str, aws: AnsweringAws, run_json: RunJson
) -> None:
    aws.answer("sagemaker", "DescribeTrainingPlan", answer)
    document = run_json(cost.main, *CLUSTER, "--plans")
    assert document["exit_status"] == 2 and message in document["error"]
