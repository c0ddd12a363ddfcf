"""Dashboards as Grafana takes them: rows of panels, panels of queries.

Only what all dashboards here need of Grafana's model (``schemaVersion`` 39, of Grafana 10.4, which newer ones
migrate as they load it). Panels are laid out from left to right on Grafana's grid of 24 columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

PROMETHEUS_UID = "hyperpod-prometheus"
CLOUDWATCH_UID = "hyperpod-cloudwatch"
COLUMNS = 24
RATE = "$__rate_interval"
"""Grafana's: at least four scrapes, and no less than lies between two points of the graph."""
_SCHEMA_VERSION = 39
_STEADY_COLOUR = "green"

Kind = Literal["timeseries", "stat", "bargauge", "table"]
Model = dict[str, Any]


@dataclass(frozen=True)
class Query:
    """PromQL."""

    expression: str
    legend: str = ""
    """Such as ``{{instance}}``; empty for the name and all labels."""


@dataclass(frozen=True)
class CloudWatchQuery:
    """A metric of CloudWatch, in the region of its data source."""

    namespace: str
    metric: str
    dimensions: tuple[tuple[str, str], ...]
    statistic: Literal["Average", "Minimum", "Maximum", "Sum"]
    legend: str
    per_second: bool = False
    """Of a sum: what CloudWatch counts within a period, divided by its seconds."""


AnyQuery = Query | CloudWatchQuery


@dataclass(frozen=True)
class Panel:
    """One graph, number or table."""

    title: str
    shows: AnyQuery | tuple[AnyQuery, ...]
    """One query, or several beside each other."""
    unit: str = "short"
    """Grafana's id of a unit: ``percentunit`` is a share of 1, ``bytes`` and ``s`` scale by themselves."""
    kind: Kind = "timeseries"
    about: str = ""
    """What it means, and what to look for; behind the i of its title."""
    width: int = 8
    height: int = 7
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    stacked: bool = False
    warn_above: float | None = None
    warn_below: float | None = None

    @property
    def queries(self) -> tuple[AnyQuery, ...]:
        """What it shows, also if that is one query."""
        return self.shows if isinstance(self.shows, tuple) else (self.shows,)


