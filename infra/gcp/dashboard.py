"""The dashboard of a cluster in Cloud Monitoring, for the setting `dashboard`.

The dashboard only shows metrics that Google Cloud records anyway. Such metrics and dashboards cost
nothing.
"""

import json
from typing import Any, Final

from pulumi_gcp import monitoring

from infra.gcp.alarms import FIVE_MINUTES
from infra.gcp.scope import Scope
from lambdas.gcp.function_names import FUNCTIONS

_COLUMNS: Final = 48
_WIDTH: Final = 24
_HEIGHT: Final = 16


def make_dashboard(scope: Scope) -> None:
    """Create the dashboard with the functions, the database and the log."""
    monitoring.Dashboard(
        "dashboard",
        project=scope.settings.project,
        dashboard_json=json.dumps(_dashboard(scope)),
        opts=scope.options(),
    )


def _dashboard(scope: Scope) -> dict[str, Any]:
    """Return the dashboard in the form of Google's API."""
    charts = [*_function_charts(scope), *_database_charts(scope), _error_chart(scope)]
    return {
        "displayName": scope.names.cluster,
        "labels": dict.fromkeys(["detcloud"], ""),
        "mosaicLayout": {
            "columns": _COLUMNS,
            "tiles": [_tile(number, chart) for number, chart in enumerate(charts)],
        },
    }


def _tile(number: int, chart: dict[str, Any]) -> dict[str, Any]:
    """Return the tile of a chart: two tiles in a line, in the order of the numbers.

    Google's API has no zeros for the first column and the first line.
    """
    line, column = divmod(number, _COLUMNS // _WIDTH)
    place = {"xPos": column * _WIDTH, "yPos": line * _HEIGHT}
    return {
        **{name: value for name, value in place.items() if value},
        "width": _WIDTH,
        "height": _HEIGHT,
        "widget": chart,
    }


def _function_charts(scope: Scope) -> list[dict[str, Any]]:
    """Return the charts of the functions: requests, failures, latencies and instances."""
    services = " OR ".join(
        f'resource.labels.service_name="{scope.names.part(name)}"' for name in FUNCTIONS
    )
    resource = f'resource.type="cloud_run_revision" AND ({services})'
    requests = f'metric.type="run.googleapis.com/request_count" AND {resource}'
    by_service = ["resource.label.service_name"]
    return [
        _chart("Requests of functions", requests, "ALIGN_DELTA", "REDUCE_SUM", by_service),
        _chart(
            "Failed requests",
            f'{requests} AND metric.labels.response_code_class="5xx"',
            "ALIGN_DELTA",
            "REDUCE_SUM",
            by_service,
        ),
        _chart(
            "Latency of requests (95 %)",
            f'metric.type="run.googleapis.com/request_latencies" AND {resource}',
            "ALIGN_DELTA",
            "REDUCE_PERCENTILE_95",
            by_service,
        ),
        _chart(
            "Instances of functions",
            f'metric.type="run.googleapis.com/container/instance_count" AND {resource}',
            "ALIGN_MAX",
            "REDUCE_SUM",
            by_service,
        ),
    ]


def _database_charts(scope: Scope) -> list[dict[str, Any]]:
    """Return the charts of the database: documents that were read, and documents written."""
    resource = (
        f'resource.type="firestore.googleapis.com/Database" AND '
        f'resource.labels.database_id="{scope.names.database}"'
    )
    shown = {
        "Read documents": "read_ops_count",
        "Written documents": "write_ops_count",
    }
    return [
        _chart(
            title,
            f'metric.type="firestore.googleapis.com/document/{name}" AND {resource}',
            "ALIGN_DELTA",
            "REDUCE_SUM",
            [],
        )
        for title, name in shown.items()
    ]


def _error_chart(scope: Scope) -> dict[str, Any]:
    """Return the chart of the error lines in the logs of functions."""
    services = " OR ".join(
        f'resource.labels.service_name="{scope.names.part(name)}"' for name in FUNCTIONS
    )
    return _chart(
        "Error lines",
        'metric.type="logging.googleapis.com/log_entry_count" AND '
        f'resource.type="cloud_run_revision" AND ({services}) AND metric.labels.severity="ERROR"',
        "ALIGN_DELTA",
        "REDUCE_SUM",
        ["resource.label.service_name"],
    )


def _chart(
    title: str, filter_text: str, aligner: str, reducer: str, fields: list[str]
) -> dict[str, Any]:
    """Return a chart of a metric.

    Args:
        title: the title of the chart.
        filter_text: the filter that selects the metric and the resources.
        aligner: Google's name of the function over five minutes of a series.
        reducer: Google's name of the function over several series.
        fields: the fields by which series are grouped; [] for a single group.
    """
    aggregation = {
        "alignmentPeriod": FIVE_MINUTES,
        "perSeriesAligner": aligner,
        "crossSeriesReducer": reducer,
        **({"groupByFields": fields} if fields else {}),
    }
    query = {"timeSeriesFilter": {"filter": filter_text, "aggregation": aggregation}}
    return {
        "title": title,
        "xyChart": {"dataSets": [{"plotType": "LINE", "timeSeriesQuery": query}]},
    }
