"""make usage ARGS="--source report": AWS's usage report, from a stand-in for Glue and Athena.

Names of tables and columns are those of the report's own CloudFormation template.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from config.facts.price_list import load_prices
from tests.tools.answering_aws import AnsweringAws, Parameters, Refusal
from tests.tools.json_documents import RunJson
from tools.usage import __main__ as command
from tools.usage import athena

DATABASE = "usagereportdatabase-a1b2c3"
BUCKET = "123456789012-us-west-2-abc123def456-usage-report-0a1b2c3d"
HOURS = [
    f"{kind}_{name}_utilization_hours"
    for name in ("neuron_core", "gpu", "vcpu")
    for kind in ("total", "allocated", "borrowed")
]
SUMMARY = ["report_date", "namespace", "team", "instance_type", *HOURS]
DETAILED = [
    *("report_date", "period_start", "period_end", "namespace", "team", "task_name", "instance"),
    *("instance_count", "status", "utilized_neuron_core_hours", "utilized_neuron_core_count"),
    *("utilized_gpu_hours", "utilized_gpu_count", "utilized_vcpu_hours", "utilized_vcpu_count"),
    "priority_class",
]
PARTITIONS = ["year", "month", "day", "cluster"]
TEAM = "hyperpod-ns-biology"
P5 = "ml.p5.48xlarge"
DATES = ("--since", "2026-11-02", "--until", "2026-11-05")


def team(day: str, gpu: Sequence[float], **more: Any) -> dict[str, Any]:
    gpus = dict(zip(HOURS[3:6], gpu, strict=True))
    row = {"report_date": day, "namespace": TEAM, "team": "biology", "instance_type": P5}
    return {**row, **dict.fromkeys(HOURS, 0.0), **gpus, "cluster": "esm2-eks-p5", **more}


def task(start: str, end: str, gpu_hours: float, status: str) -> dict[str, Any]:
    return {
        "report_date": start[:10],
        "period_start": f"{start}:00.000",
        "period_end": f"{end}:00.000",
        "namespace": TEAM,
        "team": "biology",
        "task_name": "job-train-8m",
        "instance": P5,
        "status": status,
        "priority_class": None,
        "utilized_gpu_hours": gpu_hours,
        "utilized_neuron_core_hours": 0.0,
        "utilized_vcpu_hours": 24 * gpu_hours,
        "cluster": "esm2-eks-p5",
    }


class Report:
    """An account with the report's tables."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.columns = {"summary_report": SUMMARY, "detailed_report": DETAILED}
        self.rows: dict[str, list[dict[str, Any]]] = {"summary_report": [], "detailed_report": []}
        self.databases = {"default": [], DATABASE: list(self.columns)}
        self.queries: list[Parameters] = []
        self.states = ["QUEUED", "SUCCEEDED"]
        self._looks: dict[str, int] = {}
        self.aws = AnsweringAws("us-west-2")
        self.aws.answer(
            "glue",
            "GetDatabases",
            lambda _: {"DatabaseList": [{"Name": name} for name in self.databases]},
        )
        self.aws.answer("glue", "GetTables", self._tables)
        self.aws.answer("glue", "GetTable", self._table)
        self.aws.answer("athena", "StartQueryExecution", self._start)
        self.aws.answer("athena", "GetQueryExecution", self._look)
        self.aws.answer("athena", "GetQueryResults", self._results)
        monkeypatch.setattr(athena, "POLL_SECONDS", 0.0)
        monkeypatch.setattr(command, "open_session", lambda region, profile: self.aws.session)

    def _tables(self, parameters: Parameters) -> dict[str, Any]:
        assert parameters["Expression"] == "summary_report|detailed_report"
        return {"TableList": [{"Name": n} for n in self.databases[parameters["DatabaseName"]]]}

    def _table(self, parameters: Parameters) -> dict[str, Any]:
        name = parameters["Name"]
        if name not in self.databases.get(parameters["DatabaseName"], []):
            raise Refusal("EntityNotFoundException", "Entity Not Found")
        storage = {
            "Location": f"s3://{BUCKET}/reports/{name.partition('_')[0]}/",
            "Columns": [{"Name": column} for column in self.columns[name]],
        }
        keys = [{"Name": column} for column in PARTITIONS]
        return {"Table": {"Name": name, "StorageDescriptor": storage, "PartitionKeys": keys}}

    def _start(self, parameters: Parameters) -> dict[str, Any]:
        self.queries.append(parameters)
        return {"QueryExecutionId": f"query-{len(self.queries)}"}

    def _look(self, parameters: Parameters) -> dict[str, Any]:
        query = parameters["QueryExecutionId"]
        look = self._looks[query] = self._looks.get(query, -1) + 1
        status = {"State": self.states[min(look, len(self.states) - 1)]}
        if status["State"] == "FAILED":
            status["StateChangeReason"] = "HIVE_BAD_DATA: not a parquet file"
        return {"QueryExecution": {"Status": status, "Statistics": {"DataScannedInBytes": 4000000}}}

    def _results(self, parameters: Parameters) -> dict[str, Any]:
        """One row a page, as Athena has pages of 1,000; the first row has the names."""
        sql = self.queries[int(parameters["QueryExecutionId"].removeprefix("query-")) - 1]
        words = sql["QueryString"].split(" FROM ")
        names = words[0].removeprefix("SELECT ").split(", ")
        values = [[row[name] for name in names] for row in self.rows[words[1].split()[0]]]
        page = int(parameters.get("NextToken", 0))
        row = [names, *values][page]
        cells = [{} if value is None else {"VarCharValue": str(value)} for value in row]
        more = {"NextToken": str(page + 1)} if page < len(values) else {}
        return {"ResultSet": {"Rows": [{"Data": cells}]}} | more


@pytest.fixture
def report(monkeypatch: pytest.MonkeyPatch) -> Report:
    found = Report(monkeypatch)
    found.rows["summary_report"] = [
        team("2026-11-02", (96.0, 64.0, 32.0)),
        team("2026-11-04", (8.0, 8.0, 0.0)),
        team("2026-11-02", (4.0, 4.0, 0.0), namespace="other", cluster="another"),
    ]
    found.rows["detailed_report"] = [
        task("2026-11-02 20:00", "2026-11-02 21:30", 12.0, "Running"),
        task("2026-11-02 10:00", "2026-11-02 11:00", 8.0, "Failed"),
    ]
    return found


def arguments(*more: str) -> list[str]:
    return ["--cluster", "clusters/eks-p5.yaml", "--source", "report", *DATES, *more]


def run(monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["usage", *words])
    command.main()


def test_hours_of_teams_and_tasks(report: Report, run_json: RunJson, tmp_path: Path) -> None:
    table = tmp_path / "usage.csv"
    printed = run_json(command.main, *arguments("--csv", str(table)))["result"]

    assert (printed["since"], printed["until"]) == ("2026-11-02", "2026-11-05")
    (found,) = printed["teams"]
    assert (found["namespace"], found["team"]) == (TEAM, "biology")
    gpu = [found[f"gpu_hours{kind}"] for kind in ("", "_allocated", "_borrowed")]
    assert gpu == [104.0, 72.0, 32.0]
    # 104 GPU hours are 13 hours of nodes with eight GPUs.
    assert found["usd"] == pytest.approx(13 * load_prices("us-west-2")[f"hyperpod.{P5}"].usd)
    (job,) = printed["tasks"]
    assert (job["gpu_hours"], job["states"]) == (20.0, ["Failed", "Running"])
    assert (job["first_start"][:16], job["last_end"][:16]) == (
        "2026-11-02 10:00",
        "2026-11-02 21:30",
    )
    assert printed["missing_days"] == ["2026-11-03"]
    assert printed["scanned_bytes"] == 8_000_000
    assert printed["accounts"] is None
    assert "bills by bytes" in printed["notes"][0]

    with table.open() as file:
        days = list(csv.DictReader(file))
    assert [(row["day"], row["gpu_hours_borrowed"]) for row in days] == [
        ("2026-11-02", "32.0"),
        ("2026-11-04", "0.0"),
    ]
    assert {(q["WorkGroup"], q["QueryExecutionContext"]["Database"]) for q in report.queries} == {
        (BUCKET, DATABASE)
    }
    # UNTIL is excluded.
    assert all("BETWEEN '2026-11-02' AND '2026-11-04'" in q["QueryString"] for q in report.queries)


def test_text_of_a_report(
    report: Report, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    report.rows["summary_report"].append(
        team("2026-11-04", (0, 0, 0), namespace="x", instance_type="ml.trn2.48xlarge")
    )
    run(monkeypatch, *arguments("--database", DATABASE, "--workgroup", "ours"))
    printed = capsys.readouterr().out
    assert "104.00     72.00      32.00" in printed
    assert "job-train-8m" in printed
    assert "Without USD: ml.trn2.48xlarge" in printed
    assert "Without any hours: 2026-11-03." in printed
    assert {query["WorkGroup"] for query in report.queries} == {"ours"}


def test_a_renamed_column_is_named_before_a_query(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.columns["detailed_report"] = [
        column if column != "instance" else "instance_type" for column in DETAILED
    ]
    with pytest.raises(
        ValueError, match=r"detailed_report .* no column instance; it has .*'instance_type'"
    ):
        run(monkeypatch, *arguments())
    assert report.queries == []


def test_a_failed_query_has_its_reason(report: Report, monkeypatch: pytest.MonkeyPatch) -> None:
    report.states = ["RUNNING", "FAILED"]
    with pytest.raises(ValueError, match="query-1 is FAILED: 'HIVE_BAD_DATA: not a parquet file'"):
        run(monkeypatch, *arguments())


def test_the_report_must_be_installed_and_of_the_cluster(
    report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    report.rows["summary_report"] = [team("2026-11-02", (1, 1, 0), cluster="another")]
    with pytest.raises(ValueError, match="rows of 'another' and none of esm2-eks-p5"):
        run(monkeypatch, *arguments())
    report.databases["second"] = list(report.columns)
    with pytest.raises(
        ValueError, match=f"2 usage reports; name the cluster's: {DATABASE}, second"
    ):
        run(monkeypatch, *arguments())
    with pytest.raises(ValueError, match="--database: default has no table summary_report"):
        run(monkeypatch, *arguments("--database", "default"))
    report.databases = {"default": []}
    with pytest.raises(ValueError, match=r"no database has the tables .* installs it"):
        run(monkeypatch, *arguments())


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--source", "report", "--since", "2026-11-02T08:00"),
            "SINCE: .*08:00; AWS's .* whole days",
        ),
        (("--source", "report", "--page", "usage.html"), "--page: got usage.html; AWS's report"),
        (("--database", "ours"), "--database: .* add --source report"),
        (("--source", "report", "--cluster", "clusters/slurm.yaml"), "--source: .* runs Slurm"),
    ],
)
def test_options_that_the_report_lacks(
    words: tuple[str, ...], message: str, report: Report, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ValueError, match=message):
        run(monkeypatch, "--cluster", "clusters/eks-p5.yaml", *DATES, *words)
