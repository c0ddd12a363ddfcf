"""AWS's usage report for HyperPod on EKS, read from the tables that its daily query fills.

The report is a stack and a Helm chart of AWS (awslabs/sagemaker-hyperpod-usage-report). Its table
``summary_report`` has the hours of each namespace by day, from the queues of task governance. Its table
``detailed_report`` has the hours of each task, from the changes of state that its operator saw on one day.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import Any

import boto3

from config.eks_cluster import EksCluster
from config.resource_names import ResourceNames
from seqlm.training.strict_yaml import shown
from tools.aws_session import all_items, aws_client, if_present
from tools.usage.athena import Row, run_query
from tools.usage.period import Period, second_text

SUMMARY = "summary_report"
DETAILED = "detailed_report"
RESOURCES = ("gpu", "neuron_core", "vcpu")
"""Resources whose hours the tables have. A Neuron device has several NeuronCores."""
KINDS = ("total", "allocated", "borrowed")
"""Kinds of hours of the summary: within the team's own quota, borrowed from others, and both together."""
COLUMNS: Mapping[str, tuple[str, ...]] = {
    SUMMARY: (
        "report_date",
        "namespace",
        "team",
        "instance_type",
        *(f"{kind}_{name}_utilization_hours" for name in RESOURCES for kind in KINDS),
        "cluster",
    ),
    DETAILED: (
        "report_date",
        "period_start",
        "period_end",
        "namespace",
        "team",
        "task_name",
        "instance",
        "status",
        "priority_class",
        *(f"utilized_{name}_hours" for name in RESOURCES),
        "cluster",
    ),
}
"""Columns that are read, by table."""
PARTITIONS = ("year", "month", "day")
"""Columns by which both tables are divided, so that a query reads only the days that it names."""
INSTALL = "https://github.com/awslabs/sagemaker-hyperpod-usage-report installs it"


@dataclass(frozen=True)
class ReportPlace:
    """Database of an installed report, and the workgroup that queries it."""

    database: str
    workgroup: str


@dataclass(frozen=True)
class Hours:
    """Hours of one resource."""

    total: float = 0.0
    allocated: float = 0.0
    """Hours within the team's own quota; 0 without task governance."""
    borrowed: float = 0.0
    """Hours on what other teams lent; 0 without task governance."""


@dataclass(frozen=True)
class TeamUse:
    """Use by a namespace of one instance type."""

    namespace: str
    team: str
    """Team of task governance; empty for a namespace without one."""
    instance_type: str
    hours: Mapping[str, Hours]
    """Hours by resource."""


@dataclass(frozen=True)
class TeamDay:
    """Use by a namespace on one day."""

    day: date
    use: TeamUse


@dataclass
class TaskUse:
    """Use by a task of one instance type in the whole period."""

    namespace: str
    team: str
    task: str
    instance_type: str
    statuses: list[str] = field(default_factory=list)
    """Status at the end of each time in which the task ran."""
    priority_class: str = ""
    first_start: str = ""
    last_end: str = ""
    hours: dict[str, float] = field(default_factory=lambda: dict.fromkeys(RESOURCES, 0.0))
    """Hours by resource."""


@dataclass(frozen=True, kw_only=True)
class UsageReport:
    place: ReportPlace
    first_day: date
    last_day: date
    days: Sequence[TeamDay]
    tasks: Sequence[TaskUse]
    scanned_bytes: int
    """Bytes that Athena read, and bills."""

    @property
    def missing_days(self) -> list[date]:
        """Return the days of the period for which the summary has no row."""
        present = {use.day for use in self.days}
        return [day for day in _days(self.first_day, self.last_day) if day not in present]


def read_report(
    session: boto3.Session,
    cluster: EksCluster,
    period: Period,
    *,
    database: str | None,
    workgroup: str | None,
) -> UsageReport:
    """Read the report of whole days.

    Args:
        session: session in the cluster's region.
        cluster: cluster file.
        period: period, from a midnight in UTC. A day that has not ended is left out.
        database: database of the report in Glue; None finds it by its tables.
        workgroup: workgroup of Athena; None is that of the report's stack.

    Raises:
        ValueError: if the period has no whole day, or the report is not installed or not as expected.
    """
    first, last = whole_days(period)
    place = _find(aws_client(session, "glue"), database, workgroup)
    athena = aws_client(session, "athena")
    names = {cluster.name, ResourceNames(cluster).kubernetes_cluster}
    answers = {
        table: run_query(
            athena,
            _query(table, first, last),
            database=place.database,
            workgroup=place.workgroup,
        )
        for table in COLUMNS
    }
    summary, detailed = (_of_cluster(answers[table].rows, names, table) for table in COLUMNS)
    return UsageReport(
        place=place,
        first_day=first,
        last_day=last,
        days=[_team_day(row) for row in summary],
        tasks=_tasks(detailed),
        scanned_bytes=sum(answer.scanned_bytes for answer in answers.values()),
    )


def whole_days(period: Period) -> tuple[date, date]:
    """Return the first and the last whole day of a period.

    Raises:
        ValueError: if the period does not begin at a midnight, or no day of it has ended.
    """
    since = datetime.fromtimestamp(period.since, UTC)
    if since.time() != datetime.min.time():
        raise ValueError(
            f"SINCE: got {second_text(period.since)}; AWS's usage report has whole days, so give a date"
        )
    last = datetime.fromtimestamp(period.until, UTC).date() - timedelta(days=1)
    if last < since.date():
        raise ValueError(
            f"SINCE: got {second_text(period.since)}; AWS's usage report has whole days, and adds one after "
            "midnight in UTC. Give an earlier date"
        )
    return since.date(), last


def _find(glue: Any, database: str | None, workgroup: str | None) -> ReportPlace:
    """Return the place of the report, after a check of the columns of its tables."""
    names = [database] if database else _databases(glue)
    if not names:
        raise ValueError(
            f"AWS's usage report is not in Glue of this region: no database has the tables {SUMMARY} and "
            f"{DETAILED}. {INSTALL}; without it, omit --source report"
        )
    if len(names) > 1:
        raise ValueError(
            f"--database: there are {len(names)} usage reports; name the cluster's: {', '.join(names)}"
        )
    tables = {table: _table(glue, names[0], table) for table in COLUMNS}
    for table, found in tables.items():
        _check_columns(table, found)
    location = tables[SUMMARY].get("StorageDescriptor", {}).get("Location", "")
    bucket = location.removeprefix("s3://").partition("/")[0]
    if not (workgroup or bucket):
        raise ValueError(
            f"--workgroup: table {SUMMARY} of {names[0]} names no bucket, from which its name "
            "would follow; name the workgroup"
        )
    # The report's stack gives its workgroup the name of its bucket.
    return ReportPlace(names[0], workgroup or bucket)


def _databases(glue: Any) -> list[str]:
    """Return the databases with both tables of the report."""
    found = []
    for listed in all_items(glue, "get_databases", "DatabaseList"):
        tables = all_items(
            glue,
            "get_tables",
            "TableList",
            DatabaseName=listed["Name"],
            Expression=f"{SUMMARY}|{DETAILED}",
        )
        if {table["Name"] for table in tables} == set(COLUMNS):
            found.append(str(listed["Name"]))
    return found


def _table(glue: Any, database: str, table: str) -> Mapping[str, Any]:
    response = if_present(glue.get_table, DatabaseName=database, Name=table)
    if response is None:
        raise ValueError(
            f"--database: {database} has no table {table} of AWS's usage report. {INSTALL}"
        )
    found: Mapping[str, Any] = response["Table"]
    return found


def _check_columns(table: str, found: Mapping[str, Any]) -> None:
    """Raise ValueError if the table lacks a column; another version of the report may have other names."""
    listed = [
        *found.get("StorageDescriptor", {}).get("Columns", []),
        *found.get("PartitionKeys", []),
    ]
    present = [column["Name"].lower() for column in listed]
    missing = [name for name in (*COLUMNS[table], *PARTITIONS) if name not in present]
    if missing:
        raise ValueError(
            f"table {table} of AWS's usage report has no column {', '.join(missing)}; it has "
            f"{', '.join(map(shown, present))}. This version of the report is not known here"
        )


def _query(table: str, first: date, last: date) -> str:
    """Return a query for the rows of whole days, which reads only their partitions."""
    day = " || '-' || ".join(PARTITIONS)
    columns = ", ".join(COLUMNS[table])
    return f"SELECT {columns} FROM {table} WHERE {day} BETWEEN '{first}' AND '{last}'"


def _of_cluster(rows: Sequence[Row], names: set[str], table: str) -> list[Row]:
    """Return the rows of the cluster, which the report calls by the name that its installation was given.

    Raises:
        ValueError: if the table has rows of other clusters only.
    """
    found = [row for row in rows if row["cluster"] in names]
    if rows and not found:
        others = sorted({row["cluster"] or "" for row in rows})
        raise ValueError(
            f"table {table} has rows of {shown(', '.join(others))} and none of {' or '.join(sorted(names))}; "
            "name the cluster's report with --database"
        )
    return found


def _team_day(row: Row) -> TeamDay:
    hours = {
        name: Hours(*(_number(row, f"{kind}_{name}_utilization_hours") for kind in KINDS))
        for name in RESOURCES
    }
    use = TeamUse(row["namespace"] or "", row["team"] or "", row["instance_type"] or "", hours)
    return TeamDay(_day(row["report_date"]), use)


def _tasks(rows: Sequence[Row]) -> list[TaskUse]:
    """Return the sums by task and instance type, in the order of their first start."""
    tasks: dict[tuple[str | None, ...], TaskUse] = {}
    for row in sorted(rows, key=lambda row: row["period_start"] or ""):
        key = tuple(row[name] for name in ("namespace", "team", "task_name", "instance"))
        namespace, team, name, instance = (value or "" for value in key)
        task = tasks.setdefault(key, TaskUse(namespace, team, name, instance))
        task.statuses.append(row["status"] or "")
        task.priority_class = row["priority_class"] or ""
        task.first_start = task.first_start or row["period_start"] or ""
        task.last_end = max(task.last_end, row["period_end"] or "")
        for resource in RESOURCES:
            task.hours[resource] += _number(row, f"utilized_{resource}_hours")
    return list(tasks.values())


def _number(row: Row, column: str) -> float:
    text = row[column]
    try:
        return float(text) if text else 0.0
    except ValueError:
        raise ValueError(
            f"AWS's usage report: {column} is {shown(str(text))}; expected a number of hours"
        ) from None


def _day(text: str | None) -> date:
    try:
        return date.fromisoformat(text or "")
    except ValueError:
        raise ValueError(
            f"AWS's usage report: report_date is {shown(str(text))}; expected a date such as 2026-11-01"
        ) from None


def _days(first: date, last: date) -> list[date]:
    return [first + timedelta(days=number) for number in range((last - first).days + 1)]