@dataclass(frozen=True)
class Row:
    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard, of the values that a label has; ``$name`` stands for it in queries."""

    name: str
    label: str
    metric: str
    """Or any selector."""
    of_label: str


def dashboard(
    *,
    uid: str,
    title: str,
    about: str,
    rows: Sequence[Row],
    variables: Sequence[Variable] = (),
    hours: int = 6,
) -> Model:
    """The model that Grafana's HTTP API and its provisioning take.

    Args:
        uid: by which a dashboard is found again and replaced.
        title: its name.
        about: one sentence.
        rows: from top to bottom.
        variables: each with all values chosen at first.
        hours: how far back it shows.
    """
    panels: list[Model] = []
    top = 0
    for row in rows:
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row.title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            }
        )
        left, top, height = 0, top + 1, 0
        for panel in row.panels:
            if left + panel.width > COLUMNS:
                left, top, height = 0, top + height, 0
            place = {"x": left, "y": top, "w": panel.width, "h": panel.height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
            left, height = left + panel.width, max(height, panel.height)
        top += height
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["hyperpod"],
        "schemaVersion": _SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,  # one crosshair over all panels
        "refresh": "30s",
        "time": {"from": f"now-{hours}h", "to": "now"},
        "timezone": "browser",
        "links": [
            {
                "type": "dashboards",
                "title": "HyperPod",
                "tags": ["hyperpod"],
                "asDropdown": True,
                "keepTime": True,
            }
        ],
        "templating": {"list": [_variable(variable) for variable in variables]},
        "annotations": {"list": []},
        "panels": panels,
    }


def _panel(panel: Panel) -> Model:
    defaults: Model = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": _steps(panel)}}
    for name, value in (("min", panel.minimum), ("max", panel.maximum), ("decimals", panel.decimals)):
        if value is not None:
            defaults[name] = value
    if panel.kind == "timeseries":
        defaults["custom"] = _lines(panel)
    return {
        "type": panel.kind,
        "title": panel.title,
        "description": panel.about,
        "datasource": _data_source(panel.queries[0]),
        "targets": _targets(panel),
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "options": _options(panel.kind),
        **({"transformations": _COLUMNS_OF_TABLES} if panel.kind == "table" else {}),
    }


def _steps(panel: Panel) -> list[Model]:
    if panel.warn_above is not None:
        bound, below, above = panel.warn_above, _STEADY_COLOUR, "red"
    elif panel.warn_below is not None:
        bound, below, above = panel.warn_below, "red", _STEADY_COLOUR
    else:
        return [{"color": _STEADY_COLOUR, "value": None}]
    return [{"color": below, "value": None}, {"color": above, "value": bound}]


def _lines(panel: Panel) -> Model:
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,  # areas of many lines hide each other
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {
            "mode": "off" if panel.warn_above is None and panel.warn_below is None else "dashed"
        },
    }


def _options(kind: Kind) -> Model:
    last = {"calcs": ["lastNotNull"], "fields": "", "values": False}
    if kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    if kind == "stat":
        return {"reduceOptions": last, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    if kind == "bargauge":
        return {
            "reduceOptions": last,
            "displayMode": "basic",
            "orientation": "horizontal",
            "showUnfilled": True,
        }
    return {"showHeader": True, "cellHeight": "sm"}


_COLUMNS_OF_TABLES = [
    {"id": "labelsToFields", "options": {"mode": "columns"}},
    {"id": "merge", "options": {}},
    {"id": "organize", "options": {"excludeByName": {"Time": True}}},
]


def _data_source(query: AnyQuery) -> Model:
    if isinstance(query, Query):
        return {"type": "prometheus", "uid": PROMETHEUS_UID}
    return {"type": "cloudwatch", "uid": CLOUDWATCH_UID}


def _targets(panel: Panel) -> list[Model]:
    targets: list[Model] = []
    for number, query in enumerate(panel.queries):
        letter = chr(ord("A") + number)
        common: Model = {"refId": letter, "datasource": _data_source(query)}
        if isinstance(query, Query):
            over_time = panel.kind == "timeseries"
            targets.append(
                {
                    **common,
                    "expr": query.expression,
                    "legendFormat": query.legend or "__auto",
                    "instant": not over_time,
                    "range": over_time,
                    "format": "table" if panel.kind == "table" else "time_series",
                }
            )
        else:
            targets += _cloudwatch_targets(query, common)
    return targets


def _cloudwatch_targets(query: CloudWatchQuery, common: Model) -> list[Model]:
    """The metric; for a rate hidden, with an expression of CloudWatch's metric math beside it."""
    name = f"m{common['refId'].lower()}"
    metric = {
        **common,
        "id": name,
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "metricEditorMode": 0,
        "region": "default",
        "namespace": query.namespace,
        "metricName": query.metric,
        "dimensions": dict(query.dimensions),
        "matchExact": True,
        "statistic": query.statistic,
        "period": "",
        "expression": "",
        "label": query.legend,
    }
    if not query.per_second:
        return [metric]
    rate = {
        **common,
        "refId": f"{common['refId']}Rate",
        "id": f"{name}_rate",
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "metricEditorMode": 1,
        "region": "default",
        "expression": f"{name}/PERIOD({name})",
        "label": query.legend,
    }
    return [{**metric, "hide": True}, rate]


def _variable(variable: Variable) -> Model:
    query = f"label_values({variable.metric}, {variable.of_label})"
    return {
        "type": "query",
        "name": variable.name,
        "label": variable.label,
        "datasource": {"type": "prometheus", "uid": PROMETHEUS_UID},
        "definition": query,
        "query": {"query": query, "refId": variable.name},
        "refresh": 2,  # as the time range changes: runs end
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }
