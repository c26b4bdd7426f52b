"""Custom searches: queued events, accepted posts and refused posts."""

from dataclasses import replace
from sys import float_info

import pytest

from control_plane.searchers.event_queue import BLOB_COUNT, EVENTS_MAX, EventKind, QueuedEvent
from control_plane.searchers.method import (
    Close,
    CreateTrial,
    ExitReason,
    Shutdown,
    TrainTo,
    TrialClosed,
    TrialExitedEarly,
    TrialLengthReached,
    TrialProgressed,
)
from control_plane.searchers.methods.custom import LENGTHS_MAX
from control_plane.searchers.options import TRIALS_MAX
from control_plane.searchers.posted_operations import OPERATIONS_MAX, PostRefused
from tests.unit.searchers.custom_search import (
    CustomSearchDriver,
    close_operation,
    create_operation,
    request_id,
    shutdown_operation,
    validate_after_operation,
)


def begin_custom_search(*operations: dict[str, object]) -> CustomSearchDriver:
    search = CustomSearchDriver()
    search.post(*operations)
    search.post()
    return search


def refusal(search: CustomSearchDriver, *operations: dict[str, object], **post: int) -> PostRefused:
    """Send a post and return the refusal. Fail if the post changes the search."""
    state, contents = search.state, dict(search.blobs.contents)
    with pytest.raises(PostRefused) as refused:
        search.post(*operations, **post)
    assert search.state == state
    assert search.blobs.contents == contents
    return refused.value


def test_first_event_requests_initial_operations() -> None:
    search = CustomSearchDriver()
    assert search.events() == [QueuedEvent(EventKind.INITIAL_OPERATIONS)]
    assert not search.state.shutdown


def test_trial_has_posted_request_id_and_first_length() -> None:
    search = CustomSearchDriver()
    found = search.post(
        create_operation(1, {"lr": 0.1}),
        validate_after_operation(1, 5),
        create_operation(2),
        validate_after_operation(2, 3),
        close_operation(2),
    )
    first, second = [one for one in found if isinstance(one, CreateTrial)]
    assert (first.trial, first.request_id, first.hparams) == (0, request_id(1), {"lr": 0.1})
    assert (first.length, first.closed) == (5, False)
    assert (second.trial, second.request_id, second.hparams) == (1, request_id(2), {"x": 2})
    assert (second.length, second.closed) == (3, True)
    assert first.seed != second.seed
    assert search.events() == [
        QueuedEvent(EventKind.TRIAL_CREATED, request_id(1)),
        QueuedEvent(EventKind.TRIAL_CREATED, request_id(2)),
    ]


def test_trial_without_length_waits() -> None:
    search = CustomSearchDriver()
    [made] = search.post(create_operation(1))
    assert isinstance(made, CreateTrial)
    assert made.length is None
    assert search.post(validate_after_operation(1, 4)) == (TrainTo(0, 4),)
    assert search.post(close_operation(1)) == (Close(0),)


def test_lengths_are_trained_in_order_and_validations_are_queued() -> None:
    search = CustomSearchDriver()
    [made] = search.post(
        create_operation(1),
        validate_after_operation(1, 2),
        validate_after_operation(1, 5),
        close_operation(1),
    )
    assert isinstance(made, CreateTrial)
    # The trial has a second length, so the trial is not closed yet.
    assert (made.length, made.closed) == (2, False)
    assert search.send_event(TrialLengthReached(0, 2, 0.5)) == (TrainTo(0, 5), Close(0))
    assert search.send_event(TrialLengthReached(0, 5, 0.25)) == ()
    assert search.events()[1:] == [
        QueuedEvent(EventKind.VALIDATION_COMPLETED, request_id(1), 2, 0.5),
        QueuedEvent(EventKind.VALIDATION_COMPLETED, request_id(1), 5, 0.25),
    ]


def test_reported_value_is_queued_with_validation() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 2))
    search.send_event(TrialLengthReached(0, 2, 0.5, '{"loss": 0.5}'))
    [event] = search.events()
    assert (event.kind, event.reported) == (EventKind.VALIDATION_COMPLETED, '{"loss": 0.5}')


def test_repeated_length_report_is_queued_once() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 2))
    search.send_event(TrialLengthReached(0, 2, 0.5))
    search.send_event(TrialLengthReached(0, 2, 0.5))
    assert len(search.events()) == 1


