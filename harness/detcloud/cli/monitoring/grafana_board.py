"""The Grafana board of a cluster's metrics, in Grafana's JSON model of boards.

docs/monitoring.md describes the metrics. The board has two variables: the data source, and the
pools.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

UID = "detcloud"
"""The identity of the board: importing a newer board replaces the older board."""
_COLUMNS = 24
_DATA_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_POOL = 'pool=~"$pool"'


@dataclass(frozen=True, slots=True)
class Query:
    """A query of a panel."""

    expression: str
    """The query in PromQL, with the variable `$pool`."""
    legend: str = ""
    """The name of each series, with labels in double braces."""
    reason_if_empty: str = ""
    """Why a cluster may have no such series, or "" if each cluster has some."""


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the board."""

    title: str
    kind: Literal["stat", "timeseries", "table"]
    queries: tuple[Query, ...]
    unit: str = "short"
    """Grafana's name of the unit."""
    is_stacked: bool = False
    """Whether the series of a chart are stacked."""


def _sum(metric: str, by: str, selector: str = _POOL) -> str:
    """Return the query for the sum of a metric by a label."""
    return f"sum by ({by}) ({metric}{{{selector}}})"


_INSTANCES = "a pool without instances has no series"
_GPUS = "only trials with `profiling: {enabled: true}` report the use of GPUs"

PANELS: tuple[Panel, ...] = (
    Panel(
        "Running allocations",
        "stat",
        (Query(f'sum(detcloud_allocations{{{_POOL},state="running"}})'),),
    ),
    Panel(
        "Queued allocations",
        "stat",
        (Query(f'sum(detcloud_allocations{{{_POOL},state="queued"}})'),),
    ),
    Panel("Oldest wait", "stat", (Query(f"max(detcloud_oldest_wait_seconds{{{_POOL}}})"),), "s"),
    Panel(
        "Spending per hour",
        "stat",
        (Query(f"sum(detcloud_spending_dollars_per_hour{{{_POOL}}})"),),
        "currencyUSD",
    ),
    Panel(
        "Cost today",
        "stat",
        (Query(f"sum(detcloud_cost_today_dollars{{{_POOL}}})"),),
        "currencyUSD",
    ),
    Panel("Raised alarms", "stat", (Query("sum(detcloud_alarm_raised)"),)),
    Panel(
        "Slots",
        "timeseries",
        (Query(_sum("detcloud_slots", "state"), "{{state}}"),),
        is_stacked=True,
    ),
    Panel(
        "Allocations",
        "timeseries",
        (Query(_sum("detcloud_allocations", "state"), "{{state}}"),),
        is_stacked=True,
    ),
    Panel(
        "Experiments that have not ended",
        "timeseries",
        (
            Query(
                _sum("detcloud_experiments", "state"),
                "{{state}}",
                "a cluster without such experiments has no series",
            ),
        ),
        is_stacked=True,
    ),
    Panel(
        "Trials of these experiments",
        "timeseries",
        (
            Query(
                _sum("detcloud_trials", "state"),
                "{{state}}",
                "a cluster without such experiments has no series",
            ),
        ),
        is_stacked=True,
    ),
    Panel(
        "Oldest wait by pool",
        "timeseries",
        (Query(_sum("detcloud_oldest_wait_seconds", "pool"), "{{pool}}"),),
        "s",
    ),
    Panel(
        "Started allocations per minute",
        "timeseries",
        (
            Query(
                f"60 * sum by (pool) (rate(detcloud_allocations_started_total{{{_POOL}}}[5m]))",
                "{{pool}}",
            ),
        ),
    ),
    Panel(
        "Submissions in an hour",
        "timeseries",
        (Query("increase(detcloud_experiments_submitted_total[1h])", "submitted"),),
    ),
    Panel(
        "Ends of the newest experiments",
        "timeseries",
        (Query("sum by (state) (detcloud_recent_experiments)", "{{state}}"),),
        is_stacked=True,
    ),
    Panel(
        "Agents",
        "timeseries",
        (Query(_sum("detcloud_agents", "state"), "{{state}}"),),
        is_stacked=True,
    ),
    Panel(
        "Instances",
        "timeseries",
        (
            Query(
                _sum("detcloud_instances", "market, state"),
                "{{market}} {{state}}",
                _INSTANCES,
            ),
        ),
        is_stacked=True,
    ),
    Panel(
        "Spending per hour by pool",
        "timeseries",
        (Query(_sum("detcloud_spending_dollars_per_hour", "pool"), "{{pool}}"),),
        "currencyUSD",
        is_stacked=True,
    ),
    Panel(
        "Cost of the month and budget",
        "timeseries",
        (
            Query(_sum("detcloud_cost_month_dollars", "pool"), "{{pool}}"),
            Query(
                _sum("detcloud_budget_dollars", "pool"),
                "budget of {{pool}}",
                "only a pool with a `budget` has a series",
            ),
        ),
        "currencyUSD",
    ),
    Panel(
        "GPU utilization",
        "timeseries",
        (Query(f"detcloud_gpu_utilization_ratio{{{_POOL}}}", "{{pool}}", _GPUS),),
        "percentunit",
    ),
    Panel(
        "Free GPU memory",
        "timeseries",
        (Query(f"detcloud_gpu_free_memory_bytes{{{_POOL}}}", "{{pool}}", _GPUS),),
        "bytes",
    ),
    Panel(
        "Measured GPUs",
        "timeseries",
        (Query(_sum("detcloud_measured_gpus", "pool"), "{{pool}}", _GPUS),),
    ),
    Panel(
        "Trials with low use of their slots",
        "timeseries",
        (
            Query(
                _sum("detcloud_low_use_trials", "pool"),
                "{{pool}}",
                "a pool without running trials has no series",
            ),
        ),
        is_stacked=True,
    ),
    Panel(
        "Time since the last pass of the provisioner",
        "timeseries",
        (Query(f"detcloud_provisioner_pass_age_seconds{{{_POOL}}}", "{{pool}}", _INSTANCES),),
        "s",
    ),
    Panel(
        "States of pools",
        "table",
        (Query(f"detcloud_pool_state{{{_POOL}}} == 1", "{{pool}} {{state}}"),),
    ),
    Panel(
        "Alarms",
        "table",
        (Query("detcloud_alarm_raised == 1", "{{alarm}} {{pool}}", "no alarm is raised"),),
    ),
    Panel("Versions", "table", (Query("detcloud_info", "{{cluster}} {{version}}"),)),
    Panel("Left out by limits", "stat", (Query("sum by (kind) (detcloud_left_out)", "{{kind}}"),)),
    Panel(
        "Slots that queued allocations need",
        "timeseries",
        (Query(_sum("detcloud_queued_slots", "pool"), "{{pool}}"),),
        is_stacked=True,
    ),
)
"""The panels in the order of the board."""

