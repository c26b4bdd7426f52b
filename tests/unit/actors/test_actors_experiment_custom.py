"""An experiment with an external search method: the effects of posts."""

from dataclasses import replace
from typing import Any

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import (
    CancelRequested,
    KillRequested,
    OperationsPosted,
    PauseRequested,
    TrialEnded,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.actors.messages.pool import JobChanged
from control_plane.actors.messages.trial import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused, Send
from control_plane.evolve import evolve
from control_plane.searchers.era_rules import LENGTH_ERA
from control_plane.searchers.method import ExitReason
from control_plane.searchers.methods.custom import CustomPlan
from control_plane.searchers.posted_operations import PostedOperations, parse_operations
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Group
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import experiment_submitted
from tests.unit.searchers.custom_search import (
    close_operation,
    create_operation,
    request_id,
    shutdown_operation,
    validate_after_operation,
)

PLAN = SearchPlan(CustomPlan("batches", LENGTH_ERA), Group({}), 7)


def custom_experiment(*, paused: bool = False, **settings: Any) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    message = experiment_submitted(PLAN, searcher="custom", paused=paused)
    actor.deliver(replace(message, settings=replace(message.settings, **settings)))
    return actor


def next_post(
    actor: ActorHarness, *operations: dict[str, object], again: bool = False
) -> OperationsPosted:
    """Return the next post, or repeat the last post."""
    method = actor.state.search.method
    number = method.post if again else method.post + 1
    return OperationsPosted(PostedOperations(number, method.newest, parse_operations(operations)))


def post_operations(actor: ActorHarness, *operations: dict[str, object]) -> Any:
    return actor.deliver(next_post(actor, *operations))


def test_custom_search_waits_for_the_method() -> None:
    actor = custom_experiment()
    assert actor.state.status is Status.ACTIVE
    assert actor.sent == [Send("pool#default", JobChanged(1))]
    assert actor.state.search.method.newest == 1


def test_post_creates_trials_and_the_reply_has_the_post_number() -> None:
    actor = custom_experiment()
    reply = post_operations(
        actor, create_operation(5), validate_after_operation(5, 3), create_operation(6)
    )
    # Two trials were created, which are events 2 and 3.
    assert reply == {"post": 1, "acknowledged": 1, "newest": 3}
    first, second = actor.all_messages(TrialCreated)
    assert (first.request_id, first.hparams, first.length) == (request_id(5), {"x": 5}, 3)
    assert (second.request_id, second.length) == (request_id(6), None)
    assert actor.state.trials_open == 2


def test_post_assigns_work_and_closes_trials() -> None:
    actor = custom_experiment()
    post_operations(actor, create_operation(5), validate_after_operation(5, 3))
    actor.deliver(TrialLengthReached(0, 3, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(None, False)]
    post_operations(actor, validate_after_operation(5, 7), close_operation(5))
    assert actor.messages_to("trial#1") == [WorkAssigned(7, True)]


def test_next_of_several_lengths_is_assigned_without_the_method() -> None:
    actor = custom_experiment()
    post_operations(
        actor, create_operation(5), validate_after_operation(5, 3), validate_after_operation(5, 7)
    )
    actor.deliver(TrialLengthReached(0, 3, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(7, False)]


def test_repeated_post_creates_no_second_trial() -> None:
    actor = custom_experiment()
    message = next_post(actor, create_operation(5), validate_after_operation(5, 3))
    first = actor.deliver(message)
    before = actor.state
    assert actor.deliver(message) == first
    assert actor.state == before
    assert actor.sent == []


def test_refused_post_changes_no_state() -> None:
    actor = custom_experiment()
    before, parts = actor.state, dict(actor.parts)
    with pytest.raises(CommandRefused) as refused:
        post_operations(actor, create_operation(5), close_operation(6))
    assert str(refused.value).startswith("operations[1].request_id: trial ")
    assert refused.value.code == "invalid"
    assert (actor.state, actor.parts) == (before, parts)
    assert post_operations(actor, create_operation(5))["post"] == 1


@pytest.mark.parametrize("size", [None, "64", 0, 8.0, True])
def test_epochs_need_a_batch_size(size: object) -> None:
    hparams = {"x": 1} if size is None else {"global_batch_size": size}
    actor = custom_experiment(lengths=Lengths("epochs", records_per_epoch=640))
    with pytest.raises(CommandRefused) as refused:
        post_operations(actor, create_operation(1, hparams))
    assert refused.value.code == "invalid"
    assert str(refused.value) == (
        "operations[0].hparams: global_batch_size must be an integer of at least 1, to count "
        "epochs in batches"
    )
    assert post_operations(actor, create_operation(1, {"global_batch_size": 64}))
    # Only the trials know the number of batches of these epochs.
    assert post_operations(
        custom_experiment(lengths=Lengths("epochs")), create_operation(1, hparams)
    )


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, Status.COMPLETED),
        ({"cancel": True}, Status.CANCELED),
        ({"failure": True}, Status.ERROR),
    ],
)
def test_method_ends_the_experiment(how: dict[str, object], status: Status) -> None:
    actor = custom_experiment()
    post_operations(actor, create_operation(5))
    post_operations(actor, shutdown_operation(**how))
    assert actor.state.status.is_stopping
    stopping = actor.state.status
    assert actor.messages_to("trial#1") == [ExperimentStatusChanged(stopping)]
    actor.deliver(TrialEnded(0, status, ""))
    assert actor.state.status is status


