"""The CloudWatch dashboard of a cluster, for the setting `dashboard`.

The dashboard only shows metrics that AWS records anyway and the metric of error lines, so that no
metric is added. An account has three dashboards for free; each further dashboard costs 3 $ a month.
"""

from typing import Any

import pulumi
import pulumi_aws as aws

from infra.aws.alarms import FIVE_MINUTES
from infra.aws.names import FUNCTIONS
from infra.aws.scope import Scope
from infra.aws.verification import ALARMS

_WIDTH = 12
_HEIGHT = 6

Metric = list[Any]
"""A metric of a widget: namespace, name, names and values of dimensions, and options."""


def make_dashboard(scope: Scope, table: Any, api: Any, dead_letters: Any) -> None:
    """Create the dashboard with the functions, the API, the table, the errors and the alarms.

    Args:
        scope: the context of the stack's resources.
        table: the state table.
        api: the API of the gateway.
        dead_letters: the queue of the events that functions failed to process.
    """
    widgets = [
        _alarm_widget(scope),
        *_function_widgets(scope),
        *_api_widgets(scope, api.id),
        *_table_widgets(scope, table.name),
        _failure_widget(scope, dead_letters.name),
    ]
    body = {"widgets": [_place(number, widget) for number, widget in enumerate(widgets)]}
    aws.cloudwatch.Dashboard(
        "dashboard",
        dashboard_name=scope.names.cluster,
        dashboard_body=pulumi.Output.json_dumps(body),
        opts=scope.options(),
    )


def _place(number: int, widget: dict[str, Any]) -> dict[str, Any]:
    """Return the widget with a place: two widgets in a line, in the order of the numbers."""
    line, column = divmod(number, 2)
    place = {"x": column * _WIDTH, "y": line * _HEIGHT, "width": _WIDTH, "height": _HEIGHT}
    return {**widget, **place}


def _alarm_widget(scope: Scope) -> dict[str, Any]:
    """Return the widget with the states of the alarms that AWS evaluates."""
    arns = [scope.names.alarm_arn(name) for name in ALARMS]
    return {"type": "alarm", "properties": {"title": "Alarms", "alarms": arns}}


def _function_widgets(scope: Scope) -> list[dict[str, Any]]:
    """Return the widgets of the functions: runs, failed runs, refused runs and durations."""
    shown = {
        "Runs of functions": ("Invocations", "Sum"),
        "Failed runs": ("Errors", "Sum"),
        "Throttled runs": ("Throttles", "Sum"),
        "Duration of runs (95 %)": ("Duration", "p95"),
    }
    return [
        _metric_widget(
            scope,
            title,
            [
                [
                    "AWS/Lambda",
                    name,
                    "FunctionName",
                    scope.names.part(function),
                    {"label": function},
                ]
                for function in FUNCTIONS
            ],
            statistic,
        )
        for title, (name, statistic) in shown.items()
    ]


def _api_widgets(scope: Scope, api_id: Any) -> list[dict[str, Any]]:
    """Return the widgets of the API: requests by result, and latencies."""
    requests = {"Count": "requests", "4xx": "refused", "5xx": "failed"}
    latencies = {"p50": "half of the requests", "p95": "95 % of the requests"}
    gateway = "AWS/ApiGateway"
    return [
        _metric_widget(
            scope,
            "Requests of the API",
            [
                [gateway, name, "ApiId", api_id, {"label": label}]
                for name, label in requests.items()
            ],
            "Sum",
        ),
        _metric_widget(
            scope,
            "Latency of the API",
            [
                [gateway, "Latency", "ApiId", api_id, {"stat": statistic, "label": label}]
                for statistic, label in latencies.items()
            ],
            "p50",
        ),
    ]


def _table_widgets(scope: Scope, table: Any) -> list[dict[str, Any]]:
    """Return the widgets of the state table: consumed units, and throttled requests."""
    shown = {
        "Consumed units of the table": {
            "ConsumedReadCapacityUnits": "read units",
            "ConsumedWriteCapacityUnits": "write units",
        },
        "Throttled requests of the table": {
            "ReadThrottleEvents": "reads",
            "WriteThrottleEvents": "writes",
        },
    }
    return [
        _metric_widget(
            scope,
            title,
            [
                ["AWS/DynamoDB", name, "TableName", table, {"label": label}]
                for name, label in metrics.items()
            ],
            "Sum",
        )
        for title, metrics in shown.items()
    ]


def _failure_widget(scope: Scope, queue: Any) -> dict[str, Any]:
    """Return the widget with the error lines of all functions, and the dead letters."""
    name = "ApproximateNumberOfMessagesVisible"
    return _metric_widget(
        scope,
        "Error lines and dead letters",
        [
            [f"detcloud/{scope.settings.team}", "Errors", {"label": "error lines"}],
            ["AWS/SQS", name, "QueueName", queue, {"stat": "Maximum", "label": "dead letters"}],
        ],
        "Sum",
    )


def _metric_widget(
    scope: Scope, title: str, metrics: list[Metric], statistic: str
) -> dict[str, Any]:
    """Return a widget with the charts of metrics.

    Args:
        scope: the context of the stack's resources.
        title: the title of the widget.
        metrics: the metrics, of which each may have a statistic of its own.
        statistic: the statistic of the other metrics, such as `Sum`.
    """
    properties = {
        "title": title,
        "view": "timeSeries",
        "region": scope.settings.region,
        "period": FIVE_MINUTES,
        "stat": statistic,
        "metrics": metrics,
    }
    return {"type": "metric", "properties": properties}
