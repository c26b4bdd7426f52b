"""Queries of webhooks and deliveries."""

from dataclasses import replace

from control_plane.access.ownership import Action, OwnedObject, check_may_change, find_refusal
from control_plane.access.principals import Principal
from control_plane.errors import Code, RequestError
from control_plane.queries.answer import Answer
from control_plane.queries.pages import Page, PageRequest
from control_plane.queries.row_pages import read_row_page
from control_plane.state.table import Key, Row, StateTable
from control_plane.webhooks.records import (
    WEBHOOKS,
    DeliveryRecord,
    WebhookRecord,
    decode_delivery,
    decode_webhook,
    deliveries_partition,
    delivery_id,
    webhook_key,
)
from detcloud.shared.masking import MASK


class TriggerAnswer(Answer):
    """A trigger of a webhook; docs/api.md describes the fields."""

    type: str
    states: list[str]
    levels: list[str]
    metric: str
    above: float | None
    below: float | None
    pattern: str


class Webhook(Answer):
    """A webhook without the secret; docs/api.md describes the fields."""

    id: int
    name: str
    url: str
    format: str
    mode: str
    triggers: list[TriggerAnswer]
    workspace: str | None
    project: str | None
    labels: list[str]
    filtered_user: str | None
    experiments: list[int]
    user: str
    created_ms: int
    changed_ms: int | None
    changed_by: str | None


class Delivery(Answer):
    """The deliveries of an event to a webhook; docs/api.md describes the fields."""

    id: str
    webhook: int
    event_id: str
    event_type: str
    subject: str
    title: str
    time_ms: int
    state: str
    attempts: int
    tried_ms: int
    next_ms: int | None
    status: int | None
    error: str
    took_ms: int


def list_webhooks(table: StateTable, caller: Principal, page: PageRequest) -> Page[Webhook]:
    """Return a page of all webhooks, by id.

    Raises:
        RequestError: invalid, for a cursor of another list.
    """
    rows, cursor = read_row_page(table, WEBHOOKS, page)
    items = [webhook_answer(decode_webhook(row.body), caller) for row in rows]
    return Page(items=items, next_cursor=cursor)


def list_deliveries(
    table: StateTable, webhook: int, caller: Principal, page: PageRequest, state: str | None
) -> Page[Delivery]:
    """Return a page of the deliveries to a webhook, from the newest event to the oldest.

    Args:
        state: the state of the deliveries; None for all.

    Raises:
        RequestError: not_found, if the webhook does not exist; forbidden, if the caller is neither
            the owner nor an admin; invalid, for a cursor of another list.
    """
    _check_may_read(table, webhook, caller)
    rows, cursor = read_row_page(
        table,
        deliveries_partition(webhook),
        page,
        descending=True,
        is_wanted=lambda row: state is None or decode_delivery(row.body).state == state,
    )
    items = [delivery_answer(decode_delivery(row.body)) for row in rows]
    return Page(items=items, next_cursor=cursor)


def describe_delivery(
    table: StateTable, webhook: int, delivery: str, caller: Principal
) -> Delivery:
    """Return a delivery.

    Raises:
        RequestError: not_found, if the webhook or delivery does not exist; forbidden, if the caller
            is neither the owner nor an admin.
    """
    _check_may_read(table, webhook, caller)
    return delivery_answer(load_delivery(table, webhook, delivery))


def load_webhook(table: StateTable, webhook: int) -> tuple[WebhookRecord, int]:
    """Load a webhook, and return the record and the revision.

    Raises:
        RequestError: not_found, if the webhook does not exist.
    """
    row = load_webhook_row(table, webhook)
    return decode_webhook(row.body), row.revision


def load_webhook_row(table: StateTable, webhook: int) -> Row:
    """Load the row of a webhook.

    Raises:
        RequestError: not_found, if the webhook does not exist.
    """
    row = table.get(webhook_key(webhook))
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no webhook {webhook}")
    return row


def load_delivery(table: StateTable, webhook: int, delivery: str) -> DeliveryRecord:
    """Load the record of a delivery.

    Raises:
        RequestError: not_found, if the delivery does not exist.
    """
    row = table.get(Key(deliveries_partition(webhook), delivery))
    if row is None:
        raise RequestError(Code.NOT_FOUND, f"there is no delivery {delivery}")
    return decode_delivery(row.body)


def owned_webhook(record: WebhookRecord) -> OwnedObject:
    """Return the ownership of a webhook. The creator owns the webhook."""
    return OwnedObject(f"webhook {record.name}", (record.user,), "create your own")


def find_owned_webhook(table: StateTable, webhook: int) -> tuple[OwnedObject, ...]:
    """Return the ownership of a webhook, as a tuple with a single element.

    Raises:
        RequestError: not_found, if the webhook does not exist.
    """
    return (owned_webhook(load_webhook(table, webhook)[0]),)


def webhook_answer(record: WebhookRecord, caller: Principal) -> Webhook:
    """Return a webhook for a caller. Other users than owner and admins get only the URL's host."""
    is_hidden = find_refusal(caller, Action.READ, owned_webhook(record)) is not None
    route = record.route
    return Webhook(
        id=record.id,
        name=record.name,
        url=_host_of(record.url) if is_hidden else record.url,
        format=record.format,
        mode="SPECIFIC" if route.is_specific else "WORKSPACE",
        triggers=[
            TriggerAnswer(
                type=trigger.type,
                states=list(trigger.states),
                levels=list(trigger.levels),
                metric=trigger.metric,
                above=trigger.above,
                below=trigger.below,
                pattern=trigger.pattern,
            )
            for trigger in route.triggers
        ],
        workspace=route.workspace,
        project=route.project,
        labels=list(route.labels),
        filtered_user=route.user,
        experiments=list(route.experiments),
        user=record.user,
        created_ms=record.created_ms,
        changed_ms=record.changed_ms or None,
        changed_by=record.changed_by or None,
    )


def deleted_webhook_answer(record: WebhookRecord, caller: Principal) -> Webhook:
    """Return a deleted webhook for a caller. The URL ends after the host.

    The answer is stored for repetitions, and a stored answer must not have secrets.
    """
    return webhook_answer(replace(record, url=_host_of(record.url)), caller)


def delivery_answer(record: DeliveryRecord) -> Delivery:
    """Return the record of a delivery in the form of the API."""
    event = record.event
    return Delivery(
        id=delivery_id(event["time_ms"], event["id"]),
        webhook=record.webhook,
        event_id=event["id"],
        event_type=event["type"],
        subject=event["subject"],
        title=event["title"],
        time_ms=event["time_ms"],
        state=record.state,
        attempts=record.attempts,
        tried_ms=record.tried_ms,
        next_ms=record.next_ms,
        status=record.status,
        error=record.error,
        took_ms=record.took_ms,
    )


def _check_may_read(table: StateTable, webhook: int, caller: Principal) -> None:
    """Check that the caller may read the deliveries of a webhook.

    Raises:
        RequestError: not_found, if the webhook does not exist; forbidden, if the caller is neither
            the owner nor an admin.
    """
    record, _ = load_webhook(table, webhook)
    check_may_change(caller, owned_webhook(record), Action.READ)


def _host_of(url: str) -> str:
    """Return a URL with a mask in place of everything after the host, or of mail addresses."""
    scheme, _, rest = url.partition("://")
    if not rest:
        return f"{url.partition(':')[0]}:{MASK}"
    return f"{scheme}://{rest.partition('/')[0].partition('?')[0]}/{MASK}"
