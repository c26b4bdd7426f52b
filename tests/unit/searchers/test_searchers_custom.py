"""A search that a method outside drives: what it tells, what it takes, and what it refuses."""

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
    """Why a post is refused, which changes nothing."""
    state, contents = search.state, dict(search.blobs.contents)
    with pytest.raises(PostRefused) as refused:
        search.post(*operations, **post)
    assert search.state == state
    assert search.blobs.contents == contents
    return refused.value


def test_it_begins_by_asking_the_method_how() -> None:
    search = CustomSearchDriver()
    assert search.events() == [QueuedEvent(EventKind.INITIAL_OPERATIONS)]
    assert not search.state.shutdown


def test_a_trial_is_made_under_the_methods_request_id_with_its_first_length() -> None:
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


def test_a_trial_without_a_length_waits_for_one() -> None:
    search = CustomSearchDriver()
    [made] = search.post(create_operation(1))
    assert isinstance(made, CreateTrial)
    assert made.length is None
    assert search.post(validate_after_operation(1, 4)) == (TrainTo(0, 4),)
    assert search.post(close_operation(1)) == (Close(0),)


def test_lengths_are_trained_to_one_after_the_other_and_each_validation_is_told() -> None:
    search = CustomSearchDriver()
    [made] = search.post(
        create_operation(1),
        validate_after_operation(1, 2),
        validate_after_operation(1, 5),
        close_operation(1),
    )
    assert isinstance(made, CreateTrial)
    # It is not to end with the first of its lengths.
    assert (made.length, made.closed) == (2, False)
    assert search.send_event(TrialLengthReached(0, 2, 0.5)) == (TrainTo(0, 5), Close(0))
    assert search.send_event(TrialLengthReached(0, 5, 0.25)) == ()
    assert search.events()[1:] == [
        QueuedEvent(EventKind.VALIDATION_COMPLETED, request_id(1), 2, 0.5),
        QueuedEvent(EventKind.VALIDATION_COMPLETED, request_id(1), 5, 0.25),
    ]


def test_a_value_in_the_place_of_a_metric_is_told_with_its_validation() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 2))
    search.send_event(TrialLengthReached(0, 2, 0.5, '{"loss": 0.5}'))
    [event] = search.events()
    assert (event.kind, event.reported) == (EventKind.VALIDATION_COMPLETED, '{"loss": 0.5}')


def test_a_length_that_is_reached_twice_is_told_once() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 2))
    search.send_event(TrialLengthReached(0, 2, 0.5))
    search.send_event(TrialLengthReached(0, 2, 0.5))
    assert len(search.events()) == 1


def test_the_end_of_a_trial_is_told_and_an_early_one_with_its_reason_before() -> None:
    search = begin_custom_search(create_operation(1), create_operation(2))
    search.send_event(TrialClosed(0, 0.0))
    for reason in ExitReason:
        search = begin_custom_search(create_operation(1), create_operation(2))
        search.send_event(TrialExitedEarly(1, reason, 0.0))
        assert search.events() == [
            QueuedEvent(EventKind.TRIAL_EXITED_EARLY, request_id(2), reason=reason),
            QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2)),
        ]


def test_the_search_goes_on_when_all_its_trials_have_ended() -> None:
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
def test_the_method_ends_it(how: dict[str, object], end: Shutdown) -> None:
    search = begin_custom_search(create_operation(1))
    progressed: dict[str, object] = {"type": "set_searcher_progress", "progress": 0.5}
    assert search.post(shutdown_operation(**how), progressed) == (end,)
    assert search.state.shutdown


def test_progress_is_what_the_method_says() -> None:
    search = CustomSearchDriver()
    for share in (0.5, 0.25, 1):
        search.post({"type": "set_searcher_progress", "progress": share})
        assert search.progress == share


def test_only_the_latest_progress_of_a_trial_waits() -> None:
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


def test_acknowledged_events_are_told_no_more_and_never_come_back() -> None:
    search = begin_custom_search(create_operation(1), create_operation(2))
    search.send_event(TrialClosed(0, 0.0))
    search.send_event(TrialClosed(1, 0.0))
    newest = search.method.newest
    search.post(acknowledged=newest - 1)
    assert search.events() == [QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2))]
    search.post(acknowledged=1)
    assert search.events() == [QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2))]


def test_the_last_post_may_be_repeated_and_changes_nothing() -> None:
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


def test_a_trial_that_is_created_again_is_there_once() -> None:
    search = begin_custom_search(create_operation(1))
    assert search.post(create_operation(1), validate_after_operation(1, 3)) == (TrainTo(0, 3),)
    assert search.method.trials == 1


