"""make usage: dates, the reader of Slurm's programs, and the forms of the bill."""

from __future__ import annotations

import csv
import io
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

import pytest
import yaml

from tests.tools.cluster_files import shipped
from tests.tools.json_documents import RunJson
from tests.tools.nodes.node_sessions import NodeSessions
from tests.tools.nodes.slurm_nodes import group, node, running_cluster
from tests.tools.usage.slurm_records import KINDS, read, record, second
from tools.nodes.head_node import HeadNode
from tools.usage import __main__ as command
from tools.usage.node_kinds import cluster_node_kinds
from tools.usage.output import COLUMNS, as_csv, as_page, as_text
from tools.usage.period import Period, parse_period
from tools.usage.records import node_names
from tools.usage.slurm_accounting import FIELDS, read_accounting
from tools.usage.team_bill import make_team_bill

NOW = datetime(2026, 11, 27, 15, 30, tzinfo=UTC)
NOVEMBER = Period(second("01T00:00"), second("30T00:00"))
DATES = ("--since", "2026-11-02", "--until", "2026-11-03")
SESSION = ("aws", "ssm", "start-session", "--target", "x", "--region", "us-west-2")
JOB = ["7", "7", "ada", "esm2", "{partition}", "COMPLETED", "2026-11-02T10:00:00"]
SACCT = """#!{python} -S
import os, sys
mark = next(word for word in sys.argv if word.startswith("--delimiter=")).partition("=")[2]
print(*sys.argv[1:], os.environ["TZ"], sep="\\n", file=open({calls!r}, "w"))
print(mark.join({row!r}))
"""


@pytest.mark.parametrize(
    ("since", "until", "expected"),
    [
        ("2026-11-02", "2026-11-03", ("02T00:00", "03T00:00")),
        ("2026-11-02T08:30", "2026-11-02 09:00:01", ("02T08:30", "02T09:00:01")),
        ("2026-11-02T08:30+02:00", "", ("02T06:30", "27T15:30")),
        ("", "", ("01T00:00", "27T15:30")),
        # The month that ends, not the empty one that begins.
        ("", "2026-12-01", ("01T00:00", "30T24:00")),
    ],
)
def test_dates(since: str, until: str, expected: tuple[str, str]) -> None:
    begin, end = (
        second("30T00:00") + 86_400 if text == "30T24:00" else second(text) for text in expected
    )
    assert parse_period(since, until, NOW) == Period(begin, end)


@pytest.mark.parametrize(
    ("since", "until", "message"),
    [
        ("2026-13-01", "", "SINCE: got '2026-13-01'; expected a date such as 2026-11-01"),
        ("2026-11-01", "tomorrow", "UNTIL: got 'tomorrow'; expected"),
        ("2026-11-03", "2026-11-03", "got 2026-11-03 00:00 and 2026-11-03 00:00; SINCE must be"),
        ("2026-12-01", "2026-12-02", "SINCE: got 2026-12-01 00:00, which is not before now"),
        ("2027-12-01", "", "SINCE: got 2027-12-01 00:00, which is not before now"),
    ],
)
def test_bad_dates_are_refused(since: str, until: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_period(since, until, NOW)


def test_names_of_nodes() -> None:
    assert list(node_names("a-[08-10,12]-x,b,c[1-2]")) == [
        *("a-08-x", "a-09-x", "a-10-x", "a-12-x"),
        *("b", "c1", "c2"),
    ]


def test_the_name_of_a_job_cannot_forge_records() -> None:
    accounting = read(record(JobName="a"), "9||0a1b|ben|x", record(JobIDRaw="8", JobName="b"))
    assert [(job.number, job.name) for job in accounting.records] == [
        ("7", "a 9||0a1b|ben|x"),
        ("8", "b"),
    ]


def test_only_root_sees_hidden_jobs() -> None:
    assert read(private="jobs,usage").hidden_from == ""
    assert read(private="jobs,usage", reader="ada").hidden_from == "ada"
    assert read(reader="ada").hidden_from == ""


def test_nodes_of_a_cluster_file() -> None:
    kinds = cluster_node_kinds(shipped("slurm-p5"), {}, {})
    workers = [group for group in shipped("slurm-p5").instance_groups if group.role == "worker"]
    assert set(kinds.of_groups) == {group.name for group in workers}
    assert {kind.num_devices for kind in kinds.of_groups.values()} == {8}


class Slurm:
    """Slurm's programs on a PATH; sacct prints one job, and writes how it was called."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sessions = NodeSessions(folder / "aws")
        self._calls = folder / "calls"
        self.write("scontrol", "echo 'AccountingStorageTRES   = cpu,node,gres/gpu'")
        self.write("sacctmgr", "echo 'PrivateData            = none'")
        self.write("squeue", "true")
        self.write("sbatch", "true")
        self.set_job("gpu")
        monkeypatch.setenv("PATH", self.sessions.path)

    def write(self, name: str, script: str) -> None:
        path = self.sessions.folder / "bin" / name
        path.write_text(script if script.startswith("#!") else f"#!/bin/sh\n{script}\n")
        path.chmod(0o755)

    def set_job(self, partition: str, *, node: str = "ip-10-0-0-20") -> None:
        row = [*JOB, "2026-11-02T11:00:00", "1", "cpu=48,gres/gpu=4,node=1", node, "=1+1"]
        row[FIELDS.index("Partition")] = partition
        text = SACCT.format(python=sys.executable, calls=str(self._calls), row=row)
        self.write("sacct", text)

    @property
    def arguments(self) -> list[str]:
        """Arguments of the last call of sacct, and its time zone."""
        return self._calls.read_text().splitlines()


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Slurm:
    return Slurm(tmp_path, monkeypatch)


def test_reads_duplicates_of_all_users_in_utc(slurm: Slurm) -> None:
    accounting = read_accounting(HeadNode("this machine"), NOVEMBER)
    assert [found.number for found in accounting.records] == ["7"]
    assert accounting.tracked == {"gres/gpu"}
    assert {"--allusers", "--duplicates", "--allocations"} < set(slurm.arguments)
    assert "--starttime=2026-11-01T00:00:00" in slurm.arguments
    assert slurm.arguments[-1] == "UTC"


def test_reads_through_a_session_as_root(slurm: Slurm) -> None:
    accounting = read_accounting(HeadNode("controller-1", SESSION), NOVEMBER)
    assert [found.name for found in accounting.records] == ["=1+1"]


def test_accounting_that_cannot_be_read_is_an_error(slurm: Slurm) -> None:
    slurm.write("sacct", "echo 'sacct: error: Slurm accounting storage is disabled'; exit 1")
    with pytest.raises(
        ValueError, match="this machine: Slurm's accounting cannot be read: sacct: "
    ):
        read_accounting(HeadNode("this machine"), NOVEMBER)


Run = Callable[..., str]


@pytest.fixture
def run(slurm: Slurm, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    cluster = shipped("slurm")
    worker = next(group for group in cluster.instance_groups if group.role == "worker")
    slurm.set_job(str(worker.partition))

    def usage(*arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", ["usage", *DATES, *arguments])
        assert command.main() == 0
        return capsys.readouterr().out

    return usage


def test_the_command_prints_tables_and_writes_files(run: Run, tmp_path: Path) -> None:
    table = tmp_path / "usage.csv"
    page = tmp_path / "usage.html"
    text = run("--csv", str(table), "--page", str(page))
    assert "esm2-slurm (slurm) in us-west-2, 2026-11-02 00:00 to 2026-11-03 00:00 UTC" in text
    assert "ada" in text
    assert "idle" in text
    (row,) = csv.DictReader(io.StringIO(table.read_text()))
    assert (row["user"], row["name"]) == ("ada", "'=1+1")
    assert "<table" in page.read_text()


def test_the_command_prints_json(run: Run, run_json: RunJson) -> None:
    printed = run_json(command.main, *DATES)["result"]
    assert printed["cluster"] == "esm2-slurm"
    assert printed["jobs"][0]["gpu_hours"] == 4
    assert set(printed["jobs"][0]) == {*COLUMNS}


def test_nodes_of_mixed_partitions_are_looked_up_in_hyperpod(
    run_json: RunJson, slurm: Slurm, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = yaml.safe_load(Path("clusters/slurm.yaml").read_text())
    worker = next(found for found in content["instance_groups"] if found["role"] == "worker")
    content["instance_groups"].append(
        {**worker, "name": "large", "instance_type": "ml.g5.12xlarge"}
    )
    file = tmp_path / "mixed.yaml"
    file.write_text(yaml.safe_dump(content))
    slurm.set_job("gpu", node="ip-10-0-108-1")
    aws = running_cluster("esm2-slurm", [group("large", "Compute", 1)], [node("large", 1)])
    monkeypatch.setattr(command, "open_session", lambda region, profile: aws.session)
    head = HeadNode("controller-1", SESSION)
    monkeypatch.setattr(command, "find_head_node", lambda cluster, profile: head)
    printed = run_json(command.main, "--cluster", str(file), *DATES)["result"]
    assert printed["jobs"][0]["instance_type"] == "ml.g5.12xlarge"


def test_a_long_bill_is_short_and_its_files_are_whole() -> None:
    lines = [
        record(JobIDRaw=str(number), User=f"user{number}", Account=f"team{number}", JobName="<b>")
        for number in range(300)
    ]
    bill = make_team_bill(read(*lines), KINDS, NOVEMBER)
    text = as_text("title", bill, ["a note"])
    assert len(text.splitlines()) < 100
    assert "286 others" in text
    assert as_csv(bill).count("\n") == 301
    page = as_page("title", "", bill, [])
    assert page.count("&lt;b&gt;") == 300
    assert "<b>" not in page
