"""The alarms that AWS evaluates, and the topic for the notifications of all alarms.

Only five alarms on six metrics exist, because each metric of an alarm costs 0.10 $ a month
(decision 115). The tick publishes the cluster's own alarms to the same topic.
"""

import json
from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws

from infra.alarm_texts import describe_alarm
from infra.aws import policies
from infra.aws.events import RULES
from infra.aws.scope import Scope
from provisioner.clouds.provider import CLUSTER_TAG

# A function logs the two levels; Lambda writes the other lines about an uncaught exception, a
# timeout and a crash.
ERROR_LINES = (
    r'?"\"level\": \"ERROR\"" ?"\"level\": \"CRITICAL\""'
    ' ?"[ERROR]" ?"Task timed out" ?"Runtime exited"'
)
FIVE_MINUTES = 300
# A single failure is an error line of the API. More are an outage.
FAILED_REQUESTS_MAX = 4


def make_dead_letters(scope: Scope) -> Any:
    """Create and return the queue for records and events that functions failed to process.

    The queue keeps messages for 14 days. The rules of RULES may send events to it.
    """
    return aws.sqs.Queue(
        "dead-letters",
        name=scope.names.part("dead_letters"),
        message_retention_seconds=14 * 24 * 3600,
        sqs_managed_sse_enabled=True,
        policy=json.dumps(policies.dead_letters(scope.names, RULES)),
        tags=scope.tags(),
        opts=scope.options(),
    )


def make_alarms(
    scope: Scope, dead_letters: Any, functions: Mapping[str, Any], table: Any, api: Any
) -> Any:
    """Create the alarms and the topic for notifications, and return the topic.

    The alarms fire at a dead letter, an error line in a log, more than FAILED_REQUESTS_MAX failed
    requests of the API, a throttled request of the table, and ten minutes without a tick. Subscribe
    the setting `alarm_email` to the topic. With the setting `monthly_budget`, also create a budget.
    `functions` maps names to function resources.
    """
    topic = _make_topic(scope)
    metrics = {
        "dead-letters": _metric(
            "AWS/SQS", "ApproximateNumberOfMessagesVisible", "Maximum", QueueName=dead_letters.name
        ),
        "errors": _error_metric(scope, functions),
        # HTTP APIs call the metric 5xx. The API answers 503 also while its function is throttled.
        "api": _metric("AWS/ApiGateway", "5xx", "Sum", ApiId=api.id),
    }
    thresholds = {"api": FAILED_REQUESTS_MAX}
    for name, metric in metrics.items():
        _make_alarm(
            scope, name, topic, threshold=thresholds.get(name, 0), period=FIVE_MINUTES, **metric
        )
    _make_alarm(scope, "throttles", topic, threshold=0, metric_queries=_throttle_queries(table))
    _make_minute_alarm(scope, topic, functions["tick"])
    if scope.settings.monthly_budget:
        _make_budget(scope, topic)
    return topic


def _make_minute_alarm(scope: Scope, topic: Any, tick: Any) -> None:
    """Create the alarm about two periods of five minutes without any run of the tick.

    Throttled calls do not count as runs. FILL counts a period without data as zero at once;
    `breaching` alone would first use older data of CloudWatch's evaluation range.
    """
    invocations = {
        "namespace": "AWS/Lambda",
        "metric_name": "Invocations",
        "dimensions": {"FunctionName": tick.name},
        "stat": "Sum",
        "period": FIVE_MINUTES,
    }
    filled = {"id": "runs", "expression": "FILL(invocations, 0)", "label": "ticks"}
    _make_alarm(
        scope,
        "minute",
        topic,
        threshold=1,
        comparison_operator="LessThanThreshold",
        evaluation_periods=2,
        treat_missing_data="breaching",
        metric_queries=[
            {"id": "invocations", "metric": invocations},
            {**filled, "return_data": True},
        ],
    )


