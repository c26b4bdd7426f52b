"""The stored records of webhooks and deliveries. Pure."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from control_plane.actors.event_routes import Route
from control_plane.actors.events import EventRow
from control_plane.adapters import RecordCodec
from control_plane.rows import webhook_rows
from control_plane.rows.json_codec import JsonCodec
from control_plane.state.table import Expect, Key, Put

WEBHOOKS = webhook_rows.WEBHOOK.partition
"""The partition with a row for each webhook."""
KEPT_MS = 7 * 24 * 3_600_000
"""The time for which the record of a delivery is kept, in ms."""
KEPT_FAILED_MS = 30 * 24 * 3_600_000
"""The time for which the record of a failed delivery is kept, in ms."""
DeliveryState = Literal["waiting", "delivered", "failed"]
"""The state of a delivery: `waiting` before the next attempt, `failed` after a day of attempts."""


@dataclass(frozen=True, slots=True)
class WebhookRecord:
    """A webhook."""

    id: int
    name: str
    url: str
    """The address of the receiver. For many services, the address is a secret."""
    format: str
    """The name of the format of requests (formats/registry.py)."""
    secret: str
    """The key of signatures, as text that begins with SECRET_PREFIX."""
    user: str
    """The user who created the webhook and owns it."""
    created_ms: int
    """The time of the creation, in epoch ms."""
    route: Route
    """The triggers and filters, as in the row of all routes."""
    options: Mapping[str, str] = field(default_factory=dict)
    """The options of the format."""
    token: str = ""
    """The token with which requests log in to the receiver, for the format `github`. "": none."""
    changed_ms: int = 0
    """The time of the last change by a user, in epoch ms. 0: the webhook was not changed."""
    changed_by: str = ""
    """The user who changed the webhook last, or ""."""


@dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """The deliveries of an event to a webhook. Times are epoch ms."""

    webhook: int
    """The id of the webhook."""
    event: Mapping[str, Any]
    """The event, without the pending deliveries."""
    state: DeliveryState
    attempts: int = 0
    """The number of attempts since the event, or since the last request of a user."""
    tried_ms: int = 0
    """The time of the last attempt. 0: none."""
    next_ms: int | None = None
    """The time of the next attempt. None: no attempt follows."""
    status: int | None = None
    """The HTTP status of the last answer. None: no answer."""
    error: str = ""
    """The reason why the last attempt failed, or ""."""
    took_ms: int = 0
    """The duration of the last attempt, in ms."""


_WEBHOOK = RecordCodec(webhook_rows.WEBHOOK, WebhookRecord)
_DELIVERY = JsonCodec(
    webhook_rows.DELIVERY,
    DeliveryRecord,
    omitted=frozenset({"next_ms", "status", "error"}),
)


def webhook_key(webhook: int) -> Key:
    """Return the key of a webhook's row."""
    return Key(WEBHOOKS, f"{webhook:012d}")


def deliveries_partition(webhook: int) -> str:
    """Return the partition of a webhook's deliveries."""
    return webhook_rows.DELIVERY.partition_of(f"{webhook:012d}")


def delivery_id(event_ms: int, event_id: str) -> str:
    """Return the id of the deliveries of an event to a webhook, which is also the sort key.

    Args:
        event_ms: the time of the event, in epoch ms.
    """
    return f"{event_ms:014d}.{event_id}"


def encode_webhook(record: WebhookRecord, before: bytes | None = None) -> bytes:
    """Encode a webhook as the body of a row.

    Args:
        record: the webhook.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    return _WEBHOOK.encode(record, before)


def decode_webhook(body: bytes) -> WebhookRecord:
    """Decode the body of a webhook's row. Raises ValueError for an invalid body."""
    return _WEBHOOK.decode(body)


def encode_delivery(record: DeliveryRecord, before: bytes | None = None) -> bytes:
    """Encode a delivery as the body of a row.

    Args:
        record: the delivery.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    return _DELIVERY.encode(record, before)


def decode_delivery(body: bytes) -> DeliveryRecord:
    """Decode the body of a delivery's row. Raises ValueError or TypeError for an invalid body."""
    return _DELIVERY.decode(body)


def event_fields(event: EventRow) -> dict[str, Any]:
    """Return an event as JSON values without the pending deliveries, for records of deliveries."""
    return {name: value for name, value in asdict(event).items() if name != "pending"}


def waiting_record(webhook: int, event: EventRow, now_ms: int) -> DeliveryRecord:
    """Return the record of a delivery before the first attempt."""
    return DeliveryRecord(webhook, event_fields(event), "waiting", next_ms=now_ms)


def delivery_write(record: DeliveryRecord, now_ms: int) -> Put:
    """Return the write that stores or replaces the record of a delivery."""
    sort = delivery_id(record.event["time_ms"], record.event["id"])
    key = Key(deliveries_partition(record.webhook), sort)
    kept_ms = KEPT_FAILED_MS if record.state == "failed" else KEPT_MS
    body = encode_delivery(record)
    return Put(key, now_ms, body, Expect.ANYTHING, now_ms + kept_ms, expires=True)
