"""The ring of events: what is written reads back, until something newer stands in its place."""

from control_plane.searchers.events import PER_PIECE, PIECES, EventKind, Told, read, write
from control_plane.searchers.method import ExitReason
from control_plane.searchers.parts import PartsInMemory

TRIAL = "0000000a-0000-4000-8000-00000000000b"
AROUND = PER_PIECE * PIECES


def metric(number: int) -> Told:
    return Told(EventKind.VALIDATION_COMPLETED, TRIAL, number, number / 8)


def test_events_read_back_as_written_over_the_bounds_of_pieces() -> None:
    parts = PartsInMemory()
    for number in range(1, 3 * PER_PIECE):
        write(parts, number, metric(number))
    found = list(read(parts, 5, 3 * PER_PIECE - 1))
    assert found == [(number, metric(number)) for number in range(5, 3 * PER_PIECE)]
    assert sorted(parts.pieces) == ["events/0", "events/1", "events/2"]


def test_every_kind_reads_back() -> None:
    parts = PartsInMemory()
    told = [
        Told(EventKind.INITIAL_OPERATIONS),
        Told(EventKind.TRIAL_CREATED, TRIAL),
        Told(EventKind.TRIAL_PROGRESS, TRIAL, value=2.5),
        metric(1 << 53),
        *(Told(EventKind.TRIAL_EXITED_EARLY, TRIAL, reason=reason) for reason in ExitReason),
        Told(EventKind.TRIAL_CLOSED, TRIAL),
    ]
    for number, one in enumerate(told, 1):
        write(parts, number, one)
    assert [one for _, one in read(parts, 1, len(told))] == told


def test_a_piece_is_used_again_and_what_stood_there_is_no_more() -> None:
    parts = PartsInMemory()
    for number in range(1, AROUND + 3):
        write(parts, number, metric(number))
    assert len(parts.pieces) == PIECES
    # Events 1 and 2 have made room for AROUND + 1 and AROUND + 2.
    assert list(read(parts, 1, 9)) == []
    assert [number for number, _ in read(parts, AROUND, AROUND + 2)] == [
        AROUND,
        AROUND + 1,
        AROUND + 2,
    ]


def test_what_is_not_written_yet_ends_the_reading() -> None:
    parts = PartsInMemory()
    write(parts, 1, metric(1))
    assert [number for number, _ in read(parts, 1, 40)] == [1]
