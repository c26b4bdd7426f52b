"""The creation, the change and the deletion of webhooks.

The row with all routes changes in the same commit as the row of a webhook. A damaged row of routes
is built again from the rows of the webhooks.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from control_plane.access.ownership import Action, check_may_change
from control_plane.access.principals import Principal, Role
from control_plane.actors import addresses
from control_plane.actors.event_routes import (
    DAMAGED,
    ROUTES,
    EventType,
    Route,
    decode_routes,
    encode_routes,
)
from control_plane.actors.job_row import POOLS, jobs_partition
from control_plane.actors.messages.experiment_events import WebhooksChanged
from control_plane.errors import Code, RequestError
from control_plane.queries.webhook import load_webhook, load_webhook_row, owned_webhook
from control_plane.rows import experiment_rows
from control_plane.services import Services
from control_plane.state.row_ranges import read_rows
from control_plane.state.table import Delete, Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.row_changes import change_row, replacing_put
from control_plane.usecases.webhook_checks import (
    TOKEN_FORMAT,
    allowed_route,
    check_receiver,
    check_token,
    check_triggers,
)
from control_plane.webhooks.records import (
    WEBHOOKS,
    WebhookRecord,
    decode_webhook,
    encode_webhook,
    webhook_key,
)
from control_plane.webhooks.signatures import new_secret

log = logging.getLogger(__name__)

WEBHOOKS_MAX = 50
"""The most webhooks of a cluster. A commit with an event reads the routes of all webhooks."""
USER_MAX = 10
"""The most webhooks of a user who is no admin."""
_COUNTER = Key(experiment_rows.COUNTER.partition, "webhook")
_ROUTES = Key(*ROUTES)
_METRIC_TYPES = frozenset({EventType.METRIC_THRESHOLD_EXCEEDED, EventType.BEST_VALIDATION})

WebhookExtraWrites = Callable[[WebhookRecord], tuple[Write, ...]]
"""Returns further writes for the commit of a change, given the webhook."""


@dataclass(frozen=True)
class WebhookRequest:
    """A user's request for a new webhook."""

    name: str
    url: str
    format: str
    route: Route
    """The triggers and filters. `webhook` and `name` are ignored."""
    options: dict[str, str] = field(default_factory=dict)
    token: str = field(default="", repr=False)
    """The token of requests, for the format TOKEN_FORMAT. "": no token."""


@dataclass(frozen=True)
class WebhookChange:
    """A user's request to change a webhook. Fields that are left out keep their values."""

    record: Mapping[str, str] = field(default_factory=dict, repr=False)
    """The new values of `url`, `format` and `token`, by field of the record."""
    route: Mapping[str, Any] = field(default_factory=dict)
    """The new name, triggers and filters, by field of the route."""