_SIZES = {"stat": (4, 4), "timeseries": (12, 8), "table": (8, 6)}
"""The width in columns and the height in rows of each kind of panel."""


def build_board() -> dict[str, Any]:
    """Return the board in Grafana's JSON model."""
    return {
        "uid": UID,
        "title": "detcloud",
        "tags": ["detcloud"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "1m",
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": [_data_source_variable(), _pool_variable()]},
        "panels": list(_place_panels(PANELS)),
    }


def _data_source_variable() -> dict[str, Any]:
    """Return the variable for the choice of the Prometheus server."""
    return {
        "name": "datasource",
        "label": "Data source",
        "type": "datasource",
        "query": "prometheus",
        "refresh": 1,
    }


def _pool_variable() -> dict[str, Any]:
    """Return the variable for the choice of pools. The default is all pools."""
    query = "label_values(detcloud_slots, pool)"
    return {
        "name": "pool",
        "label": "Pool",
        "type": "query",
        "datasource": _DATA_SOURCE,
        "query": {"query": query, "refId": "pools"},
        "definition": query,
        "refresh": 2,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def _place_panels(panels: Iterable[Panel]) -> Iterator[dict[str, Any]]:
    """Yield the panels in Grafana's model, from left to right in lines.

    A panel begins a new line if the line is full, or if its height differs from the line's height.
    """
    x = y = line_height = 0
    for number, panel in enumerate(panels, 1):
        width, height = _SIZES[panel.kind]
        if x + width > _COLUMNS or (x and height != line_height):
            x, y = 0, y + line_height
        line_height = height
        place = {"x": x, "y": y, "w": width, "h": height}
        yield _render_panel(number, panel, place)
        x += width


def _render_panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    """Return a panel in Grafana's model."""
    stacking = {"mode": "normal" if panel.is_stacked else "none"}
    custom = {"stacking": stacking, "fillOpacity": 30 if panel.is_stacked else 0}
    defaults: dict[str, Any] = {"unit": panel.unit, "min": 0}
    if panel.kind == "timeseries":
        defaults["custom"] = custom
    is_instant = panel.kind != "timeseries"
    return {
        "id": number,
        "title": panel.title,
        "type": panel.kind,
        "datasource": _DATA_SOURCE,
        "gridPos": place,
        "fieldConfig": {"defaults": defaults, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATA_SOURCE,
                "expr": query.expression,
                "legendFormat": query.legend or "__auto",
                "instant": is_instant,
                "range": not is_instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, query in enumerate(panel.queries)
        ],
    }
