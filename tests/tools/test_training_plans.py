"""make plans-search, plans-list, plans-buy and plans-extend: money is spent by a person, once, as shown."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, HTTPServer
from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ReadTimeoutError

from tests.tools.accounts import PLAN_ARN, training_plan
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tools.aws_session import SENT_ONCE, aws_client, open_session
from tools.json_output import recording
from tools.training_plans import __main__ as training_plans
from tools.training_plans import used_plans

CLUSTER = "clusters/slurm-p5.yaml"
REGION = "us-east-1"
START = datetime(2026, 12, 1, 11, 30, tzinfo=UTC)
END = datetime(2026, 12, 31, 11, 30, tzinfo=UTC)
SEARCH = ("--type", "ml.p5.48xlarge", "--nodes", "8", "--days", "30")
BUY = ("buy", "--plan", "second", "--offering", "tpo-1", *SEARCH)
EXTEND = ("extend", "--plan", "esm2-p5", "--offering", "tpeo-1", "--days", "30")


def offering(**changes: Any) -> dict[str, Any]:
    capacity = {
        "ReservedCapacityType": "Instance",
        "InstanceType": "ml.p5.48xlarge",
        "InstanceCount": 8,
        "AvailabilityZone": "us-east-1a",
        "StartTime": START,
        "EndTime": END,
    }
    return {
        "TrainingPlanOfferingId": "tpo-1",
        "TargetResources": ["hyperpod-cluster"],
        "DurationHours": 720,
        "DurationMinutes": 30,
        "UpfrontFee": "123456.50",
        "CurrencyCode": "USD",
        "ReservedCapacityOfferings": [capacity],
    } | changes


def extension(**changes: Any) -> dict[str, Any]:
    return {
        "TrainingPlanExtensionOfferingId": "tpeo-1",
        "AvailabilityZone": "us-east-1a",
        "StartDate": START,
        "EndDate": END,
        "DurationHours": 720,
        "UpfrontFee": "1000",
        "CurrencyCode": "USD",
    } | changes


class Market:
    """An account with one plan, and a service that offers a plan and an extension."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.aws = AnsweringAws(REGION)
        self.plans = [training_plan()]
        self.extensions: list[dict[str, Any]] = []
        self.offered = [offering()]
        self.extensions_offered = [extension()]
        self.searches: list[Parameters] = []
        self.bought: list[Parameters] = []
        self.typed = "123456.50"
        answers = {
            "SearchTrainingPlanOfferings": self._search,
            "ListTrainingPlans": lambda _: {"TrainingPlanSummaries": self.plans},
            "DescribeTrainingPlan": self._describe,
            "CreateTrainingPlan": self._create,
            "ExtendTrainingPlan": self._extend,
            "DescribeTrainingPlanExtensionHistory": lambda _: {
                "TrainingPlanExtensions": self.extensions
            },
        }
        for operation, answer in answers.items():
            self.aws.answer("sagemaker", operation, answer)
        monkeypatch.setattr(
            training_plans, "open_session", lambda region, profile: self.aws.session
        )
        monkeypatch.setattr("builtins.input", self._input)
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
        monkeypatch.delenv("CI", raising=False)
        self.after_the_amount: Any = lambda: None

    def _input(self, prompt: str) -> str:
        assert "123456" not in prompt, "the amount is typed from what was shown, not copied"
        self.after_the_amount()
        return self.typed

    def _search(self, parameters: Parameters) -> dict[str, Any]:
        self.searches.append(parameters)
        if "TrainingPlanArn" in parameters:
            return {
                "TrainingPlanOfferings": [],
                "TrainingPlanExtensionOfferings": self.extensions_offered,
            }
        return {"TrainingPlanOfferings": self.offered}

    def _describe(self, parameters: Parameters) -> dict[str, Any]:
        for plan in self.plans:
            if parameters["TrainingPlanName"] in (
                plan["TrainingPlanName"],
                plan["TrainingPlanArn"],
            ):
                return plan
        raise Refusal("ResourceNotFound")

    def _create(self, parameters: Parameters) -> dict[str, Any]:
        self.bought.append(parameters)
        arn = PLAN_ARN.replace("esm2-p5", parameters["TrainingPlanName"])
        self.plans.append(
            training_plan(
                TrainingPlanName=parameters["TrainingPlanName"],
                TrainingPlanArn=arn,
                Status="Scheduled",
                StartTime=START,
                EndTime=END,
                UpfrontFee="123456.50",
                CurrencyCode="USD",
            )
        )
        return {"TrainingPlanArn": arn}

    def _extend(self, parameters: Parameters) -> dict[str, Any]:
        self.bought.append(parameters)
        self.plans[0]["EndTime"] = END
        self.extensions.append(extension())
        return {"TrainingPlanExtensions": self.extensions}

    def run(self, *words: str) -> int:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sys, "argv", ["training_plans", "--cluster", CLUSTER, *words])
            return training_plans.main()


