"""The creation and the deletion of webhooks.

The row with all routes changes in the same commit as the row of a webhook.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

from control_plane.access.ownership import Action, check_may_change
from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.event_routes import (
    ROUTES,
    EventType,
    Route,
    Trigger,
    decode_routes,
    encode_routes,
)
from control_plane.actors.job_row import POOLS, jobs_partition
from control_plane.actors.messages.experiment import WebhooksChanged
from control_plane.config.log_policies import find_pattern_problems
from control_plane.errors import Code, RequestError, invalid
from control_plane.queries.cluster_configuration import allowed_private_hosts, smtp_settings
from control_plane.queries.webhook import load_webhook, owned_webhook
from control_plane.rows import experiment_rows
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put
from control_plane.webhooks.mail import parse_recipients
from control_plane.webhooks.records import (
    WebhookRecord,
    decode_webhook,
    encode_webhook,
    webhook_key,
)
from control_plane.webhooks.safe_addresses import AddressRule, UrlRefused, parse_url
from control_plane.webhooks.signatures import new_secret

WEBHOOKS_MAX = 50
"""The most webhooks of a cluster. A commit with an event reads the routes of all webhooks."""
USER_MAX = 10
"""The most webhooks of a user who is no admin."""
ROUTE_BYTES_MAX = 4_096
"""The most bytes of a webhook's triggers and filters in the row of all routes."""
_COUNTER = Key(experiment_rows.COUNTER.partition, "webhook")
_ROUTES = Key(*ROUTES)
_METRIC_TYPES = frozenset({EventType.METRIC_THRESHOLD_EXCEEDED, EventType.BEST_VALIDATION})
_ADMINS_ONLY = frozenset({EventType.ALARM})
"""The events that belong to no user."""