def create_webhook(
    table: StateTable,
    request: WebhookRequest,
    caller: Principal,
    now_ms: int,
    extra_writes: WebhookExtraWrites,
    *,
    has_mail_service: bool = False,
) -> WebhookRecord:
    """Create a webhook with a new id and a new secret; return the webhook.

    A webhook of a user who is no admin announces only the user's own experiments and model
    versions, unless experiments name the webhook in their configuration.

    Args:
        has_mail_service: whether the host sends mails without a mail server.

    Raises:
        RequestError: invalid, for a URL that webhooks may not reach, a wrong trigger or a wrong
            token; forbidden, for events of other users or mails to domains that are not permitted,
            if the caller is no admin; conflict, if a webhook has the name, or the cluster has
            WEBHOOKS_MAX webhooks; unavailable, if other requests keep changing webhooks.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    check_receiver(table, request.url, request.format, caller, has_mail_service=has_mail_service)
    check_token(request.format, request.token)
    check_triggers(request.route.triggers, request.format)
    route = allowed_route(request.route, caller)
    secret = new_secret()

    def change(row: Row | None) -> tuple[WebhookRecord, tuple[Write, ...]]:
        routes = _sound_routes(table, row)
        _check_name(routes, request.name, 0)
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
            request.token,
        )
        revision = counter.revision if counter else 0
        count = Put(_COUNTER, revision + 1, b"%d" % (number + 1), revision or Expect.ABSENT)
        put = Put(webhook_key(number), 1, encode_webhook(record), Expect.ABSENT)
        routed = replacing_put(_ROUTES, row, encode_routes((*routes, own)), now_ms)
        return record, (routed, count, put, *extra_writes(record))

    also = (_COUNTER.partition,)
    return change_row(table, _ROUTES, change, "the list of webhooks", also=also)


def change_webhook(
    table: StateTable,
    webhook: int,
    wanted: WebhookChange,
    caller: Principal,
    now_ms: int,
    extra_writes: WebhookExtraWrites,
    *,
    has_mail_service: bool = False,
) -> WebhookRecord:
    """Change a webhook; return the changed webhook. The id, the secret and the owner stay.

    Attempts that begin after the change use the new receiver, also for earlier events. New triggers
    and filters decide about later events only.

    Args:
        has_mail_service: whether the host sends mails without a mail server.

    Raises:
        RequestError: not_found, if the webhook does not exist; forbidden, if the caller is neither
            the owner nor an admin; conflict, if another webhook has the name; otherwise as for
            `create_webhook`.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """

    def change(row: Row | None) -> tuple[WebhookRecord, tuple[Write, ...]]:
        stored = load_webhook_row(table, webhook)
        before = decode_webhook(stored.body)
        check_may_change(caller, owned_webhook(before), Action.CHANGE)
        record = _changed_record(before, wanted, caller, now_ms)
        check_receiver(table, record.url, record.format, caller, has_mail_service=has_mail_service)
        check_token(record.format, record.token)
        check_triggers(record.route.triggers, record.format)
        routes = _sound_routes(table, row)
        _check_name(routes, record.name, webhook)
        by_id = {**{route.webhook: route for route in routes}, webhook: record.route}
        routed = replacing_put(_ROUTES, row, encode_routes(by_id.values()), now_ms)
        body = encode_webhook(record, stored.body)
        put = Put(stored.key, stored.revision + 1, body, stored.revision)
        return record, (routed, put, *extra_writes(record))

    return change_row(table, _ROUTES, change, f"webhook {webhook}", also=(WEBHOOKS,))


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
        routes = _sound_routes(table, row)
        left = encode_routes(route for route in routes if route.webhook != webhook)
        routed = replacing_put(_ROUTES, row, left, now_ms)
        return record, (routed, Delete(webhook_key(webhook), revision), *extra_writes(record))

    return change_row(table, _ROUTES, change, f"webhook {webhook}")


def watch_metrics(services: Services, record: WebhookRecord) -> None:
    """Let running experiments look for a new or changed webhook that announces metrics.

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


def _changed_record(
    before: WebhookRecord, wanted: WebhookChange, caller: Principal, now_ms: int
) -> WebhookRecord:
    """Return the record of a webhook after a change. A format without a token drops the token.

    Raises RequestError, as `allowed_route` does.
    """
    asked = replace(before.route, **wanted.route)
    if asked.triggers != before.route.triggers:
        asked = replace(asked, edits=before.route.edits + 1)
    route = allowed_route(asked, caller)
    fields = dict(wanted.record)
    if fields.get("format", before.format) != TOKEN_FORMAT:
        fields.setdefault("token", "")
    return replace(
        before,
        name=route.name,
        url=fields.get("url", before.url),
        format=fields.get("format", before.format),
        token=fields.get("token", before.token),
        route=route,
        changed_ms=now_ms,
        changed_by=caller.user,
    )


def _sound_routes(table: StateTable, row: Row | None) -> tuple[Route, ...]:
    """Return the routes of all webhooks. Lost and damaged routes are read from the webhooks' rows.

    A damage is logged. Raises TableError.
    """
    routes, damaged = decode_routes(b"" if row is None else row.body)
    if row is not None and not damaged:
        return routes
    if damaged:
        log.error("%s; the row is built again", DAMAGED)
    return tuple(record.route for record in _sound_records(table))


def _sound_records(table: StateTable) -> Iterable[WebhookRecord]:
    """Yield all webhooks by id. A damaged row is logged and left out. Raises TableError."""
    for row in read_rows(table, WEBHOOKS):
        try:
            yield decode_webhook(row.body)
        except ValueError:
            log.error("the row of webhook %s is damaged", row.key.sort)


def _check_name(routes: Iterable[Route], name: str, webhook: int) -> None:
    """Raise RequestError conflict if a webhook other than `webhook` has the name."""
    if any(route.name == name and route.webhook != webhook for route in routes):
        raise RequestError(Code.CONFLICT, f"there is a webhook {name} already")


def _count_of_user(table: StateTable, user: str) -> int:
    """Count the webhooks of a user. Raises TableError."""
    return sum(record.user == user for record in _sound_records(table))
