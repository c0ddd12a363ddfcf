"""Dashboards as Grafana takes them: rows of panels, panels of queries.

Only what all dashboards here need of Grafana's model (``schemaVersion`` 39, of Grafana 10.4, which newer ones
migrate as they load it). Panels are laid out from left to right on Grafana's grid of 24 columns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any, Literal

PROMETHEUS_UID = "hyperpod-prometheus"
CLOUDWATCH_UID = "hyperpod-cloudwatch"
COLUMNS = 24
RATE = "$__rate_interval"
"""Grafana's interval: at least four scrapes, and at least the distance of two points of the graph."""

Kind = Literal["timeseries", "stat", "bargauge"]
Model = dict[str, Any]

_SIZES: Mapping[Kind, tuple[int, int]] = {"timeseries": (8, 7), "stat": (4, 4), "bargauge": (8, 7)}
"""Width and height of a panel; all of a row have the same."""


@dataclass(frozen=True)
class Query:
    """PromQL."""

    expression: str
    legend: str
    """Such as ``{{instance}}``."""


@dataclass(frozen=True)
class FsxQuery:
    """A metric of a file system on FSx, which CloudWatch has in the region of its data source."""

    file_system: str
    metric: str
    legend: str
    statistic: Literal["Average", "Sum"] = "Sum"
    per_second: bool = False
    """For a sum: CloudWatch's count within a period, divided by its seconds."""


AnyQuery = Query | FsxQuery


@dataclass(frozen=True)
class Panel:
    """One graph or number."""

    title: str
    shows: str | tuple[AnyQuery, ...]
    """PromQL, or several queries beside each other."""
    legend: str = ""
    """Legend of the PromQL query."""
    unit: str = "short"
    """Grafana's id of a unit: ``percentunit`` is a share of 1, ``bytes`` and ``s`` scale by themselves."""
    kind: Kind = "timeseries"
    about: str = ""
    """Meaning of the panel; shown behind the i of its title."""
    minimum: float | None = 0
    maximum: float | None = None
    decimals: int | None = None
    stacked: bool = False
    warn_above: float | None = None

    @property
    def queries(self) -> tuple[AnyQuery, ...]:
        """Return the queries of the panel as a tuple."""
        return (Query(self.shows, self.legend),) if isinstance(self.shows, str) else self.shows


share_panel = partial(Panel, unit="percentunit", maximum=1)
"""A panel of shares of 1."""


@dataclass(frozen=True)
class Variable:
    """A choice above the dashboard, of the values that a label has; ``$name`` stands for it in queries."""

    name: str
    label: str
    metric: str
    """Or any selector."""
    of_label: str


def percentiles(
    histogram: str, labels: str, selector: str, *, legend: str, shares: Sequence[float]
) -> tuple[AnyQuery, ...]:
    """Queries for the shares' quantiles of a histogram, by labels."""
    buckets = f"sum by ({labels}, le) (rate({histogram}_bucket{{{selector}}}[{RATE}]))"
    return tuple(
        Query(f"histogram_quantile({share}, {buckets})", f"{legend} p{share * 100:.0f}") for share in shares
    )


def dashboard(
    *,
    uid: str,
    title: str,
    about: str,
    rows: Mapping[str, Sequence[Panel]],
    variables: Sequence[Variable] = (),
) -> Model:
    """The model that Grafana's HTTP API and its provisioning take.

    Args:
        uid: by which a dashboard is found again and replaced.
        title: its name.
        about: one sentence.
        rows: panels by the title of their row, from top to bottom.
        variables: each with all values chosen at first.
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
        width, height = _SIZES[shown[0].kind]
        num_columns = COLUMNS // width
        for index, panel in enumerate(shown):
            line, column = divmod(index, num_columns)
            place = {"x": column * width, "y": top + line * height, "w": width, "h": height}
            panels.append({"id": len(panels) + 1, "gridPos": place, **_panel(panel)})
        top += ceil(len(shown) / num_columns) * height
    return {
        "uid": uid,
        "title": title,
        "description": about,
        "tags": ["hyperpod"],
        "schemaVersion": 39,
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
    }


def _lines(panel: Panel) -> Model:
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
    if kind == "timeseries":
        return {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
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
    """The metric; for a rate hidden, with an expression of CloudWatch's metric math beside it."""
    name = f"m{common['refId'].lower()}"
    common |= {"queryMode": "Metrics", "metricQueryType": 0, "region": "default", "label": query.legend}
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
        "refresh": 2,  # as the time range changes: runs end
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "options": [],
    }
