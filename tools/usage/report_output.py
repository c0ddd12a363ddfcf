"""Forms of AWS's usage report: text, JSON and CSV."""

import csv
import io
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any

from config.facts.instance_catalogue import instance_type
from config.facts.price_list import PriceList
from tools.command_line import format_table
from tools.usage.aws_report import (
    KINDS,
    RESOURCES,
    Hours,
    TaskUse,
    TeamDay,
    TeamUse,
    UsageReport,
)
from tools.usage.output import MOST_ROWS, NOTHING, printable, without_formula

MEGABYTE = 1_000_000
NUM_NAMED = 10
"""Most days that a note names."""
HOUR_COLUMNS = tuple(
    f"{name}_hours" if kind == "total" else f"{name}_hours_{kind}"
    for name in RESOURCES
    for kind in KINDS
)
"""Names of the hours of a team."""
CSV_COLUMNS = ("day", "namespace", "team", "instance_type", *HOUR_COLUMNS, "usd")


@dataclass(frozen=True)
class PricedTeam:
    """Use by a namespace of one instance type in the whole period."""

    use: TeamUse
    usd: float | None
    """USD of the shares of nodes, on demand; None without a known price."""


def priced_teams(report: UsageReport, prices: PriceList) -> list[PricedTeam]:
    """Return the sums over all days by namespace, team and instance type, the most hours first."""
    groups: dict[tuple[str, str, str], list[TeamUse]] = defaultdict(list)
    for day in report.days:
        groups[day.use.namespace, day.use.team, day.use.instance_type].append(day.use)
    found = []
    for key, uses in groups.items():
        hours = {name: _sum([use.hours[name] for use in uses]) for name in RESOURCES}
        amounts = [_usd(use, prices) for use in uses]
        known = [amount for amount in amounts if amount is not None]
        usd = sum(known) if len(known) == len(amounts) else None
        found.append(PricedTeam(TeamUse(*key, hours), usd))
    return sorted(found, key=_most_hours)


def report_text(title: str, report: UsageReport, prices: PriceList, notes: Sequence[str]) -> str:
    """Return the report as text with less than 100 lines."""
    teams = priced_teams(report, prices)
    team_header = [
        *("namespace", "team", "instance type", "GPU hours", "allocated", "borrowed"),
        *("NeuronCore hours", "vCPU hours", "USD"),
    ]
    task_header = [
        "task",
        "namespace",
        "instance type",
        "GPU hours",
        "NeuronCore hours",
        "vCPU hours",
    ]
    parts = [title]
    for header, rows in (
        (team_header, [_team_row(team) for team in teams]),
        (task_header, [_task_row(task) for task in sorted(report.tasks, key=_most_task_hours)]),
    ):
        if rows:
            parts.append(format_table(header, rows[:MOST_ROWS]))
        if len(rows) > MOST_ROWS:
            parts.append(f"and {len(rows) - MOST_ROWS} more (--json)")
    return "\n\n".join([*parts, "\n".join(notes)])


def report_json(report: UsageReport, prices: PriceList) -> dict[str, Any]:
    """Return the report as values of JSON; ``tools/json_forms.py`` describes them."""
    return {
        "teams": [
            {
                "namespace": team.use.namespace,
                "team": team.use.team,
                "instance_type": team.use.instance_type,
                **_hour_fields(team.use),
                "usd": None if team.usd is None else round(team.usd, 6),
            }
            for team in priced_teams(report, prices)
        ],
        "tasks": [
            {
                "task": task.task,
                "namespace": task.namespace,
                "team": task.team,
                "instance_type": task.instance_type,
                "states": task.statuses,
                "priority_class": task.priority_class,
                "first_start": task.first_start,
                "last_end": task.last_end,
                **{f"{name}_hours": round(hours, 6) for name, hours in task.hours.items()},
            }
            for task in report.tasks
        ],
        "missing_days": [str(day) for day in report.missing_days],
        "scanned_bytes": report.scanned_bytes,
    }


def report_csv(report: UsageReport, prices: PriceList) -> str:
    """Return a table with a row for each day, namespace, team and instance type."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for day in sorted(report.days, key=_order):
        usd = _usd(day.use, prices)
        writer.writerow(
            {
                "day": day.day,
                "namespace": without_formula(day.use.namespace),
                "team": without_formula(day.use.team),
                "instance_type": without_formula(day.use.instance_type),
                **_hour_fields(day.use),
                "usd": "" if usd is None else round(usd, 6),
            }
        )
    return text.getvalue()


def report_notes(report: UsageReport, prices: PriceList) -> Iterator[str]:
    """Yield what the reader has to know about the figures."""
    yield (
        f"From AWS's usage report, database {report.place.database}: Athena read "
        f"{report.scanned_bytes / MEGABYTE:,.1f} MB in two queries, and bills by bytes (at least 10 MB each)."
    )
    yield (
        "Hours of teams continue over midnight. Hours of tasks are lower bounds: the report counts "
        "between the changes of state that it saw on one day. Users are not recorded."
    )
    yield (
        "USD: the larger share of a node's GPUs or processors, at the on-demand price. The report has no "
        "idle share."
    )
    if missing := report.missing_days:
        more = len(missing) - NUM_NAMED
        named = ", ".join(map(str, missing[:NUM_NAMED])) + (f" and {more} more" if more > 0 else "")
        yield f"Without any hours: {named}. Nothing ran there, or the report was not written."
    lacking = sorted(
        {day.use.instance_type or NOTHING for day in report.days if _usd(day.use, prices) is None}
    )
    if lacking:
        yield (
            f"Without USD: {printable(', '.join(lacking))}. The price is not known, or the type has "
            "NeuronCores, whose number in a node depends on its settings."
        )


def _usd(use: TeamUse, prices: PriceList) -> float | None:
    """Return the USD of the larger share of the nodes' GPUs or processors; None if it is not known."""
    price = prices.get(f"hyperpod.{use.instance_type}")
    if price is None:
        return None
    hardware = instance_type(use.instance_type)
    if hardware.is_neuron:
        return None
    node_hours = use.hours["vcpu"].total / hardware.vcpus
    if hardware.num_gpus:
        node_hours = max(node_hours, use.hours["gpu"].total / hardware.num_gpus)
    return node_hours * price.usd


def _sum(hours: Sequence[Hours]) -> Hours:
    return Hours(
        **{kind.name: sum(getattr(one, kind.name) for one in hours) for kind in fields(Hours)}
    )


def _hour_fields(use: TeamUse) -> dict[str, float]:
    values = [getattr(use.hours[name], kind) for name in RESOURCES for kind in KINDS]
    return {column: round(value, 6) for column, value in zip(HOUR_COLUMNS, values, strict=True)}


def _most_hours(team: PricedTeam) -> tuple[float, float, float, str, str]:
    hours = team.use.hours
    return (
        -hours["gpu"].total,
        -hours["neuron_core"].total,
        -hours["vcpu"].total,
        team.use.namespace,
        team.use.instance_type,
    )


def _most_task_hours(task: TaskUse) -> tuple[float, float, float, str]:
    hours = task.hours
    return -hours["gpu"], -hours["neuron_core"], -hours["vcpu"], task.task


def _order(day: TeamDay) -> tuple[str, str, str, str]:
    return str(day.day), day.use.namespace, day.use.team, day.use.instance_type


def _team_row(team: PricedTeam) -> list[str]:
    use = team.use
    gpu = use.hours["gpu"]
    return [
        *(printable(text or NOTHING) for text in (use.namespace, use.team, use.instance_type)),
        f"{gpu.total:,.2f}",
        f"{gpu.allocated:,.2f}",
        f"{gpu.borrowed:,.2f}",
        f"{use.hours['neuron_core'].total:,.2f}",
        f"{use.hours['vcpu'].total:,.2f}",
        "not known" if team.usd is None else f"{team.usd:,.2f}",
    ]


def _task_row(task: TaskUse) -> list[str]:
    return [
        *(printable(text or NOTHING) for text in (task.task, task.namespace, task.instance_type)),
        *(f"{task.hours[name]:,.2f}" for name in RESOURCES),
    ]