def test_early_exit_queues_reason_and_end() -> None:
    search = begin_custom_search(create_operation(1), create_operation(2))
    search.send_event(TrialClosed(0, 0.0))
    for reason in ExitReason:
        search = begin_custom_search(create_operation(1), create_operation(2))
        search.send_event(TrialExitedEarly(1, reason, 0.0))
        assert search.events() == [
            QueuedEvent(EventKind.TRIAL_EXITED_EARLY, request_id(2), reason=reason),
            QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2)),
        ]


def test_search_continues_after_all_trials_ended() -> None:
    search = begin_custom_search(create_operation(1))
    assert search.send_event(TrialExitedEarly(0, ExitReason.ERRORED, 0.0)) == ()
    assert not search.state.shutdown
    [made] = search.post(create_operation(2))
    assert isinstance(made, CreateTrial)


@pytest.mark.parametrize(
    ("how", "end"),
    [
        ({}, Shutdown(failure=False)),
        ({"cancel": True}, Shutdown(failure=False, cancel=True)),
        ({"failure": True}, Shutdown(failure=True)),
    ],
)
def test_posted_shutdown_ends_search(how: dict[str, object], end: Shutdown) -> None:
    search = begin_custom_search(create_operation(1))
    progressed: dict[str, object] = {"type": "set_searcher_progress", "progress": 0.5}
    assert search.post(shutdown_operation(**how), progressed) == (end,)
    assert search.state.shutdown


def test_progress_is_posted_progress() -> None:
    search = CustomSearchDriver()
    for share in (0.5, 0.25, 1):
        search.post({"type": "set_searcher_progress", "progress": share})
        assert search.progress == share


def test_new_progress_replaces_queued_progress() -> None:
    search = begin_custom_search(create_operation(1), create_operation(2))
    search.send_event(TrialProgressed(0, 1.5))
    search.send_event(TrialProgressed(1, 4.0))
    search.send_event(TrialProgressed(0, 2.0))
    assert search.events() == [
        QueuedEvent(EventKind.TRIAL_PROGRESS, request_id(1), value=3.5),
        QueuedEvent(EventKind.TRIAL_PROGRESS, request_id(2), value=4.0),
    ]
    search.post()
    search.send_event(TrialProgressed(0, 1.0))
    assert search.events() == [QueuedEvent(EventKind.TRIAL_PROGRESS, request_id(1), value=4.5)]


def test_acknowledged_events_are_not_read_again() -> None:
    search = begin_custom_search(create_operation(1), create_operation(2))
    search.send_event(TrialClosed(0, 0.0))
    search.send_event(TrialClosed(1, 0.0))
    newest = search.method.newest
    search.post(acknowledged=newest - 1)
    assert search.events() == [QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2))]
    search.post(acknowledged=1)
    assert search.events() == [QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2))]


def test_repeated_post_changes_no_state() -> None:
    search = CustomSearchDriver()
    operations = (
        create_operation(1),
        validate_after_operation(1, 5),
        close_operation(1),
        create_operation(2),
    )
    search.post(*operations, acknowledged=1, number=1)
    state, contents = search.state, dict(search.blobs.contents)
    assert search.post(*operations, acknowledged=1, number=1) == ()
    assert search.state == state
    assert search.blobs.contents == contents


def test_repeated_create_creates_a_single_trial() -> None:
    search = begin_custom_search(create_operation(1))
    assert search.post(create_operation(1), validate_after_operation(1, 3)) == (TrainTo(0, 3),)
    assert search.method.trials == 1


def test_operations_for_ended_trial_have_no_effect() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 5))
    search.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    assert search.post(validate_after_operation(1, 7), close_operation(1)) == ()
    assert search.method.awaited == 0


WRONG: list[tuple[list[dict[str, object]], str]] = [
    (
        [validate_after_operation(9, 3)],
        f"operations[0].request_id: trial {request_id(9)} does not exist; create the trial first",
    ),
    (
        [create_operation(9), close_operation(8)],
        f"operations[1].request_id: trial {request_id(8)} does not exist",
    ),
    (
        [close_operation(1), close_operation(1)],
        f"operations[1]: trial {request_id(1)} is closed already",
    ),
    ([close_operation(2)], f"operations[0]: trial {request_id(2)} is closed already"),
    (
        [validate_after_operation(2, 9)],
        f"operations[0]: trial {request_id(2)} is closed and trains no further",
    ),
    (
        [validate_after_operation(1, 4)],
        "operations[0].length: got 4; expected more than 5, which was",
    ),
    (
        [validate_after_operation(1, 5)],
        "operations[0].length: got 5; expected more than 5, which was",
    ),
    (
        [validate_after_operation(1, 7), validate_after_operation(1, 6)],
        "operations[1].length: got 6; expected more than 7",
    ),
    (
        [create_operation(1, {"x": 3})],
        f"operations[0]: request id {request_id(1)} belongs to another trial",
    ),
    (
        [create_operation(9), create_operation(9, {"x": 8})],
        f"operations[1]: request id {request_id(9)} belongs to another",
    ),
    ([shutdown_operation(), create_operation(9)], "operations[1]: create follows a shutdown"),
    (
        [shutdown_operation(), shutdown_operation()],
        "operations[1]: shutdown follows a shutdown",
    ),
]