def test_shutdown_without_trials_completes_the_experiment() -> None:
    actor = custom_experiment()
    post_operations(actor, shutdown_operation())
    assert actor.state.status is Status.COMPLETED


def test_experiment_waits_for_the_method_after_all_trials_ended() -> None:
    actor = custom_experiment()
    post_operations(actor, create_operation(5))
    actor.deliver(TrialEnded(0, Status.ERROR, ExitReason.ERRORED))
    assert actor.state.status is Status.ACTIVE
    post_operations(actor, create_operation(6))
    assert actor.state.trials_open == 1


@pytest.mark.parametrize("command", [CancelRequested(), KillRequested()])
def test_stopped_experiment_refuses_posts(command: object) -> None:
    actor = custom_experiment()
    post_operations(actor, create_operation(5))
    actor.deliver(command)
    for status in (actor.state.status, Status.CANCELED):
        actor.state = evolve(actor.state, status=status)
        with pytest.raises(CommandRefused) as refused:
            post_operations(actor, create_operation(6))
        expected = f"experiment 1 is {status}: its search is over and accepts no more operations"
        assert (refused.value.code, str(refused.value)) == ("conflict", expected)


def test_post_that_ended_the_experiment_may_be_repeated() -> None:
    actor = custom_experiment()
    message = next_post(actor, shutdown_operation())
    first = actor.deliver(message)
    assert actor.deliver(message) == first


def test_paused_experiment_applies_posts_and_trials_wait() -> None:
    actor = custom_experiment()
    actor.deliver(PauseRequested())
    post_operations(actor, create_operation(5))
    [made] = actor.all_messages(TrialCreated)
    assert made.experiment_status is Status.PAUSED


def test_progress_may_decrease() -> None:
    actor = custom_experiment()
    post_operations(actor, {"type": "set_searcher_progress", "progress": 0.75})
    post_operations(actor, {"type": "set_searcher_progress", "progress": 0.5})
    assert actor.state.progress == 0.5
    post_operations(actor, create_operation(5))
    assert actor.state.progress == 0.5


def test_posts_to_a_built_in_search_are_refused() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted())
    with pytest.raises(
        CommandRefused, match="is a search by random: it is not driven by a search method"
    ) as refused:
        actor.deliver(OperationsPosted(PostedOperations(1, 0)))
    assert refused.value.code == "conflict"


def test_written_parts_do_not_grow_with_the_event_queue() -> None:
    actor = custom_experiment()
    for number in range(300):
        post_operations(actor, create_operation(number), validate_after_operation(number, 5))
    for number in range(300):
        actor.deliver(TrialValidationReported(number, 5.0, 0.5))
        actor.deliver(TrialLengthReached(number, 5, 0.5, closed=False))
        # The trial's summary and piece, and the piece of the queue.
        assert len(actor.parts_written) == 3
    assert max(len(actor.parts[name]) for name in actor.parts if name.startswith("search/")) <= 1024
