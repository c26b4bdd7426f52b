"""The ring of queued events: written events can be read until newer events overwrite the slots."""

from control_plane.searchers.blob_store import MemoryBlobStore
from control_plane.searchers.event_queue import (
    BLOB_COUNT,
    EVENTS_PER_BLOB,
    EventKind,
    QueuedEvent,
    read_events,
    write_event,
)
from control_plane.searchers.method import ExitReason

TRIAL = "0000000a-0000-4000-8000-00000000000b"
AROUND = EVENTS_PER_BLOB * BLOB_COUNT


def metric_event(number: int) -> QueuedEvent:
    return QueuedEvent(EventKind.VALIDATION_COMPLETED, TRIAL, number, number / 8)


def test_reads_events_across_blobs() -> None:
    blobs = MemoryBlobStore()
    for number in range(1, 3 * EVENTS_PER_BLOB):
        write_event(blobs, number, metric_event(number))
    events = list(read_events(blobs, 5, 3 * EVENTS_PER_BLOB - 1))
    assert events == [(number, metric_event(number)) for number in range(5, 3 * EVENTS_PER_BLOB)]
    assert sorted(blobs.contents) == ["events/0", "events/1", "events/2"]


def test_reads_every_kind_of_event() -> None:
    blobs = MemoryBlobStore()
    events = [
        QueuedEvent(EventKind.INITIAL_OPERATIONS),
        QueuedEvent(EventKind.TRIAL_CREATED, TRIAL),
        QueuedEvent(EventKind.TRIAL_PROGRESS, TRIAL, value=2.5),
        metric_event(1 << 53),
        metric_event(3)._replace(reported='{"loss":0.5}'),
        *(QueuedEvent(EventKind.TRIAL_EXITED_EARLY, TRIAL, reason=reason) for reason in ExitReason),
        QueuedEvent(EventKind.TRIAL_CLOSED, TRIAL),
    ]
    for number, one in enumerate(events, 1):
        write_event(blobs, number, one)
    assert [one for _, one in read_events(blobs, 1, len(events))] == events


def test_reused_blob_overwrites_old_events() -> None:
    blobs = MemoryBlobStore()
    for number in range(1, AROUND + 3):
        write_event(blobs, number, metric_event(number))
    assert len(blobs.contents) == BLOB_COUNT
    # Events AROUND + 1 and AROUND + 2 have overwritten events 1 and 2.
    assert list(read_events(blobs, 1, 9)) == []
    assert [number for number, _ in read_events(blobs, AROUND, AROUND + 2)] == [
        AROUND,
        AROUND + 1,
        AROUND + 2,
    ]


def test_reading_stops_at_unwritten_event() -> None:
    blobs = MemoryBlobStore()
    write_event(blobs, 1, metric_event(1))
    assert [number for number, _ in read_events(blobs, 1, 40)] == [1]


def test_reading_stops_at_overwritten_value() -> None:
    blobs = MemoryBlobStore()
    write_event(blobs, 1, metric_event(1)._replace(reported='"a"'))
    write_event(blobs, 1 + AROUND, metric_event(2)._replace(reported='"b"'))
    [(_, event)] = read_events(blobs, 1 + AROUND, 1 + AROUND)
    assert (event.kind, event.reported) == (EventKind.VALIDATION_COMPLETED, '"b"')
    # A newer value has overwritten the value after the reader got the numbers.
    blobs.write(f"values/{1 % AROUND}", b"12345678" + b'"c"')
    assert list(read_events(blobs, 1 + AROUND, 1 + AROUND)) == []