@pytest.fixture
def market(monkeypatch: pytest.MonkeyPatch) -> Market:
    return Market(monkeypatch)


def test_a_search_names_the_price_and_the_command_that_buys(
    market: Market, capsys: pytest.CaptureFixture[str]
) -> None:
    assert market.run("search", *SEARCH, "--since", "2026-12-01") == 0
    said = capsys.readouterr().out
    assert "8 * ml.p5.48xlarge in us-east-1a  2026-12-01 11:30  2026-12-31 11:30" in said
    assert "123456.50 USD" in said
    command = "make plans-buy PLAN=<name> OFFERING=<offering> TYPE=ml.p5.48xlarge NODES=8 DAYS=30"
    assert f"{command} SINCE=2026-12-01" in said
    assert market.searches == [
        {
            "TargetResources": ["hyperpod-cluster"],
            "DurationHours": 720,
            "InstanceType": "ml.p5.48xlarge",
            "InstanceCount": 8,
            "StartTimeAfter": datetime(2026, 12, 1, tzinfo=UTC),
        }
    ]
    assert market.bought == []


def test_search_and_list_as_json(market: Market, run_json: RunJson) -> None:
    market.offered.append(offering(TrainingPlanOfferingId="tpo-2", UpfrontFee="99"))
    found = run_json(training_plans.main, "search", "--cluster", CLUSTER, *SEARCH)["result"]
    assert [(each["id"], each["amount"], each["hours"]) for each in found["offerings"]] == [
        ("tpo-1", "123456.50", 720.5),
        ("tpo-2", "99", 720.5),
    ]
    market.plans.append(training_plan(TrainingPlanName="older", Status="Expired"))
    listed = run_json(training_plans.main, "list", "--cluster", CLUSTER)["result"]["plans"]
    assert [(plan["name"], plan["state"], plan["num_free"]) for plan in listed] == [
        ("esm2-p5", "Active", 8),
        ("older", "Expired", 8),
    ]
    assert listed[0]["capacity"] == "8 * ml.p5.48xlarge in use1-az6"


def test_a_list_has_the_arns_for_the_cluster_file(
    market: Market, capsys: pytest.CaptureFixture[str]
) -> None:
    assert market.run("list") == 0
    assert f"  {market.plans[0]['TrainingPlanArn']}\n" in capsys.readouterr().out


def test_ultraservers_are_searched_by_their_own_type(market: Market) -> None:
    words = ("--type", "ml.u-p6e-gb200x72", "--nodes", "1", "--days", "7")
    assert market.run("search", *words) == 0
    assert market.searches[0]["UltraServerType"] == "ml.u-p6e-gb200x72"
    assert market.searches[0]["UltraServerCount"] == 1
    assert "InstanceType" not in market.searches[0]


def test_what_was_shown_is_bought_once(market: Market, capsys: pytest.CaptureFixture[str]) -> None:
    assert market.run(*BUY) == 0
    [bought] = market.bought
    assert (bought["TrainingPlanName"], bought["TrainingPlanOfferingId"]) == ("second", "tpo-1")
    assert {"Key": "hyperpod-cluster", "Value": "esm2-p5"} in bought["Tags"]
    said = capsys.readouterr().out
    assert "amount    123456.50 USD" in said and "sagemaker:CreateTrainingPlan" in said
    assert "start     2026-12-01 11:30 UTC" in said
    assert "training-plan/second: Scheduled" in said
    # A repetition finds the plan, before anything is typed or sent.
    with pytest.raises(ValueError, match="second exists already"):
        market.run(*BUY)
    # A second name for the same capacity is a repetition, too, unless it is wanted.
    third = ("buy", "--plan", "third", *BUY[3:])
    with pytest.raises(ValueError, match="has second with the same dates and amount"):
        market.run(*third)
    assert len(market.bought) == 1
    assert market.run(*third, "--another") == 0
    assert len(market.bought) == 2


@pytest.mark.parametrize("typed", ["", "yes", "123456", "123456.51", "1234565.0"])
@pytest.mark.parametrize("words", [BUY, EXTEND])
def test_another_amount_buys_nothing(words: tuple[str, ...], typed: str, market: Market) -> None:
    market.typed = typed
    with pytest.raises(ValueError, match="nothing was bought"):
        market.run(*words)
    assert market.bought == []


def test_an_end_of_input_buys_nothing(market: Market, monkeypatch: pytest.MonkeyPatch) -> None:
    def ended(prompt: str) -> str:
        raise EOFError

    monkeypatch.setattr("builtins.input", ended)
    with pytest.raises(ValueError, match=r"got '', expected 123456.50; nothing was bought"):
        market.run(*BUY)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"UpfrontFee": "130000"}, "130000 USD instead of 123456.50 USD. Nothing was bought"),
        ({"DurationHours": 700}, "has changed since it was shown"),
        ({"TrainingPlanOfferingId": "tpo-9"}, "not offered for this search.*Offered now: tpo-9"),
    ],
)
def test_a_change_after_the_amount_was_typed_buys_nothing(
    changes: dict[str, Any], message: str, market: Market
) -> None:
    market.after_the_amount = lambda: market.offered.__setitem__(0, offering(**changes))
    with pytest.raises(ValueError, match=message):
        market.run(*BUY)
    assert market.bought == []


def test_an_offering_without_a_price_is_not_bought(market: Market) -> None:
    market.offered = [offering()]
    del market.offered[0]["UpfrontFee"]
    with pytest.raises(ValueError, match="names no price for tpo-1; nothing was bought"):
        market.run(*BUY)


@pytest.mark.parametrize("words", [BUY, EXTEND])
def test_no_pipeline_and_no_script_buys(
    words: tuple[str, ...], market: Market, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: False))
    with pytest.raises(
        ValueError, match="standard input is no terminal; a person types the amount"
    ):
        market.run(*words)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(isatty=lambda: True))
    monkeypatch.setenv("CI", "true")
    with pytest.raises(ValueError, match="CI is set to true"):
        market.run(*words)
    assert market.aws.calls == []


@pytest.mark.parametrize(
    ("refusal", "message"),
    [
        (
            Refusal("AccessDeniedException", "not authorized"),
            "allow sagemaker:CreateTrainingPlan, sagemaker:CreateReservedCapacity, sagemaker:AddTags",
        ),
        (Refusal("ResourceNotFound", "no offering"), "was sold or has expired"),
        (Refusal("ResourceInUse", "in use"), "A plan of this name exists"),
        (Refusal("ResourceLimitExceeded", "quota"), "quota; nothing was bought"),
    ],
)
def test_a_refusal_says_why_and_that_nothing_was_bought(
    refusal: Refusal, message: str, market: Market
) -> None:
    market.aws.answer("sagemaker", "CreateTrainingPlan", refusal)
    with pytest.raises(ValueError, match=f"{message}.*") as failed:
        market.run(*BUY)
    assert str(failed.value).endswith("nothing was bought")


def test_without_a_result_the_account_shows_it(
    market: Market, capsys: pytest.CaptureFixture[str]
) -> None:
    def lost(parameters: Parameters) -> dict[str, Any]:
        market._create(parameters)
        raise Refusal("InternalFailure", "try again", 500)

    market.aws.answer("sagemaker", "CreateTrainingPlan", lost)
    assert market.run(*BUY) == 0
    assert len(market.bought) == 1
    said = capsys.readouterr()
    assert "the service gave no result" in said.err and "training-plan/second" in said.out


def test_an_unknown_result_is_said(
    market: Market, run_json: RunJson, capsys: pytest.CaptureFixture[str]
) -> None:
    def silent(parameters: Parameters) -> dict[str, Any]:
        market.bought.append(parameters)
        raise ReadTimeoutError(endpoint_url="https://api.sagemaker")

    market.aws.answer("sagemaker", "CreateTrainingPlan", silent)
    document = run_json(training_plans.main, "--cluster", CLUSTER, *BUY)
    assert document["exit_status"] == 1
    assert (
        document["result"]["is_bought"] is None and document["result"]["offering"]["id"] == "tpo-1"
    )
    assert len(market.bought) == 1


def test_an_extension_is_bought_once(market: Market, capsys: pytest.CaptureFixture[str]) -> None:
    assert market.run("search", "--plan", "esm2-p5") == 0
    assert "make plans-extend PLAN=esm2-p5 OFFERING=<offering>" in capsys.readouterr().out
    market.typed = "1000.00"
    assert market.run(*EXTEND) == 0
    assert market.bought == [{"TrainingPlanExtensionOfferingId": "tpeo-1"}]
    said = capsys.readouterr().out
    assert "sagemaker:ExtendTrainingPlan" in said and "it ends 2026-12-31 11:30 UTC" in said
    with pytest.raises(ValueError, match="was extended with tpeo-1 already"):
        market.run(*EXTEND)
    assert len(market.bought) == 1


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("search",), "TYPE: it is missing"),
        (("search", "--type", "ml.g5.8xlarge", *SEARCH[2:]), "TYPE: got .*plans reserve ml.p4d"),
        (("search", *SEARCH[:2], "--nodes", "0", *SEARCH[4:]), "NODES: got 0"),
        (("search", *SEARCH[:4], "--days", "0"), "DAYS: got 0; expected a positive number"),
        (("search", *SEARCH[:4], "--days", "nan"), "DAYS: got nan; expected a positive number"),
        (("search", *SEARCH[:4], "--days", "inf"), "DAYS: got inf; expected a positive number"),
        (("search", *SEARCH, "--until", "2020-01-01"), "must be after the earliest start now"),
        (("search", *SEARCH, "--since", "soon"), "SINCE: got .*expected a date"),
        (("search", "--plan", "absent"), "no plan .*absent"),
        (("buy", *SEARCH), "PLAN: it is missing"),
        (("buy", "--plan", "a--", "--offering", "tpo-1", *SEARCH), "PLAN: got .*single hyphens"),
        (("extend", "--plan", "esm2-p5"), "OFFERING: it is missing"),
    ],
)
def test_wrong_values_are_named(words: tuple[str, ...], message: str, market: Market) -> None:
    with pytest.raises(ValueError, match=message):
        market.run(*words)
    assert market.bought == []


@pytest.fixture
def failing_service(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """Requests to a server that answers 503, and that clients of SageMaker take for the service."""
    requests: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            requests.append(self.headers["X-Amz-Target"])
            self.rfile.read(int(self.headers["Content-Length"]))
            body = json.dumps({"__type": "ServiceUnavailable"}).encode()
            self.send_response(503)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            del format, arguments

    server = HTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    monkeypatch.setenv("AWS_ENDPOINT_URL_SAGEMAKER", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "example")
    yield requests
    server.shutdown()
    thread.join()
    server.server_close()


def test_botocore_sends_a_purchase_once(failing_service: list[str]) -> None:
    buyer = aws_client(open_session(region=REGION), "sagemaker", SENT_ONCE)
    with pytest.raises(buyer.exceptions.ClientError):
        buyer.create_training_plan(TrainingPlanName="a", TrainingPlanOfferingId="tpo-1")
    assert failing_service == ["SageMaker.CreateTrainingPlan"]


def test_status_shows_the_plans_of_the_file(
    market: Market, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(used_plans, "open_session", lambda region, profile: market.aws.session)
    cluster = shipped("slurm-p5")
    market.plans = [training_plan(EndTime=datetime.now(UTC) + timedelta(days=13, hours=1))]
    with recording("status") as document:
        used_plans.print_plans(cluster, None)
    [plan] = document.result["plans"]
    assert (plan["name"], plan["state"], plan["days_left"]) == ("esm2-p5", "Active", 13.0)
    said = capsys.readouterr().err
    assert "esm2-p5 ends in 13 days. make plans-search PLAN=esm2-p5" in said
    market.plans = []
    used_plans.print_plans(cluster, None)
    assert "esm2-p5  not found" in capsys.readouterr().out
    market.aws.answer("sagemaker", "DescribeTrainingPlan", Refusal("AccessDeniedException", "no"))
    used_plans.print_plans(cluster, None)
    assert "training plans: cannot be read: " in capsys.readouterr().out
    used_plans.print_plans(shipped("slurm"), None)
    assert capsys.readouterr().out == ""
