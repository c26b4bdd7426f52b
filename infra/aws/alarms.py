"""Who is told, and of what: four alarms on five metrics, as each metric costs 0.10 $ a month."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws

from infra.aws import policies
from infra.aws.scope import Scope
from provisioner.clouds.provider import CLUSTER_TAG

# What a function writes of an error, and Lambda of one that had no time or memory left.
ERROR_LINES = (
    r'?"\"level\": \"ERROR\"" ?"\"level\": \"CRITICAL\""'
    ' ?"[ERROR]" ?"Task timed out" ?"Runtime exited"'
)
FIVE_MINUTES = 300
ITERATOR_AGE_MS_MAX = 60_000


def make_dead_letters(scope: Scope) -> Any:
    """The queue of records and events that were given up: for a person to look at."""
    return aws.sqs.Queue(
        "dead-letters",
        name=scope.names.part("dead_letters"),
        message_retention_seconds=14 * 24 * 3600,
        sqs_managed_sse_enabled=True,
        tags=scope.tags(),
        opts=scope.options(),
    )


def watch(scope: Scope, dead_letters: Any, functions: Mapping[str, Any], table: Any) -> Any:
    """Makes the alarms and their topic, which is returned."""
    topic = _topic(scope)
    metrics = {
        "dead-letters": _metric(
            "AWS/SQS", "ApproximateNumberOfMessagesVisible", "Maximum", QueueName=dead_letters.name
        ),
        "errors": _errors(scope, functions),
        "lag": _metric(
            "AWS/Lambda", "IteratorAge", "Maximum", FunctionName=functions["advance"].name
        ),
    }
    most = {"lag": ITERATOR_AGE_MS_MAX}
    for name, metric in metrics.items():
        _alarm(scope, name, topic, threshold=most.get(name, 0), period=FIVE_MINUTES, **metric)
    _alarm(scope, "throttles", topic, threshold=0, metric_queries=_throttles(table))
    if scope.settings.monthly_budget:
        _budget(scope, topic)
    return topic


def _topic(scope: Scope) -> Any:
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


def _errors(scope: Scope, functions: Mapping[str, Any]) -> dict[str, Any]:
    """One metric of all functions' errors. One that nothing is added to costs nothing."""
    space = f"detcloud/{scope.settings.team}"
    for name, function in functions.items():
        aws.cloudwatch.LogMetricFilter(
            name,
            name=scope.names.part(f"{name}_errors"),
            log_group_name=scope.names.log_group(name),
            pattern=ERROR_LINES,
            metric_transformation={"name": "Errors", "namespace": space, "value": "1"},
            # The group is there when its function is.
            opts=scope.options([function]),
        )
    return _metric(space, "Errors", "Sum")


def _throttles(table: Any) -> list[dict[str, Any]]:
    metrics = {"reads": "ReadThrottleEvents", "writes": "WriteThrottleEvents"}
    asked = [
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
    return [*asked, {**both, "label": "throttled requests", "return_data": True}]


def _metric(namespace: str, name: str, statistic: str, **dimensions: Any) -> dict[str, Any]:
    asked = {"namespace": namespace, "metric_name": name, "statistic": statistic}
    return {**asked, **({"dimensions": dimensions} if dimensions else {})}


def _alarm(scope: Scope, name: str, topic: Any, **asked: Any) -> None:
    aws.cloudwatch.MetricAlarm(
        name,
        name=scope.names.part(name),
        comparison_operator="GreaterThanThreshold",
        evaluation_periods=1,
        treat_missing_data="notBreaching",
        alarm_actions=[topic.arn],
        tags=scope.tags(),
        opts=scope.options(),
        **asked,
    )


def _budget(scope: Scope, topic: Any) -> None:
    """Tells of the cost of what has the cluster's tag: most of it, and when all is to be spent."""
    settings = scope.settings
    told = {
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
            {**told, "notification_type": "ACTUAL", "threshold": 80},
            {**told, "notification_type": "FORECASTED", "threshold": 100},
        ],
        tags=scope.tags(),
        opts=scope.options(),
    )
