"""The queue of events that a user's search method has not acknowledged yet: a ring of blobs.

An event takes 41 bytes and a blob contains 20 events, so adding an event rewrites one row of less
than 1 KB. New events overwrite blobs whose events are all acknowledged, so blobs are never deleted.
A value that a trial reported in place of a metric has a separate blob: the event's number, then
the value.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.method import ExitReason

EVENTS_MAX = 10_000
"""The limit of unacknowledged events, counting future events of open trials."""
EVENTS_PER_BLOB = 20
BLOB_COUNT = EVENTS_MAX // EVENTS_PER_BLOB + 2
"""The number of blobs in the ring."""

_SLOT = struct.Struct("<QB16sqd")
_NUMBER = struct.Struct("<Q")
_NIL_UUID = "00000000-0000-0000-0000-000000000000"
_REASONS = tuple(ExitReason)


class EventKind(IntEnum):
    """The kinds of events. The numeric values are stored."""

    INITIAL_OPERATIONS = 0
    TRIAL_CREATED = 1
    TRIAL_PROGRESS = 2
    VALIDATION_COMPLETED = 3
    TRIAL_EXITED_EARLY = 4
    TRIAL_CLOSED = 5
    VALUE_REPORTED = 6
    """A completed validation whose value is in a separate blob. Used only in storage:
    `read_events` returns such an event as VALIDATION_COMPLETED.
    """


class QueuedEvent(NamedTuple):
    """An event for the user's search method."""

    kind: EventKind
    request_id: str = _NIL_UUID
    """The trial's UUID. The nil UUID for an event that concerns no trial."""
    length: int = 0
    """The length of a completed validation, otherwise 0."""
    value: float = 0.0
    """The metric of a completed validation, or the units that a trial has trained so far."""
    reason: ExitReason | None = None
    """The reason of an early exit."""
    reported: str = ""
    """JSON that a trial reported in place of a metric, or ""."""


def write_event(blobs: BlobStore, number: int, event: QueuedEvent) -> None:
    """Write event `number`, counted from 1, into the ring. Overwrites the slot's older event."""
    name, place = _slot_position(number)
    blob = bytearray(blobs.read(name) or b"")
    blob.extend(bytes(max(0, place + _SLOT.size - len(blob))))
    # A slot stores a reason in the field for the length: no event has both.
    length = event.length if event.reason is None else _REASONS.index(event.reason)
    kind = EventKind.VALUE_REPORTED if event.reported else event.kind
    _SLOT.pack_into(blob, place, number, kind, UUID(event.request_id).bytes, length, event.value)
    blobs.write(name, bytes(blob))
    if event.reported:
        blobs.write(_value_name(number), _NUMBER.pack(number) + event.reported.encode())


def read_events(blobs: BlobStore, first: int, last: int) -> Iterator[tuple[int, QueuedEvent]]:
    """Yield the numbers and events from `first` to `last`.

    Stop early at an event that is overwritten or not written yet. The caller may have read `first`
    and `last` earlier than the blobs.
    """
    latest: tuple[str, bytes] = ("", b"")
    for number in range(first, last + 1):
        name, place = _slot_position(number)
        if name != latest[0]:
            latest = (name, blobs.read(name) or b"")
        if place + _SLOT.size > len(latest[1]):
            return
        stored, kind, request_id, length, value = _SLOT.unpack_from(latest[1], place)
        if stored != number:
            return
        event = QueuedEvent(EventKind(kind), str(UUID(bytes=request_id)), length, value)
        if event.kind is EventKind.TRIAL_EXITED_EARLY:
            event = event._replace(length=0, reason=_REASONS[length])
        if event.kind is EventKind.VALUE_REPORTED:
            blob = blobs.read(_value_name(number)) or b""
            if blob[: _NUMBER.size] != _NUMBER.pack(number):
                return
            reported = blob[_NUMBER.size :].decode()
            event = event._replace(kind=EventKind.VALIDATION_COMPLETED, reported=reported)
        yield number, event


def _slot_position(number: int) -> tuple[str, int]:
    """Return the name of the blob and the byte offset of event `number`."""
    blob, slot = divmod(number - 1, EVENTS_PER_BLOB)
    return f"events/{blob % BLOB_COUNT}", slot * _SLOT.size


def _value_name(number: int) -> str:
    """Return the name of the blob for the reported value of event `number`."""
    return f"values/{number % (BLOB_COUNT * EVENTS_PER_BLOB)}"