@pytest.mark.parametrize(("operations", "text"), WRONG)
def test_wrong_operation_refuses_the_whole_post(
    operations: list[dict[str, object]], text: str
) -> None:
    search = begin_custom_search(
        create_operation(1), validate_after_operation(1, 5), create_operation(2), close_operation(2)
    )
    error = refusal(search, create_operation(7), *operations)
    index = text[len("operations[")]
    assert str(error).startswith(text.replace(f"[{index}]", f"[{int(index) + 1}]", 1))
    assert error.code == "invalid"


def test_unexpected_post_number_is_conflict() -> None:
    search = begin_custom_search(create_operation(1))
    assert "another process" in str(refusal(search, create_operation(2), number=2))
    for number in (1, 4):
        error = refusal(search, number=number)
        assert str(error).startswith(f"post: got {number}; expected 3")
        assert error.code == "conflict"


def test_future_event_cannot_be_acknowledged() -> None:
    search = begin_custom_search(create_operation(1))
    newest = search.method.newest
    error = refusal(search, acknowledged=newest + 1)
    expected = f"acknowledged: got {newest + 1}; expected at most {newest}, the newest event"
    assert str(error) == expected


def test_number_of_trials_is_limited() -> None:
    search = CustomSearchDriver()
    search.state = replace(search.state, method=replace(search.method, trials=TRIALS_MAX))
    error = refusal(search, create_operation(1))
    expected = f"operations[0]: the search has {TRIALS_MAX} trials, which is the limit"
    assert str(error) == expected


def test_number_of_waiting_lengths_is_limited() -> None:
    search = begin_custom_search(create_operation(1))
    for first in range(1, LENGTHS_MAX, 10):
        search.post(*(validate_after_operation(1, length) for length in range(first, first + 10)))
    assert f"{LENGTHS_MAX} lengths" in str(
        refusal(search, validate_after_operation(1, LENGTHS_MAX + 1))
    )
    # The blob with 50 lengths has at most 1 KB.
    assert max(map(len, search.blobs.contents.values())) <= 1024


def test_post_is_refused_if_events_could_exceed_queue() -> None:
    # A trial has up to 4 events: created, progress, early exit and end. Without acknowledgements,
    # the first event and 2,499 trials need 9,997 of 10,000 places. Another trial needs 4 places.
    search = CustomSearchDriver()
    made = 0
    while made < 2_499:
        some = min(OPERATIONS_MAX, 2_499 - made)
        search.post(*(create_operation(made + n) for n in range(some)), acknowledged=0)
        made += some
    error = refusal(search, create_operation(made), acknowledged=0)
    assert str(error) == (
        "operations: up to 10001 events could wait: 2501 unacknowledged events, and future events "
        "of 2500 open trials; at most 10000 are allowed. Acknowledge events or close trials first"
    )
    # A post that only acknowledges or closes is never refused.
    search.post(close_operation(0), acknowledged=0)
    search.post(create_operation(made))


def test_full_queue_is_read_completely_from_small_blobs() -> None:
    search = CustomSearchDriver()
    search.skip_to(123_456)
    made = 0
    while made < 2_490:
        some = min(OPERATIONS_MAX, 2_490 - made)
        search.post(*(create_operation(made + n) for n in range(some)), acknowledged=0)
        made += some
    for number in range(made):
        search.send_event(TrialProgressed(number, float(number)))
        search.send_event(TrialExitedEarly(number, ExitReason.ERRORED, float(number)))
    # Four events for each trial.
    events = search.events()
    assert len(events) == 4 * 2_490 <= EVENTS_MAX
    assert events[0] == QueuedEvent(EventKind.TRIAL_CREATED, request_id(0))
    assert events[-1] == QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2_489))
    queue = {name: blob for name, blob in search.blobs.contents.items() if "events/" in name}
    assert max(map(len, queue.values())) <= 1024
    assert len(queue) <= BLOB_COUNT


def test_worst_metric_is_queued_unchanged() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 5))
    search.send_event(TrialLengthReached(0, 5, float_info.max))
    assert search.events()[-1].value == float_info.max
