"""Deliveries that users request: tests of webhooks, and repeated deliveries."""

from dataclasses import replace

from control_plane.actors.event_routes import EventCondition, EventType
from control_plane.actors.events import (
    Event,
    EventRow,
    Pending,
    decode_event,
    encode_event,
    event_row,
    event_sort_key,
    events_partition,
)
from control_plane.errors import Code, RequestError
from control_plane.queries.webhook import load_delivery, load_webhook
from control_plane.state.table import Expect, Key, Put, Row, StateTable, Write
from control_plane.usecases.idempotency import ExtraWrites
from control_plane.usecases.row_changes import change_row
from control_plane.webhooks.event_writes import event_put
from control_plane.webhooks.records import (
    delivery_id,
    delivery_write,
    waiting_record,
)


def send_test(
    table: StateTable, webhook: int, user: str, now_ms: int, extra_writes: ExtraWrites
) -> str:
    """Raise a test event for a single webhook, and return the id of the delivery.

    Raises:
        RequestError: not_found, if the webhook does not exist.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    record, _ = load_webhook(table, webhook)
    event = Event(
        EventType.TEST,
        f"webhook#{webhook}",
        now_ms,
        f"test of webhook {record.name}",
        f"{user} tests the webhook {record.name}.",
        EventCondition(state="COMPLETED"),
        {"data": "test"},
    )
    row = event_row(event, (webhook,), now_ms)
    delivery = delivery_id(row.time_ms, row.id)
    waiting = delivery_write(waiting_record(webhook, row, now_ms), now_ms)
    table.commit((event_put(row, now_ms), waiting, *extra_writes(delivery)))
    return delivery


def retry_delivery(
    table: StateTable, webhook: int, delivery: str, now_ms: int, extra_writes: ExtraWrites
) -> str:
    """Let the next attempt of a delivery be due now, also of an ended delivery; return the id.

    Later events of the subject do not wait for the repeated delivery. The receiver gets the same
    event id again.

    Raises:
        RequestError: not_found, if the webhook or delivery does not exist; conflict, if another
            event has the number of the event since a restore; unavailable, if other requests keep
            changing the event.
        Conflict: the condition of an extra write does not hold; nothing was written.
    """
    load_webhook(table, webhook)
    record = load_delivery(table, webhook, delivery)
    wanted = EventRow(**record.event)
    key = Key(events_partition(wanted.subject), event_sort_key(wanted.number))
    waiting = replace(record, state="waiting", attempts=0, next_ms=now_ms)

    def change(row: Row | None) -> tuple[str, tuple[Write, ...]]:
        stored = wanted if row is None else decode_event(row.body)
        if stored.id != wanted.id:
            text = "the event was replaced when the cluster was restored; it cannot be sent again"
            raise RequestError(Code.CONFLICT, text)
        pending = stored.pending.get(webhook)
        # An event that waits keeps its place before later events.
        asked = Pending(retried_ms=now_ms) if pending is None else pending._replace(next_ms=0)
        event = replace(stored, pending={**stored.pending, webhook: asked})
        put = Put(key, now_ms, encode_event(event), Expect.ABSENT, now_ms)
        if row is not None:
            body = encode_event(event, row.body)
            put = Put(key, row.revision + 1, body, row.revision, now_ms)
        return delivery, (put, delivery_write(waiting, now_ms), *extra_writes(delivery))

    return change_row(table, key, change, f"delivery {delivery}")
