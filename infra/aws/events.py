"""The events that invoke the functions: table changes, a timer each minute, and EC2's warnings."""

import json
from collections.abc import Mapping
from typing import Any

import pulumi_aws as aws

from control_plane.rows.registry import waking_row_types
from control_plane.rows.row_type import Function
from infra.aws.functions import make_permission
from infra.aws.names import INVOKED_BY_TICK
from infra.aws.roles import Roles
from infra.aws.scope import Scope

EVENTS = "events.amazonaws.com"
GATHER_SECONDS = 2
HOUR = 3600
# Lambda repeats a failed minute after a minute, and the run may take another.
MINUTE_SECONDS_MAX = 180
# The rules whose undeliverable events go to the dead-letter queue.
RULES = ("minute", "warnings")
# `wake` returns unfinished rows for TAKEOVER_MS, every five seconds. The tick of each minute then
# continues their work. Only failed rows use up all repetitions.
WAKE_REPEATS_MAX = 15
WAKE_SECONDS_MAX = 300
WARNINGS = (
    "EC2 Spot Instance Interruption Warning",
    "EC2 Instance Rebalance Recommendation",
    "Capacity Block Reservation Expiration Warning",
)


def new_row_pattern(function: Function) -> dict[str, Any]:
    """Return the pattern of stream records about new rows that wake a function.

    Rows of actors are selected by the sort key, and other rows by the partition. Raise
    AssertionError if both actors' rows and other rows wake the function.
    """
    row_types = sorted(waking_row_types(function), key=lambda row_type: row_type.partition)
    sorts = [{"prefix": row_type.sort} for row_type in row_types if row_type.is_of_actors]
    partitions = [
        row_type.partition if row_type.has_one_partition else {"prefix": row_type.partition}
        for row_type in row_types
        if not row_type.is_of_actors
    ]
    # A pattern requires all of its keys, so that a single pattern cannot select both.
    assert not (sorts and partitions), function
    keys = {"s": {"S": sorts}} if sorts else {"p": {"S": partitions}}
    return {"eventName": ["INSERT"], "dynamodb": {"Keys": keys}}


MAIL = new_row_pattern("advance")
INTENTS = new_row_pattern("tick")


def connect_events(
    scope: Scope, functions: Mapping[str, Any], roles: Roles, table: Any, dead_letters: Any
) -> None:
    """Create the event sources, rules and retry limits that invoke the functions.

    `functions` maps names to aliases, which are invoked. Failed stream records, failed minutes and
    failed warnings go to the queue `dead_letters`.
    """
    _connect_mail(scope, functions["advance"], roles, table, dead_letters)
    _connect_intents(scope, functions["wake"], roles, table, dead_letters)
    _connect_minute(scope, functions["tick"], roles, dead_letters)
    _connect_warnings(scope, functions["spot_notice"], roles, dead_letters)
    # The tick invokes the functions again within a minute, so Lambda need not retry, and an event
    # that Lambda drops because a run is in progress is not a dead letter.
    for name in INVOKED_BY_TICK:
        _limit_repeats(scope, name, functions[name], 0, 60)


def _connect_mail(scope: Scope, advance: Any, roles: Roles, table: Any, dead_letters: Any) -> None:
    """Let the table's stream invoke `advance` for new messages, from the stream's beginning.

    A failed batch is split and retried 5 times within an hour. Records that then fail go to the
    queue `dead_letters`.
    """
    aws.lambda_.EventSourceMapping(
        "mail",
        event_source_arn=table.stream_arn,
        function_name=advance.arn,
        starting_position="TRIM_HORIZON",
        filter_criteria={"filters": [{"pattern": json.dumps(MAIL)}]},
        batch_size=100,
        maximum_batching_window_in_seconds=GATHER_SECONDS,
        bisect_batch_on_function_error=True,
        maximum_retry_attempts=5,
        maximum_record_age_in_seconds=HOUR,
        function_response_types=["ReportBatchItemFailures"],
        destination_config={"on_failure": {"destination_arn": dead_letters.arn}},
        tags=scope.tags(),
        # Lambda checks at creation that the role may read the stream.
        opts=scope.options([roles.granted["advance"]]),
    )


