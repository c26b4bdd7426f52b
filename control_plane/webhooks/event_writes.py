"""The writes of events that are raised outside actors."""

import logging

from control_plane.actors.event_routes import DAMAGED, ROUTES, decode_routes, matching_webhooks
from control_plane.actors.events import (
    Event,
    EventRow,
    encode_event,
    event_row,
    event_sort_key,
    events_partition,
)
from control_plane.state.table import Expect, Key, Put, StateTable

log = logging.getLogger(__name__)


def event_writes(table: StateTable, event: Event, now_ms: int) -> tuple[Put, ...]:
    """Return the write of an event, for the commit that changes the state of the event's subject.

    Return () if no webhook announces the event. Reads the row with the routes of all webhooks, and
    logs an error for a damaged row. Raises TableError.
    """
    row = table.get(Key(*ROUTES))
    routes, damaged = decode_routes(b"" if row is None else row.body)
    if damaged:
        log.error("event %s of %s: %s", event.type, event.subject, DAMAGED)
    webhooks = matching_webhooks(routes, event.type, event.condition, event.scope)
    return (event_put(event_row(event, webhooks, now_ms), now_ms),) if webhooks else ()


def event_put(row: EventRow, now_ms: int) -> Put:
    """Return the write that creates the row of an event, due at once.

    The write replaces a row of the same number: two events with the same number are the same
    change.
    """
    key = Key(events_partition(row.subject), event_sort_key(row.number))
    return Put(key, now_ms, encode_event(row), Expect.ANYTHING, now_ms)
