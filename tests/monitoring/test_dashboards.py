"""Dashboards ask for what there is, under the names and in the form that Grafana takes."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, get_args

import pytest

from monitoring.dashboards import CLOUDWATCH_UID, HOME_MARK, LUSTRE_MARK, PROMETHEUS_UID, dashboards
from monitoring.dashboards.selection import Scheduler
from tests.monitoring import exporters
from tests.monitoring.promql import metric_names

SCHEDULERS: tuple[Scheduler, ...] = get_args(Scheduler)
FSX_METRICS = {
    # https://docs.aws.amazon.com/fsx/latest/LustreGuide/fs-metrics.html, with its dimension FileSystemId
    LUSTRE_MARK: {
        *("DataReadBytes", "DataWriteBytes", "DataReadOperations", "DataWriteOperations"),
        *("MetadataOperations", "FreeDataStorageCapacity"),
    },
    # https://docs.aws.amazon.com/fsx/latest/OpenZFSGuide/fsx-openzfs-metrics.html
    HOME_MARK: {
        *("DataReadBytes", "DataWriteBytes", "StorageCapacity", "UsedStorageCapacity"),
        *("NetworkThroughputUtilization", "FileServerDiskThroughputUtilization", "CPUUtilization"),
    },
}


def panels(scheduler: Scheduler) -> Iterator[tuple[str, dict[str, Any]]]:
    """With the uid of its dashboard; without rows."""
    for uid, model in dashboards(scheduler).items():
        yield from ((uid, panel) for panel in model["panels"] if panel["type"] != "row")


def expressions(scheduler: Scheduler) -> dict[str, list[str]]:
    """PromQL by dashboard, that of its variables included."""
    found: dict[str, list[str]] = {}
    for uid, panel in panels(scheduler):
        found.setdefault(uid, []).extend(
            target["expr"] for target in panel["targets"] if "expr" in target
        )
    for uid, model in dashboards(scheduler).items():
        for variable in model["templating"]["list"]:
            found[uid].append(re.sub(r"label_values\((.*), \w+\)", r"\1", variable["definition"]))
    return found


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_every_metric_asked_for_is_emitted(
    scheduler: Scheduler, emitted: dict[Scheduler, set[str]]
) -> None:
    for uid, found in expressions(scheduler).items():
        for expression in found:
            names = metric_names(expression)
            assert names and names <= emitted[scheduler], (
                f"{uid}: {names - emitted[scheduler]} in {expression}"
            )


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_all_that_a_training_tells_is_shown(scheduler: Scheduler) -> None:
    asked = {
        name
        for found in expressions(scheduler).values()
        for text in found
        for name in metric_names(text)
    }
    told = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in exporters.names_in(exporters.training())
    }
    shown = {re.sub(r"_(bucket|sum|count)$", "", name) for name in asked}
    # How many processes there are, the times at which counters began, what others are made of, and what an
    # alert asks for.
    left = {name for name in told - shown if not name.endswith("_created")}
    names = ("processes", "epoch", "run_seconds", "pass_seconds", "slow_process_ratio")
    assert left == {f"esm2_training_{name}" for name in names}


def test_the_document_names_all_that_a_training_tells() -> None:
    text = (Path(__file__).parents[2] / "docs/dashboards.md").read_text()
    table = re.findall(r"^\| (`.*?) \|", text.partition("`esm2_training_...`")[2], re.MULTILINE)
    named = {f"esm2_training_{name}" for row in table for name in re.findall(r"`(\w+)`", row)}
    told = {
        re.sub(r"_(bucket|sum|count)$", "", name)
        for name in exporters.names_in(exporters.training())
    }
    assert named == {name for name in told if not name.endswith("_created")}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_cloudwatch_panels_use_metrics_that_fsx_publishes(scheduler: Scheduler) -> None:
    metrics = [
        target
        for _, panel in panels(scheduler)
        for target in panel["targets"]
        if "metricName" in target
    ]
    assert metrics
    for target in metrics:
        assert target["namespace"] == "AWS/FSx" and target["region"] == "default"
        assert target["metricName"] in FSX_METRICS[target["dimensions"]["FileSystemId"]]


def test_rates_of_cloudwatch_are_of_the_metric_beside_them() -> None:
    for _, panel in panels("slurm"):
        ids = {target.get("id") for target in panel["targets"]}
        for target in panel["targets"]:
            if target.get("expression"):
                assert re.fullmatch(r"(m\w)/PERIOD\(\1\)", target["expression"])
                assert target["expression"].split("/")[0] in ids


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_models_are_what_grafana_takes(scheduler: Scheduler) -> None:
    for uid, model in dashboards(scheduler).items():
        # Grafana's bound of a uid; ids of the installation are not ours to give.
        assert model["uid"] == uid and len(uid) <= 40 and "id" not in model
        assert json.loads(json.dumps(model, allow_nan=False)) == model
        ids = [panel["id"] for panel in model["panels"]]
        assert ids == list(range(1, len(ids) + 1))
        for panel in model["panels"]:
            place = panel["gridPos"]
            assert place["x"] >= 0 and place["x"] + place["w"] <= 24 and place["h"] > 0
        for one, other in combinations((panel["gridPos"] for panel in model["panels"]), 2):
            apart = (
                one["x"] + one["w"] <= other["x"]
                or other["x"] + other["w"] <= one["x"]
                or one["y"] + one["h"] <= other["y"]
                or other["y"] + other["h"] <= one["y"]
            )
            assert apart, (uid, one, other)
    for uid, panel in panels(scheduler):
        references = [target["refId"] for target in panel["targets"]]
        assert len(set(references)) == len(references), (uid, panel["title"])
        sources = {target["datasource"]["uid"] for target in panel["targets"]}
        assert sources == {panel["datasource"]["uid"]} <= {PROMETHEUS_UID, CLOUDWATCH_UID}


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_variables_in_queries_are_the_dashboards_own(scheduler: Scheduler) -> None:
    for uid, model in dashboards(scheduler).items():
        known = {variable["name"] for variable in model["templating"]["list"]}
        used = {
            name
            for text in expressions(scheduler)[uid]
            for name in re.findall(r"\$(?!__)\w+", text)
        }
        assert {name.removeprefix("$") for name in used} == known


@pytest.mark.parametrize("scheduler", SCHEDULERS)
def test_marks_are_on_the_dashboard_of_file_systems_alone(scheduler: Scheduler) -> None:
    found = {
        uid: set(re.findall(r"@\w+@", json.dumps(model)))
        for uid, model in dashboards(scheduler).items()
    }
    expected = {LUSTRE_MARK, HOME_MARK} if scheduler == "slurm" else {LUSTRE_MARK}
    assert found.pop("hyperpod-file-systems") == expected
    assert not any(found.values())


@pytest.mark.parametrize(
    ("expression", "names"),
    [
        (
            'sum by (a, le) (rate(b_total{c=~"$d", e="f(g)"}[$__rate_interval])) / 3.6e+09',
            {"b_total"},
        ),
        ("count(up == 0) or vector(0)", {"up"}),
        (
            "avg_over_time(x[5m] offset 1h) and on (y) hyperpod:z:sum > bool 0",
            {"x", "hyperpod:z:sum"},
        ),
    ],
)
def test_names_are_found_in_promql(expression: str, names: set[str]) -> None:
    assert metric_names(expression) == names
