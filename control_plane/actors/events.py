"""Events that webhooks announce, and the rows of events.

An event's row is written in the commit that changes the state. The events of a subject (an
experiment, a model, an alarm) are numbered in order, and are delivered in this order.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Any, NamedTuple
from uuid import UUID

from control_plane.actors.event_routes import (
    EventCondition,
    EventScope,
    EventType,
    Route,
    matching_webhooks,
)
from control_plane.actors.step import StepContext
from control_plane.rows import webhook_rows
from control_plane.rows.json_codec import JsonCodec

RECOVERY_DELAY_MS = 5_000
"""The time after which the tick delivers an event that no process has delivered, in ms."""
TITLE_CHARACTERS_MAX = 300
TEXT_CHARACTERS_MAX = 4_000


class Pending(NamedTuple):
    """The delivery of an event to a webhook before the end of the delivery. Times are epoch ms."""

    attempts: int = 0
    """The number of failed attempts."""
    next_ms: int = 0
    """The time of the next attempt. 0: at once."""
    claimed_ms: int = 0
    """The time at which a process began an attempt. 0: no process attempts the delivery."""
    retried_ms: int = 0
    """The time at which a user requested the delivery again. Later events do not wait for such a
    delivery. 0: no user did.
    """


@dataclass(frozen=True, slots=True)
class EventRow:
    """An event, and the webhooks that have not received the event yet."""

    id: str
    """The id of the event, a UUID. Receivers recognize repeated deliveries by the id."""
    type: str
    """The value of an EventType."""
    subject: str
    """The object whose events are in order, for example `experiment#7`."""
    number: int
    """The number of the event among the events of the subject, ascending."""
    time_ms: int
    """The time of the event, in epoch ms."""
    title: str
    """A sentence about the event for users, without a full stop."""
    text: str = ""
    """More about the event for users, or ""."""
    condition: Mapping[str, Any] = field(default_factory=dict)
    """The values that triggers compare, for receivers."""
    data: Mapping[str, Any] = field(default_factory=dict)
    """The object of the event for receivers, by its kind, for example `experiment`."""
    pending: Mapping[int, Pending] = field(default_factory=dict)
    """The deliveries that have not ended, by the id of the webhook."""


@dataclass(frozen=True, slots=True)
class Event:
    """An event before the selection of webhooks."""

    type: EventType
    subject: str
    number: int
    """The number of the event among the events of the subject, ascending."""
    title: str
    text: str = ""
    condition: EventCondition = field(default_factory=EventCondition)
    data: Mapping[str, Any] = field(default_factory=dict)
    scope: EventScope = field(default_factory=EventScope)


def raise_event(routes: tuple[Route, ...], event: Event, context: StepContext) -> bool:
    """Write the row of an event in a step, if any webhook announces the event.

    Return whether the row is written. The caller counts written events in its state, so that the
    number of each event is new.

    Args:
        routes: the routes of all webhooks (`read_routes`).
    """
    webhooks = matching_webhooks(routes, event.type, event.condition, event.scope)
    if not webhooks:
        return False
    row = event_row(event, webhooks, context.now_ms)
    context.write_row(
        events_partition(event.subject),
        event_sort_key(event.number),
        encode_event(row),
        due_ms=context.now_ms + RECOVERY_DELAY_MS,
    )
    return True


def event_row(event: Event, webhooks: tuple[int, ...], now_ms: int) -> EventRow:
    """Build the row of an event for the selected webhooks. Long titles and texts are cut."""
    return EventRow(
        id=_event_id(event, now_ms),
        type=event.type.value,
        subject=event.subject,
        number=event.number,
        time_ms=now_ms,
        title=_cut(event.title, TITLE_CHARACTERS_MAX),
        text=_cut(event.text, TEXT_CHARACTERS_MAX),
        condition=_condition_fields(event.condition),
        data=event.data,
        pending={webhook: Pending() for webhook in webhooks},
    )


def events_partition(subject: str) -> str:
    """Return the partition of a subject's events."""
    return webhook_rows.EVENT.partition_of(subject)


def event_sort_key(number: int) -> str:
    """Return the sort key of an event's row by the event's number."""
    return f"{number:016d}"


def encode_event(row: EventRow, before: bytes | None = None) -> bytes:
    """Encode an event as the body of a row.

    Args:
        row: the event.
        before: the body of the row that is replaced, with fields of newer versions to keep.
    """
    return _CODEC.encode(row, before)


def decode_event(body: bytes) -> EventRow:
    """Decode the body of an event's row. Raises ValueError or TypeError for an invalid body."""
    return _CODEC.decode(body)


def _event_id(event: Event, now_ms: int) -> str:
    """Return the id of an event. The same event of a replayed step has the same id."""
    text = f"{event.subject}/{event.number}/{now_ms}/{event.type}"
    return str(UUID(bytes=sha256(text.encode()).digest()[:16], version=4))


def _condition_fields(condition: EventCondition) -> dict[str, Any]:
    """Return the fields of a condition that are not empty, as JSON values."""
    named = {
        "state": condition.state,
        "level": condition.level,
        "values": dict(condition.values),
        "pattern": condition.pattern,
    }
    return {name: value for name, value in named.items() if value}


def _cut(text: str, characters_max: int) -> str:
    """Return a text of at most `characters_max` characters. A cut text ends in an ellipsis."""
    return text if len(text) <= characters_max else f"{text[: characters_max - 1]}…"


def _pending(values: Mapping[str, Sequence[Any]]) -> dict[int, Pending]:
    """Build the pending deliveries from decoded JSON. Values of newer versions are ignored."""
    size = len(Pending._fields)
    return {int(webhook): Pending(*made[:size]) for webhook, made in values.items()}


_CODEC = JsonCodec(webhook_rows.EVENT, EventRow, {"pending": _pending})
