"""An experiment that a search method outside drives: what a post does to it and to its trials."""

from typing import Any

import pytest

from control_plane.actors.experiment_messages import (
    CancelRequested,
    KillRequested,
    OperationsPosted,
    PauseRequested,
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
)
from control_plane.actors.pool_messages import JobChanged
from control_plane.actors.records import Status
from control_plane.actors.step import Refused, Send
from control_plane.actors.trial_messages import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.evolve import evolve
from control_plane.searchers.custom import CustomPlan
from control_plane.searchers.method import ExitReason
from control_plane.searchers.posted import Posted, asked
from control_plane.searchers.rules import LENGTH_ERA
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.space import Group
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import submitted
from tests.unit.searchers.steered import after, close, create, shut, trial

PLAN = SearchPlan(CustomPlan("batches", LENGTH_ERA), Group({}), 7)


def begun(*, paused: bool = False) -> Desk:
    desk = Desk("experiment#1")
    desk.tell(submitted(PLAN, searcher="custom", paused=paused))
    return desk


def posted(desk: Desk, *operations: dict[str, object], again: bool = False) -> OperationsPosted:
    """The next post, or the last one once more."""
    method = desk.state.search.method
    number = method.post if again else method.post + 1
    return OperationsPosted(Posted(number, method.newest, asked(operations)))


def told(desk: Desk, *operations: dict[str, object]) -> Any:
    return desk.tell(posted(desk, *operations))


def test_it_waits_for_its_method() -> None:
    desk = begun()
    assert desk.state.status is Status.ACTIVE
    assert desk.sent == [Send("pool#default", JobChanged(1))]
    assert desk.state.search.method.newest == 1


def test_a_post_makes_trials_and_answers_how_far_it_is_understood() -> None:
    desk = begun()
    reply = told(desk, create(5), after(5, 3), create(6))
    # Two trials were created, which are events 2 and 3.
    assert reply == {"post": 1, "acknowledged": 1, "newest": 3}
    first, second = desk.ever_sent(TrialCreated)
    assert (first.request_id, first.hparams, first.length) == (trial(5), {"x": 5}, 3)
    assert (second.request_id, second.length) == (trial(6), None)
    assert desk.state.trials_open == 2


def test_a_post_gives_trials_work_and_lets_them_end() -> None:
    desk = begun()
    told(desk, create(5), after(5, 3))
    desk.tell(TrialLengthReached(0, 3, 0.5, closed=False))
    assert desk.sent_to("trial#1") == [WorkAssigned(None, False)]
    told(desk, after(5, 7), close(5))
    assert desk.sent_to("trial#1") == [WorkAssigned(7, True)]


def test_the_next_of_several_lengths_is_assigned_without_asking_the_method() -> None:
    desk = begun()
    told(desk, create(5), after(5, 3), after(5, 7))
    desk.tell(TrialLengthReached(0, 3, 0.5, closed=False))
    assert desk.sent_to("trial#1") == [WorkAssigned(7, False)]


def test_a_repeated_post_makes_nothing_twice() -> None:
    desk = begun()
    message = posted(desk, create(5), after(5, 3))
    first = desk.tell(message)
    before = desk.state
    assert desk.tell(message) == first
    assert desk.state == before
    assert desk.sent == []


def test_a_refused_post_changes_nothing_and_the_experiment_goes_on() -> None:
    desk = begun()
    before, parts = desk.state, dict(desk.parts)
    with pytest.raises(Refused) as refused:
        told(desk, create(5), close(6))
    assert str(refused.value).startswith("operations[1].request_id: there is no trial")
    assert refused.value.code == "invalid"
    assert (desk.state, desk.parts) == (before, parts)
    assert told(desk, create(5))["post"] == 1


@pytest.mark.parametrize(
    ("how", "status"),
    [
        ({}, Status.COMPLETED),
        ({"cancel": True}, Status.CANCELED),
        ({"failure": True}, Status.ERROR),
    ],
)
def test_the_method_ends_the_experiment(how: dict[str, object], status: Status) -> None:
    desk = begun()
    told(desk, create(5))
    told(desk, shut(**how))
    assert desk.state.status.stopping
    stopping = desk.state.status
    assert desk.sent_to("trial#1") == [ExperimentStatusChanged(stopping)]
    desk.tell(TrialEnded(0, status, ""))
    assert desk.state.status is status


def test_a_shutdown_without_trials_completes_it_at_once() -> None:
    desk = begun()
    told(desk, shut())
    assert desk.state.status is Status.COMPLETED


def test_all_trials_may_end_and_the_experiment_waits_for_its_method() -> None:
    desk = begun()
    told(desk, create(5))
    desk.tell(TrialEnded(0, Status.ERROR, ExitReason.ERRORED))
    assert desk.state.status is Status.ACTIVE
    told(desk, create(6))
    assert desk.state.trials_open == 1


@pytest.mark.parametrize("command", [CancelRequested(), KillRequested()])
def test_a_stopped_experiment_takes_no_posts(command: object) -> None:
    desk = begun()
    told(desk, create(5))
    desk.tell(command)
    for status in (desk.state.status, Status.CANCELED):
        desk.state = evolve(desk.state, status=status)
        with pytest.raises(Refused) as refused:
            told(desk, create(6))
        expected = f"experiment 1 is {status}: its search is over and takes no more operations"
        assert (refused.value.code, str(refused.value)) == ("conflict", expected)


def test_the_post_that_ended_it_may_be_repeated() -> None:
    desk = begun()
    message = posted(desk, shut())
    first = desk.tell(message)
    assert desk.tell(message) == first


def test_a_paused_experiment_is_driven_and_its_trials_wait() -> None:
    desk = begun()
    desk.tell(PauseRequested())
    told(desk, create(5))
    [made] = desk.ever_sent(TrialCreated)
    assert made.experiment_status is Status.PAUSED


def test_progress_may_go_back() -> None:
    desk = begun()
    told(desk, {"type": "set_searcher_progress", "progress": 0.75})
    told(desk, {"type": "set_searcher_progress", "progress": 0.5})
    assert desk.state.progress == 0.5
    told(desk, create(5))
    assert desk.state.progress == 0.5


def test_a_search_by_another_searcher_is_not_driven() -> None:
    desk = Desk("experiment#1")
    desk.tell(submitted())
    with pytest.raises(
        Refused, match="is a search by random: no search method of yours"
    ) as refused:
        desk.tell(OperationsPosted(Posted(1, 0)))
    assert refused.value.code == "conflict"


def test_what_a_decision_writes_does_not_grow_with_the_queue() -> None:
    desk = begun()
    for number in range(300):
        told(desk, create(number), after(number, 5))
    for number in range(300):
        desk.tell(TrialValidated(number, 5.0, 0.5))
        desk.tell(TrialLengthReached(number, 5, 0.5, closed=False))
        # The trial's summary and its piece, and the piece of the queue.
        assert len(desk.parts_written) == 3
    assert max(len(desk.parts[name]) for name in desk.parts if name.startswith("search/")) <= 1024
