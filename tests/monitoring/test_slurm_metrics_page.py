"""The table of docs/slurm-metrics.md has the metrics that alerts and dashboards of Slurm use, no others."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from monitoring.dashboards import dashboards
from monitoring.dashboards.selection import Scheduler
from tests.monitoring import exporters
from tests.monitoring.alert_cases import rules
from tests.monitoring.promql import metric_names
from tests.monitoring.test_dashboards import expressions

PAGE = Path(__file__).parents[2] / "docs/slurm-metrics.md"
HEADER = "| metric | source | alerts | dashboards | extension |"
PROMETHEUS = "Prometheus"
NO_SETTING = "no setting"
UNKNOWN = "names unknown"


class Row(NamedTuple):
    metric: str
    source: str
    alerts: str
    dashboards: str
    extension: str


def emitted_metrics(expression: str, recorded: dict[str, str]) -> set[str]:
    """Return the metrics of an expression, with those of recording rules in place of their names."""
    names: set[str] = set()
    for name in metric_names(expression):
        names |= emitted_metrics(recorded[name], recorded) if name in recorded else {name}
    return names


def alerts_by_metric() -> dict[str, set[str]]:
    """Names of alerts by the metrics they need."""
    recorded = {rule["record"]: rule["expr"] for rule in rules("slurm") if "record" in rule}
    found: dict[str, set[str]] = {}
    for rule in rules("slurm"):
        if "alert" in rule:
            for metric in emitted_metrics(rule["expr"], recorded):
                found.setdefault(metric, set()).add(rule["alert"])
    return found


def dashboards_by_metric() -> dict[str, set[str]]:
    """Titles of dashboards by the metrics they show."""
    titles = {uid: model["title"] for uid, model in dashboards("slurm").items()}
    found: dict[str, set[str]] = {}
    for uid, texts in expressions("slurm").items():
        for metric in {name for text in texts for name in metric_names(text)}:
            found.setdefault(metric, set()).add(titles[uid])
    return found


def rows() -> Iterator[Row]:
    table = PAGE.read_text().partition(HEADER)[2]
    assert table, f"{PAGE.name} has no table with {HEADER}"
    for line in table.splitlines()[2:]:
        if not line.startswith("|"):
            return
        yield Row(*(cell.strip().replace("`", "") for cell in line.strip("|").split("|")))


def listed(names: set[str]) -> str:
    return ", ".join(sorted(names))


def test_the_table_has_every_metric_and_what_uses_it() -> None:
    alerts, shown = alerts_by_metric(), dashboards_by_metric()
    wanted = {
        metric: (listed(alerts.get(metric, set())), listed(shown.get(metric, set())))
        for metric in alerts.keys() | shown.keys()
    }
    assert {row.metric: (row.alerts, row.dashboards) for row in rows()} == wanted


def test_the_page_counts_the_metrics_of_the_trainer() -> None:
    trainer = [row for row in rows() if row.source == "trainer"]
    assert f"{len(trainer)} of the {len([*rows()])} metrics" in " ".join(PAGE.read_text().split())


def test_no_metric_has_two_rows_and_rows_are_sorted() -> None:
    metrics = [row.metric for row in rows()]
    assert metrics == sorted(set(metrics))


def test_the_source_of_each_metric_emits_it(
    emitted: dict[Scheduler, set[str]], tmp_path: Path
) -> None:
    emitted_by = {
        PROMETHEUS: {"up"},
        "node_exporter": exporters.node_exporter_names(),
        "dcgm-exporter": exporters.names_in(exporters.gpus()),
        "EFA collector": exporters.names_in(exporters.efa(tmp_path / "adapters")),
        "Slurm collector": exporters.names_in(exporters.slurm()),
        "trainer": exporters.names_in(exporters.training()),
    }
    for row in rows():
        assert row.metric in emitted_by[row.source], row
        assert row.metric in emitted["slurm"], row


def test_each_metric_names_the_setting_of_its_subject_or_has_none() -> None:
    """The extension's settings have the node, its devices and Slurm as subjects, not our own processes."""
    settings = set(re.findall(r"^\| `(\w+)` \|", PAGE.read_text(), re.MULTILINE))
    for row in rows():
        of_ours = row.source in ("trainer", PROMETHEUS) or re.search(
            "collector|textfile", row.metric
        )
        if of_ours:
            assert row.extension == NO_SETTING, row
        else:
            setting, verdict = row.extension.split(": ")
            assert setting in settings, row
            assert verdict == UNKNOWN, row