def _connect_intents(scope: Scope, wake: Any, roles: Roles, table: Any, dead_letters: Any) -> None:
    """Let the table's stream invoke the function `wake` for new rows of the types in INTENTS.

    INTENTS is the pattern of the row types that wake the tick. Rows from before the deployment
    invoke nothing. A batch that failed WAKE_REPEATS_MAX times, or is older than WAKE_SECONDS_MAX,
    goes to the queue `dead_letters`. The tick of each minute does its work, too.
    """
    aws.lambda_.EventSourceMapping(
        "intents",
        event_source_arn=table.stream_arn,
        function_name=wake.arn,
        starting_position="LATEST",
        filter_criteria={"filters": [{"pattern": json.dumps(INTENTS)}]},
        batch_size=100,
        maximum_batching_window_in_seconds=GATHER_SECONDS,
        maximum_retry_attempts=WAKE_REPEATS_MAX,
        maximum_record_age_in_seconds=WAKE_SECONDS_MAX,
        function_response_types=["ReportBatchItemFailures"],
        destination_config={"on_failure": {"destination_arn": dead_letters.arn}},
        tags=scope.tags(),
        opts=scope.options([roles.granted["wake"]]),
    )


def _connect_minute(scope: Scope, tick: Any, roles: Roles, dead_letters: Any) -> None:
    """Let a rule invoke the tick every minute.

    A failed run is retried once. Minutes that then failed, or that Lambda could not start within
    MINUTE_SECONDS_MAX, go to the queue `dead_letters`.
    """
    rule = aws.cloudwatch.EventRule(
        "minute",
        name=scope.names.part("minute"),
        schedule_expression="rate(1 minute)",
        tags=scope.tags(),
        opts=scope.options(),
    )
    _make_target(scope, "minute", rule, tick, dead_letters, seconds_max=60)
    _limit_repeats(scope, "tick", tick, 1, MINUTE_SECONDS_MAX, dead_letters, roles)


def _connect_warnings(scope: Scope, spot_notice: Any, roles: Roles, dead_letters: Any) -> None:
    """Let EC2's warnings of the account invoke `spot_notice`.

    A failed run is retried twice within two minutes. Events that then fail go to `dead_letters`.
    """
    rule = aws.cloudwatch.EventRule(
        "warnings",
        name=scope.names.part("warnings"),
        event_pattern=json.dumps({"source": ["aws.ec2"], "detail-type": WARNINGS}),
        tags=scope.tags(),
        opts=scope.options(),
    )
    # Two minutes after the warning the instance is gone, and the expired lease shows that.
    _make_target(scope, "warnings", rule, spot_notice, dead_letters, seconds_max=120)
    _limit_repeats(scope, "spot_notice", spot_notice, 2, 120, dead_letters, roles)


def _make_target(
    scope: Scope, name: str, rule: Any, function: Any, dead_letters: Any, *, seconds_max: int
) -> None:
    """Let a rule invoke the alias `function`, and create the permission.

    EventBridge repeats a failed delivery once. An event goes to the queue `dead_letters` after the
    second failure, or after `seconds_max` without a delivery.
    """
    aws.cloudwatch.EventTarget(
        name,
        rule=rule.name,
        target_id=name,
        arn=function.arn,
        retry_policy={"maximum_retry_attempts": 1, "maximum_event_age_in_seconds": seconds_max},
        dead_letter_config={"arn": dead_letters.arn},
        opts=scope.options(),
    )
    make_permission(scope, name, function, EVENTS, rule.arn)


def _limit_repeats(
    scope: Scope,
    name: str,
    function: Any,
    repeats_max: int,
    seconds_max: int,
    dead_letters: Any = None,
    roles: Roles | None = None,
) -> None:
    """Limit how often and for how long Lambda retries a function's failed asynchronous invocations.

    `function` is an alias. With `dead_letters`, events that failed for good go to that queue. With
    `roles`, the resource is created after the policy of the function's role.
    """
    to = {"on_failure": {"destination": dead_letters.arn}} if dead_letters is not None else None
    aws.lambda_.FunctionEventInvokeConfig(
        name,
        function_name=function.function_name,
        qualifier=function.name,
        maximum_retry_attempts=repeats_max,
        maximum_event_age_in_seconds=seconds_max,
        destination_config=to,
        opts=scope.options([roles.granted[name]] if roles else []),
    )