def _make_topic(scope: Scope) -> Any:
    """Create and return the topic, with a policy for alarms and budgets.

    Subscribe the setting `alarm_email`, if set.
    """
    topic = aws.sns.Topic(
        "alarms", name=scope.names.part("alarms"), tags=scope.tags(), opts=scope.options()
    )
    aws.sns.TopicPolicy(
        "alarms",
        arn=topic.arn,
        policy=json.dumps(policies.alarms(scope.names)),
        opts=scope.options(),
    )
    if scope.settings.alarm_email:
        aws.sns.TopicSubscription(
            "alarms",
            topic=topic.arn,
            protocol="email",
            endpoint=scope.settings.alarm_email,
            opts=scope.options(),
        )
    return topic


def _error_metric(scope: Scope, functions: Mapping[str, Any]) -> dict[str, Any]:
    """Create a filter for error lines in each function's log; return the filters' common metric.

    A metric costs nothing in months without errors.
    """
    space = f"detcloud/{scope.settings.team}"
    for name, function in functions.items():
        aws.cloudwatch.LogMetricFilter(
            name,
            name=scope.names.part(f"{name}_errors"),
            log_group_name=scope.names.log_group(name),
            pattern=ERROR_LINES,
            metric_transformation={"name": "Errors", "namespace": space, "value": "1"},
            # The function depends on its log group, so the group exists after the function.
            opts=scope.options([function]),
        )
    return _metric(space, "Errors", "Sum")


def _throttle_queries(table: Any) -> list[dict[str, Any]]:
    """Return the queries of an alarm for the sum of the table's throttled reads and writes."""
    metrics = {"reads": "ReadThrottleEvents", "writes": "WriteThrottleEvents"}
    queries = [
        {
            "id": name,
            "metric": {
                "namespace": "AWS/DynamoDB",
                "metric_name": metric,
                "dimensions": {"TableName": table.name},
                "stat": "Sum",
                "period": FIVE_MINUTES,
            },
        }
        for name, metric in metrics.items()
    ]
    both = {"id": "throttles", "expression": "FILL(reads, 0) + FILL(writes, 0)"}
    return [*queries, {**both, "label": "throttled requests", "return_data": True}]


def _metric(namespace: str, name: str, statistic: str, **dimensions: Any) -> dict[str, Any]:
    """Return an alarm's arguments for a metric. Empty `dimensions` are left out."""
    metric = {"namespace": namespace, "metric_name": name, "statistic": statistic}
    return {**metric, **({"dimensions": dimensions} if dimensions else {})}


def _make_alarm(scope: Scope, name: str, topic: Any, **settings: Any) -> None:
    """Create an alarm that notifies `topic` once a value exceeds the threshold.

    Missing values do not trigger the alarm. `settings` has the threshold and the metric, and may
    replace the other arguments.
    """
    arguments = {
        "comparison_operator": "GreaterThanThreshold",
        "evaluation_periods": 1,
        "treat_missing_data": "notBreaching",
    }
    settings = {**arguments, **settings}
    aws.cloudwatch.MetricAlarm(
        name,
        name=scope.names.part(name),
        alarm_description=describe_alarm(name, scope.names.cluster, scope.settings.runbook_url),
        alarm_actions=[topic.arn],
        tags=scope.tags(),
        opts=scope.options(),
        **settings,
    )


def _make_budget(scope: Scope, topic: Any) -> None:
    """Create the monthly budget for resources with the cluster's tag.

    The budget notifies the topic when costs exceed 80 %, and when the forecast exceeds 100 %.
    """
    settings = scope.settings
    notification = {
        "comparison_operator": "GREATER_THAN",
        "threshold_type": "PERCENTAGE",
        "subscriber_sns_topic_arns": [topic.arn],
    }
    aws.budgets.Budget(
        "month",
        name=scope.names.part("month"),
        budget_type="COST",
        time_unit="MONTHLY",
        limit_amount=str(settings.monthly_budget),
        limit_unit="USD",
        cost_filters=[
            {"name": "TagKeyValue", "values": [f"user:{CLUSTER_TAG}${scope.names.cluster}"]}
        ],
        notifications=[
            {**notification, "notification_type": "ACTUAL", "threshold": 80},
            {**notification, "notification_type": "FORECASTED", "threshold": 100},
        ],
        tags=scope.tags(),
        opts=scope.options(),
    )
