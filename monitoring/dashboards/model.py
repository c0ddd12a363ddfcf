"""Grafana's model of a dashboard: rows of panels, and panels of queries.

Only the fields that these dashboards need are supported. Panels are placed from left to right on Grafana's
grid of 24 columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Literal, NamedTuple

PROMETHEUS_UID = "hyperpod-prometheus"
CLOUDWATCH_UID = "hyperpod-cloudwatch"
COLUMNS = 24
"""Width of Grafana's grid."""
SCHEMA_VERSION = 39
"""Version of the model, which is that of Grafana 10.4. Newer versions of Grafana migrate it."""
RATE = "$__rate_interval"
"""Grafana's interval of a rate: at least four scrapes, and at least the distance of two points."""

Kind = Literal["timeseries", "stat", "bargauge"]
Model = dict[str, Any]
"""Dashboard, or a part of one, in the form of Grafana's JSON."""


class Size(NamedTuple):
    """Size of a panel on Grafana's grid."""

    width: int
    height: int


_SIZES: Mapping[Kind, Size] = {"timeseries": Size(8, 7), "stat": Size(4, 4), "bargauge": Size(8, 7)}
"""Sizes of panels by kind; all panels of a row have the same size."""


@dataclass(frozen=True)
class Query:
    """Query in PromQL."""

    expression: str
    legend: str
    """Template of the legend, such as ``{{instance}}``."""


@dataclass(frozen=True)
class FsxQuery:
    """Query for a metric of a file system on FSx, in the region of the CloudWatch data source."""

    file_system: str
    metric: str
    legend: str
    statistic: Literal["Average", "Sum"] = "Sum"
    per_second: bool = False
    """Whether a sum is divided by the seconds of its period."""


AnyQuery = Query | FsxQuery


@dataclass(frozen=True)
class Panel:
    """One graph or number."""

    title: str
    shows: str | tuple[AnyQuery, ...]
    """One PromQL query, or several queries."""
    legend: str = ""
    """Legend of the PromQL query."""
    unit: str = "short"
    """Grafana's id of a unit. ``percentunit`` is a share of 1; ``bytes`` and ``s`` scale automatically."""
    kind: Kind = "timeseries"
    about: str = ""
    """Meaning of the panel, which the i beside its title shows."""
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    stacked: bool = False
    warn_above: float | None = None
    """Value from which the panel is red."""

    @property
    def queries(self) -> tuple[AnyQuery, ...]:
        """Return the queries of the panel as a tuple."""
        if isinstance(self.shows, str):
            return (Query(self.shows, self.legend),)
        return self.shows


share_panel = partial(Panel, unit="percentunit", maximum=1)
"""Panel of shares of 1."""


@dataclass(frozen=True)
class Variable:
    """Choice above the dashboard among the values of a label; queries refer to it by ``$name``."""

    name: str
    label: str
    """Text beside the choice."""
    metric: str
    """Metric or selector with the label."""
    of_label: str
    """Label with the values."""


def percentiles(
    histogram: str, labels: str, selector: str, *, legend: str, shares: Sequence[float]
) -> tuple[AnyQuery, ...]:
    """Return one query per share for the quantile of a histogram, by labels."""
    buckets = f"sum by ({labels}, le) (rate({histogram}_bucket{{{selector}}}[{RATE}]))"
    return tuple(
        Query(f"histogram_quantile({share}, {buckets})", f"{legend} p{share * 100:.0f}")
        for share in shares
    )


def dashboard(
    *,
    uid: str,
    title: str,
    about: str,
    rows: Mapping[str, Sequence[Panel]],
    variables: Sequence[Variable] = (),
) -> Model:
    """Return the model of a dashboard for Grafana's HTTP API and provisioning.

    Args:
        uid: id by which an existing dashboard is replaced.
        title: title of the dashboard.
        about: description in one sentence.
        rows: panels by the title of their row, from top to bottom.
        variables: choices above the dashboard; at first, all values are chosen.
    """
    panels: list[Model] = []
    top = 0
    for row_title, shown in rows.items():
        panels.append(
            {
                "id": len(panels) + 1,
                "type": "row",
                "title": row_title,
                "collapsed": False,
                "panels": [],
                "gridPos": {"x": 0, "y": top, "w": COLUMNS, "h": 1},
            }
        )
        top += 1
        size = _SIZES[shown[0].kind]
        num_columns = COLUMNS // size.width
        for index, panel in enumerate(shown):
            line, column = divmod(index, num_columns)
            place = {
                "x": column * size.width,
                "y": top + line * size.height,
                "w": size.width,
                "h": size.height,
            }
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        top += ceil(len(shown) / num_columns) * size.height
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["hyperpod"],
        "schemaVersion": SCHEMA_VERSION,
        "editable": False,
        "graphTooltip": 1,  # one crosshair over all panels
        "refresh": "30s",
        "time": {"from": "now-6h", "to": "now"},
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
    steps: list[Model] = [{"color": "green", "value": None}]
    if panel.warn_above is not None:
        steps.append({"color": "red", "value": panel.warn_above})
    defaults: Model = {"unit": panel.unit, "thresholds": {"mode": "absolute", "steps": steps}}
    limits = {"min": panel.minimum, "max": panel.maximum, "decimals": panel.decimals}
    defaults |= {name: value for name, value in limits.items() if value is not None}
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
    }


def _lines(panel: Panel) -> Model:
    """Return the style of a time series."""
    return {
        "drawStyle": "line",
        "lineWidth": 1,
        "fillOpacity": 40 if panel.stacked else 0,  # areas of many lines hide each other
        "showPoints": "auto",
        "spanNulls": False,
        "stacking": {"mode": "normal" if panel.stacked else "none", "group": "A"},
        "thresholdsStyle": {"mode": "off" if panel.warn_above is None else "dashed"},
    }


def _options(kind: Kind) -> Model:
    """Return the options of a kind of panel."""
    if kind == "timeseries":
        return {
            "legend": {
                "displayMode": "list",
                "placement": "bottom",
                "showLegend": True,
                "calcs": [],
            },
            "tooltip": {"mode": "multi", "sort": "desc"},
        }
    last = {"reduceOptions": {"calcs": ["lastNotNull"], "fields": "", "values": False}}
    if kind == "stat":
        return {**last, "colorMode": "value", "graphMode": "area", "textMode": "auto"}
    return {**last, "displayMode": "basic", "orientation": "horizontal", "showUnfilled": True}


def _data_source(query: AnyQuery) -> Model:
    if isinstance(query, Query):
        return {"type": "prometheus", "uid": PROMETHEUS_UID}
    return {"type": "cloudwatch", "uid": CLOUDWATCH_UID}


def _targets(panel: Panel) -> list[Model]:
    """Return the queries of a panel."""
    targets: list[Model] = []
    for number, query in enumerate(panel.queries):
        common: Model = {"refId": chr(ord("A") + number), "datasource": _data_source(query)}
        if isinstance(query, Query):
            over_time = panel.kind == "timeseries"
            targets.append(
                {
                    **common,
                    "expr": query.expression,
                    "legendFormat": query.legend,
                    "instant": not over_time,
                    "range": over_time,
                    "format": "time_series",
                }
            )
        else:
            targets += _cloudwatch_targets(query, common)
    return targets


def _cloudwatch_targets(query: FsxQuery, common: Model) -> list[Model]:
    """Return the query for a metric.

    For a rate, the metric is hidden, and an expression of CloudWatch's metric math is added.
    """
    name = f"m{common['refId'].lower()}"
    common |= {
        "queryMode": "Metrics",
        "metricQueryType": 0,
        "region": "default",
        "label": query.legend,
    }
    metric = {
        **common,
        "id": name,
        "metricEditorMode": 0,
        "namespace": "AWS/FSx",
        "metricName": query.metric,
        "dimensions": {"FileSystemId": query.file_system},
        "matchExact": True,
        "statistic": query.statistic,
        "period": "",
        "expression": "",
    }
    if not query.per_second:
        return [metric]
    rate = {
        **common,
        "refId": f"{common['refId']}Rate",
        "id": f"{name}_rate",
        "metricEditorMode": 1,
        "expression": f"{name}/PERIOD({name})",
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
        "refresh": 2,  # on changes of the time range, because runs end
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }
