"""The queue of events that a user's search method has not acknowledged yet: a ring of blobs.

An event takes 41 bytes and a blob 20 of them, so that one event more rewrites one row of less than
1 KB. A blob is used again once all events in it are acknowledged: nothing has to be deleted. What a
trial reported in the place of a metric is in a blob of its own, behind the number of its event.
"""

import struct
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple
from uuid import UUID

from control_plane.searchers.blob_store import BlobStore
from control_plane.searchers.method import ExitReason

# Events that may wait for a method: unacknowledged ones, and those its trials can yet make.
EVENTS_MAX = 10_000
EVENTS_PER_BLOB = 20
BLOB_COUNT = EVENTS_MAX // EVENTS_PER_BLOB + 2

_SLOT = struct.Struct("<QB16sqd")
_NUMBER = struct.Struct("<Q")
_NOBODY = "00000000-0000-0000-0000-000000000000"
_REASONS = tuple(ExitReason)


class EventKind(IntEnum):
    """The kinds of events. The numbers are stored."""

    INITIAL_OPERATIONS = 0
    TRIAL_CREATED = 1
    TRIAL_PROGRESS = 2
    VALIDATION_COMPLETED = 3
    TRIAL_EXITED_EARLY = 4
    TRIAL_CLOSED = 5
    # Of which a blob says more than one number.
    VALUE_REPORTED = 6


class QueuedEvent(NamedTuple):
    """An event for the method; `value` is the metric of a validation at `length`, or how many units
    a trial has trained. `reported` is what a trial gave in the place of a metric, as JSON.
    """

    kind: EventKind
    request_id: str = _NOBODY
    length: int = 0
    value: float = 0.0
    reason: ExitReason | None = None
    reported: str = ""


def write_event(blobs: BlobStore, number: int, event: QueuedEvent) -> None:
    """Write event `number`, counted from 1, into its slot."""
    name, place = _slot_position(number)
    blob = bytearray(blobs.read(name) or b"")
    blob.extend(bytes(max(0, place + _SLOT.size - len(blob))))
    # A reason stands where a validation has its length.
    length = event.length if event.reason is None else _REASONS.index(event.reason)
    kind = EventKind.VALUE_REPORTED if event.reported else event.kind
    _SLOT.pack_into(blob, place, number, kind, UUID(event.request_id).bytes, length, event.value)
    blobs.write(name, bytes(blob))
    if event.reported:
        blobs.write(_value_name(number), _NUMBER.pack(number) + event.reported.encode())


def read_events(blobs: BlobStore, first: int, last: int) -> Iterator[tuple[int, QueuedEvent]]:
    """Yield events `first` to `last` with their numbers; stop early at one that is overwritten or
    not written yet, since the blobs may have been read at another moment than the numbers.
    """
    known: tuple[str, bytes] = ("", b"")
    for number in range(first, last + 1):
        name, place = _slot_position(number)
        if name != known[0]:
            known = (name, blobs.read(name) or b"")
        if place + _SLOT.size > len(known[1]):
            return
        stored, kind, request_id, length, value = _SLOT.unpack_from(known[1], place)
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
    blob, slot = divmod(number - 1, EVENTS_PER_BLOB)
    return f"events/{blob % BLOB_COUNT}", slot * _SLOT.size


def _value_name(number: int) -> str:
    return f"values/{number % (BLOB_COUNT * EVENTS_PER_BLOB)}"