WebhookExtraWrites = Callable[[WebhookRecord], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the webhook."""


@dataclass(frozen=True)
class WebhookRequest:
    """A user's request for a new webhook."""

    name: str
    url: str
    format: str
    route: Route
    """The triggers and filters. `webhook` is ignored."""
    options: dict[str, str] = field(default_factory=dict)


def create_webhook(
    table: StateTable,
    request: WebhookRequest,
    caller: Principal,
    now_ms: int,
    extra_writes: WebhookExtraWrites,
) -> WebhookRecord:
    """Create a webhook with a new id and a new secret; return the webhook.

    A webhook of a user who is no admin announces only the user's own experiments and model
    versions, unless experiments name the webhook in their configuration.

    Raises:
        RequestError: invalid, for a URL that webhooks may not reach, or a wrong trigger; forbidden,
            for events of other users, if the caller is no admin; conflict, if a webhook has the
            name, or the cluster has WEBHOOKS_MAX webhooks; unavailable, if other requests keep
            changing webhooks.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    _check_url(table, request)
    for place, trigger in enumerate(request.route.triggers):
        _check_trigger(trigger, place)
    route = _allowed_route(request.route, caller)
    size = len(encode_routes((route,)))
    if size > ROUTE_BYTES_MAX:
        text = f"and filters have {size} bytes, the limit is {ROUTE_BYTES_MAX}"
        raise invalid("triggers", text, "use shorter patterns, or fewer triggers and labels")
    secret = new_secret()

    def change(row: Row | None) -> tuple[WebhookRecord, tuple[Write, ...]]:
        routes = () if row is None else decode_routes(row.body)
        if any(other.name == request.name for other in routes):
            raise RequestError(Code.CONFLICT, f"there is a webhook {request.name} already")
        if len(routes) >= WEBHOOKS_MAX:
            raise RequestError(Code.CONFLICT, f"a cluster has at most {WEBHOOKS_MAX} webhooks")
        if caller.role is not Role.ADMIN and _count_of_user(table, caller.user) >= USER_MAX:
            raise RequestError(Code.CONFLICT, f"a user has at most {USER_MAX} webhooks")
        counter = table.get(_COUNTER)
        number = int(counter.body) if counter else 1
        own = replace(route, webhook=number, name=request.name)
        record = WebhookRecord(
            number,
            request.name,
            request.url,
            request.format,
            secret,
            caller.user,
            now_ms,
            own,
            request.options,
        )
        revision = counter.revision if counter else 0
        count = Put(_COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT)
        put = Put(webhook_key(number), 1, encode_webhook(record), Expect.ABSENT)
        body = encode_routes((*routes, own))
        routed = replacing_put(_ROUTES, row, body, now_ms)
        return record, (routed, count, put, *extra_writes(record))

    also = (_COUNTER.partition,)
    return change_row(table, _ROUTES, change, "the list of webhooks", also=also)


def delete_webhook(
    table: StateTable,
    webhook: int,
    caller: Principal,
    now_ms: int,
    extra_writes: WebhookExtraWrites,
) -> WebhookRecord:
    """Delete a webhook; return the deleted webhook. Waiting deliveries are dropped.

    Raises:
        RequestError: not_found, if the webhook does not exist; forbidden, if the caller is neither
            the owner nor an admin; unavailable, if other requests keep changing webhooks.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[WebhookRecord, tuple[Write, ...]]:
        record, revision = load_webhook(table, webhook)
        check_may_change(caller, owned_webhook(record), Action.DELETE)
        routes = () if row is None else decode_routes(row.body)
        left = encode_routes(route for route in routes if route.webhook != webhook)
        routed = replacing_put(_ROUTES, row, left, now_ms)
        return record, (routed, Delete(webhook_key(webhook), revision), *extra_writes(record))

    return change_row(table, _ROUTES, change, f"webhook {webhook}")


def watch_metrics(services: Services, record: WebhookRecord) -> None:
    """Let running experiments look for a new webhook that announces metrics.

    Do nothing for a webhook without a trigger for metrics. Experiments otherwise look for webhooks
    when their status changes. A repetition is harmless. Raises TableError.
    """
    if not any(trigger.type in _METRIC_TYPES for trigger in record.route.triggers):
        return
    table = services.table
    experiments = [
        addresses.experiment(int(job.key.sort))
        for pool in read_rows(table, POOLS)
        for job in read_rows(table, jobs_partition(pool.key.sort))
    ]
    services.engine.store_messages(experiments, WebhooksChanged(), sender=f"webhook#{record.id}")


def address_rule(table: StateTable) -> AddressRule:
    """Return the decision which hosts webhooks may reach, from the cluster configuration."""
    return AddressRule(allowed_private_hosts(table))


def _check_url(table: StateTable, request: WebhookRequest) -> None:
    """Raise RequestError invalid for a URL that webhooks may not reach. No name is resolved.

    The URL of the format `email` names recipients, and needs a mail server.
    """
    try:
        if request.format == "email":
            parse_recipients(request.url)
        else:
            parse_url(request.url, address_rule(table))
    except (UrlRefused, ValueError) as error:
        raise invalid("url", str(error)) from None
    if request.format == "email" and smtp_settings(table) is None:
        hint = "an admin sets webhooks.smtp in the cluster configuration"
        raise invalid("format", "needs a mail server", hint)


def _check_trigger(trigger: Trigger, place: int) -> None:
    """Raise RequestError invalid for fields of a trigger that do not fit together.

    Args:
        place: the place of the trigger in the list, for the error.
    """
    name = f"triggers.{place}"
    is_threshold = trigger.type == EventType.METRIC_THRESHOLD_EXCEEDED
    has_limit = trigger.above is not None or trigger.below is not None
    if is_threshold and not (trigger.metric and has_limit):
        raise invalid(name, "needs a metric, and a limit above or below", "set above or below")
    if not is_threshold and (trigger.metric or has_limit):
        raise invalid(name, "has a metric or limit", f"only {_THRESHOLD} has these fields")
    if trigger.levels and trigger.type != EventType.CUSTOM:
        raise invalid(name, "has levels", f"only {EventType.CUSTOM} has levels")
    if trigger.pattern and trigger.type != EventType.TASK_LOG:
        raise invalid(name, "has a pattern", f"only {EventType.TASK_LOG} has a pattern")
    # A pattern matches by being equal to the pattern of a log policy.
    for problem in find_pattern_problems(trigger.pattern, (name, "pattern")):
        raise invalid(f"{name}.pattern", problem.message, problem.hint)


_THRESHOLD = EventType.METRIC_THRESHOLD_EXCEEDED


def _count_of_user(table: StateTable, user: str) -> int:
    """Count the webhooks of a user. Raises TableError."""
    rows = read_rows(table, webhook_key(0).partition)
    return sum(decode_webhook(row.body).user == user for row in rows)


def _allowed_route(route: Route, caller: Principal) -> Route:
    """Return a route with the filters that the caller must have.

    Raises:
        RequestError: forbidden, if the caller is no admin and asks for events of other users.
    """
    if caller.role is Role.ADMIN:
        return route
    if any(trigger.type in _ADMINS_ONLY for trigger in route.triggers):
        raise RequestError(Code.FORBIDDEN, "only an admin can create a webhook for alarms")
    if route.user not in (None, caller.user):
        text = f"only an admin can create a webhook for the experiments of {route.user}"
        raise RequestError(Code.FORBIDDEN, text)
    return route if route.is_specific else replace(route, user=caller.user)