def test_what_is_asked_of_a_trial_that_has_just_ended_comes_too_late() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 5))
    search.send_event(TrialExitedEarly(0, ExitReason.INVALID_HP, 0.0))
    assert search.post(validate_after_operation(1, 7), close_operation(1)) == ()
    assert search.method.awaited == 0


WRONG: list[tuple[list[dict[str, object]], str]] = [
    (
        [validate_after_operation(9, 3)],
        f"operations[0].request_id: there is no trial {request_id(9)}; create it first",
    ),
    (
        [create_operation(9), close_operation(8)],
        f"operations[1].request_id: there is no trial {request_id(8)}",
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
    ([shutdown_operation(), create_operation(9)], "operations[1]: create comes after a shutdown"),
    (
        [shutdown_operation(), shutdown_operation()],
        "operations[1]: shutdown comes after a shutdown",
    ),
]


@pytest.mark.parametrize(("operations", "text"), WRONG)
def test_a_post_with_one_wrong_operation_is_refused_as_a_whole(
    operations: list[dict[str, object]], text: str
) -> None:
    search = begin_custom_search(
        create_operation(1), validate_after_operation(1, 5), create_operation(2), close_operation(2)
    )
    error = refusal(search, create_operation(7), *operations)
    index = text[len("operations[")]
    assert str(error).startswith(text.replace(f"[{index}]", f"[{int(index) + 1}]", 1))
    assert error.code == "invalid"


def test_another_post_than_the_next_one_shows_that_somebody_else_posts() -> None:
    search = begin_custom_search(create_operation(1))
    assert "another process" in str(refusal(search, create_operation(2), number=2))
    for number in (1, 4):
        error = refusal(search, number=number)
        assert str(error).startswith(f"post: got {number}; expected 3")
        assert error.code == "conflict"


def test_an_event_that_was_not_told_cannot_be_acknowledged() -> None:
    search = begin_custom_search(create_operation(1))
    newest = search.method.newest
    error = refusal(search, acknowledged=newest + 1)
    expected = f"acknowledged: got {newest + 1}; expected at most {newest}, the newest event"
    assert str(error) == expected


def test_so_many_trials_and_no_more() -> None:
    search = CustomSearchDriver()
    search.state = replace(search.state, method=replace(search.method, trials=TRIALS_MAX))
    error = refusal(search, create_operation(1))
    expected = f"operations[0]: there are {TRIALS_MAX} trials, and no more are allowed"
    assert str(error) == expected


def test_so_many_lengths_of_a_trial_wait_and_no_more() -> None:
    search = begin_custom_search(create_operation(1))
    for first in range(1, LENGTHS_MAX, 10):
        search.post(*(validate_after_operation(1, length) for length in range(first, first + 10)))
    assert f"{LENGTHS_MAX} lengths" in str(
        refusal(search, validate_after_operation(1, LENGTHS_MAX + 1))
    )
    # 50 of them stand in one piece of at most 1 KB.
    assert max(map(len, search.blobs.contents.values())) <= 1024


def test_no_post_lets_more_events_come_to_wait_than_there_is_room_for() -> None:
    # A trial is told to be made, may progress, exit early and end: 4. With nothing acknowledged
    # the first event and 2,499 trials make 9,997; 3 are left, and another trial needs 4.
    search = CustomSearchDriver()
    made = 0
    while made < 2_499:
        some = min(OPERATIONS_MAX, 2_499 - made)
        search.post(*(create_operation(made + n) for n in range(some)), acknowledged=0)
        made += some
    error = refusal(search, create_operation(made), acknowledged=0)
    assert str(error) == (
        "operations: up to 10001 events could be waiting, of 2500 open trials and 2501 "
        "unacknowledged "
        "ones; at most 10000 may: acknowledge events or close trials first"
    )
    # Whoever only acknowledges or ends something is never refused.
    search.post(close_operation(0), acknowledged=0)
    search.post(create_operation(made))


def test_a_full_queue_is_told_whole_and_stays_in_small_pieces() -> None:
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
    # Four of each trial.
    events = search.events()
    assert len(events) == 4 * 2_490 <= EVENTS_MAX
    assert events[0] == QueuedEvent(EventKind.TRIAL_CREATED, request_id(0))
    assert events[-1] == QueuedEvent(EventKind.TRIAL_CLOSED, request_id(2_489))
    queue = {name: blob for name, blob in search.blobs.contents.items() if "events/" in name}
    assert max(map(len, queue.values())) <= 1024
    assert len(queue) <= BLOB_COUNT


def test_the_worst_metric_there_is_stands_for_none() -> None:
    search = begin_custom_search(create_operation(1), validate_after_operation(1, 5))
    search.send_event(TrialLengthReached(0, 5, float_info.max))
    assert search.events()[-1].value == float_info.max
