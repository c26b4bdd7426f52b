"""The experiment's statuses: what each command does in each of them, and how it ends."""

from dataclasses import replace

import pytest

from control_plane.actors.experiment_messages import (
    ActivateRequested,
    CancelRequested,
    KillRequested,
    PauseRequested,
    SearchContinued,
    TrialEnded,
    TrialLengthReached,
    TrialValidated,
)
from control_plane.actors.experiment_state import Listing, read_listing
from control_plane.actors.records import Status
from control_plane.actors.step import Refused
from control_plane.actors.trial_messages import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.evolve import evolve
from control_plane.searchers.method import ExitReason
from control_plane.searchers.rules import LENGTH_ERA, STEP_ERA, Rules
from control_plane.searchers.search import SearchPlan
from control_plane.searchers.synchronous import SyncHalvingPlan
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, random_plan, single_plan, submitted

ACTIVATE, PAUSE = ActivateRequested(), PauseRequested()
CANCEL, KILL = CancelRequested(), KillRequested()
COMPLETED = Status.COMPLETED


def experiment(plan: SearchPlan | None = None, *, paused: bool = False) -> Desk:
    desk = Desk("experiment#1")
    desk.tell(submitted(plan, paused=paused))
    return desk


def experiment_in(status: Status) -> Desk:
    """An experiment of one trial; it is open unless the status is final."""
    desk = experiment()
    desk.state = evolve(desk.state, status=status, trials_open=0 if status.final else 1)
    return desk


def listed(desk: Desk) -> Listing:
    return read_listing(desk.row("experiments", "000000000001").body)


def ended(number: int, status: Status = COMPLETED, early_exit: str = "") -> TrialEnded:
    return TrialEnded(number, status, early_exit)


def errored(number: int) -> TrialEnded:
    return TrialEnded(number, Status.ERROR, ExitReason.ERRORED, "out of luck")


def word_to_trials(desk: Desk) -> list[object]:
    return [send.message for send in desk.sent if send.to.startswith("trial#")]


@pytest.mark.parametrize(
    ("status", "command", "after"),
    [
        (Status.ACTIVE, PAUSE, Status.PAUSED),
        (Status.ACTIVE, CANCEL, Status.STOPPING_CANCELED),
        (Status.ACTIVE, KILL, Status.STOPPING_KILLED),
        (Status.PAUSED, ACTIVATE, Status.ACTIVE),
        (Status.PAUSED, CANCEL, Status.STOPPING_CANCELED),
        (Status.PAUSED, KILL, Status.STOPPING_KILLED),
        (Status.STOPPING_CANCELED, KILL, Status.STOPPING_KILLED),
    ],
)
def test_a_command_changes_the_status_and_every_open_trial_hears_it(
    status: Status, command: object, after: Status
) -> None:
    desk = experiment_in(status)
    assert desk.tell(command) == 1
    assert desk.state.status is after
    assert desk.sent_to("trial#1") == [ExperimentStatusChanged(after)]
    assert listed(desk).state == after


ENDED = [status for status in Status if status.final and status is not Status.DELETED]
IGNORED = [
    (Status.ACTIVE, ACTIVATE),
    (Status.PAUSED, PAUSE),
    (Status.STOPPING_CANCELED, CANCEL),
    *((status, CANCEL) for status in ENDED),
    *((status, KILL) for status in ENDED),
    *(
        (status, command)
        for status in (Status.STOPPING_COMPLETED, Status.STOPPING_ERROR, Status.STOPPING_KILLED)
        for command in (CANCEL, KILL)
    ),
]


@pytest.mark.parametrize(("status", "command"), IGNORED)
def test_a_command_that_changes_nothing_succeeds(status: Status, command: object) -> None:
    desk = experiment_in(status)
    before = desk.state
    assert desk.tell(command) == 1
    assert desk.state == before
    assert desk.sent == []


@pytest.mark.parametrize("status", [s for s in Status if s in ENDED or s.stopping])
@pytest.mark.parametrize(("command", "verb"), [(ACTIVATE, "activated"), (PAUSE, "paused")])
def test_an_ending_experiment_is_neither_activated_nor_paused(
    status: Status, command: object, verb: str
) -> None:
    desk = experiment_in(status)
    before = desk.state
    with pytest.raises(Refused) as refused:
        desk.tell(command)
    assert str(refused.value) == f"experiment 1 is {status} and can no longer be {verb}"
    assert refused.value.code == "conflict"
    assert desk.state == before


@pytest.mark.parametrize(
    ("stopping", "final"),
    [
        (Status.STOPPING_COMPLETED, Status.COMPLETED),
        (Status.STOPPING_CANCELED, Status.CANCELED),
        (Status.STOPPING_KILLED, Status.CANCELED),
        (Status.STOPPING_ERROR, Status.ERROR),
    ],
)
def test_a_stopping_status_becomes_final_when_no_trial_is_left(
    stopping: Status, final: Status
) -> None:
    desk = experiment_in(stopping)
    desk.now_ms = 9_000
    desk.tell(ended(0, Status.CANCELED, ExitReason.USER_CANCELED))
    assert desk.state.status is final
    assert desk.state.ended_ms == 9_000
    assert desk.state.progress == (1.0 if final is COMPLETED else 0.0)
    assert listed(desk).state == final


@pytest.mark.parametrize("command", [CANCEL, KILL])
def test_it_keeps_stopping_while_a_trial_is_open(command: object) -> None:
    desk = experiment(random_plan(3))
    desk.tell(ended(0))
    desk.tell(command)
    desk.tell(ended(1, Status.CANCELED, ExitReason.USER_CANCELED))
    assert desk.state.status.stopping
    desk.tell(ended(2, Status.CANCELED, ExitReason.USER_CANCELED))
    assert desk.state.status is Status.CANCELED


def test_only_open_trials_hear_of_a_status() -> None:
    desk = experiment(random_plan(3))
    desk.tell(ended(1))
    desk.tell(PAUSE)
    assert [send.to for send in desk.sent] == ["trial#1", "trial#3"]


def test_a_paused_submission_creates_paused_trials() -> None:
    desk = experiment(random_plan(2), paused=True)
    assert desk.state.status is Status.PAUSED
    assert [created.experiment_status for created in desk.ever_sent(TrialCreated)] == [
        Status.PAUSED,
        Status.PAUSED,
    ]


def test_a_second_submission_changes_nothing() -> None:
    desk = experiment()
    before = desk.state
    desk.tell(submitted(random_plan(9)))
    assert desk.state == before
    assert desk.sent == []


@pytest.mark.parametrize("message", [PAUSE, SearchContinued(), ended(0), TrialValidated(0, 1, 1)])
def test_only_a_submission_makes_an_experiment(message: object) -> None:
    desk = Desk("experiment#1")
    desk.tell(message)
    assert desk.state is None
    assert desk.sent == []


def test_an_experiment_completes_if_one_trial_did_not_fail() -> None:
    desk = experiment(random_plan(3))
    desk.tell(errored(0), errored(2))
    assert desk.state.status is Status.ACTIVE
    desk.tell(ended(1))
    assert desk.state.status is COMPLETED
    assert (desk.state.trials_completed, desk.state.trials_errored) == (1, 2)


def test_an_experiment_whose_trials_all_failed_ends_in_error() -> None:
    desk = experiment(random_plan(2))
    desk.tell(errored(0), errored(1))
    assert desk.state.status is Status.ERROR
    assert desk.state.message == "out of luck"


@pytest.mark.parametrize(
    ("rules", "final"), [(STEP_ERA, Status.ERROR), (LENGTH_ERA, Status.COMPLETED)]
)
def test_trials_stopped_by_their_code_count_as_failed_in_the_step_era_only(
    rules: Rules, final: Status
) -> None:
    desk = experiment(random_plan(1, rules=rules))
    desk.tell(ended(0, COMPLETED, ExitReason.USER_REQUESTED_STOP))
    assert desk.state.status is final


@pytest.mark.parametrize(
    ("rules", "final"), [(STEP_ERA, Status.ERROR), (LENGTH_ERA, Status.CANCELED)]
)
def test_a_search_whose_trials_were_all_killed_by_people_did_not_complete(
    rules: Rules, final: Status
) -> None:
    # In the step era every early exit counts as a failure.
    desk = experiment(random_plan(2, rules=rules))
    for number in (0, 1):
        desk.tell(ended(number, Status.CANCELED, ExitReason.USER_CANCELED))
    assert desk.state.status is final


def test_the_only_trial_of_a_single_search_with_invalid_hyperparameters_ends_it() -> None:
    desk = experiment(single_plan())
    desk.tell(ended(0, COMPLETED, ExitReason.INVALID_HP))
    assert desk.ever_sent(TrialCreated)[1:] == []
    assert desk.state.status.final


def test_a_stopping_experiment_creates_no_more_trials() -> None:
    desk = experiment(random_plan(5, concurrent=2))
    desk.tell(CANCEL)
    desk.tell(ended(0), SearchContinued())
    assert desk.ever_sent(TrialCreated)[2:] == []
    assert desk.state.status is Status.STOPPING_CANCELED


def test_a_paused_experiment_still_hears_its_search() -> None:
    # Trial 0 ends on its way to the pause: the search replaces it by a paused one.
    desk = experiment(random_plan(5, concurrent=2))
    desk.tell(PAUSE)
    desk.tell(ended(0))
    assert [created.experiment_status for created in desk.ever_sent(TrialCreated)[2:]] == [
        Status.PAUSED
    ]


def test_a_trial_that_reached_its_length_gets_one_word_unless_it_expects_none() -> None:
    desk = experiment(random_plan(2))
    desk.tell(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert desk.sent_to("trial#1") == [WorkAssigned(None, False)]
    desk.tell(TrialLengthReached(1, LENGTH, 0.5, closed=True))
    assert desk.sent == []


def test_a_trial_that_waits_for_a_word_gets_it_from_a_stopping_experiment_too() -> None:
    desk = experiment()
    desk.tell(CANCEL)
    desk.tell(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert desk.sent_to("trial#1") == [WorkAssigned(None, False)]


def test_a_search_without_its_metric_ends_in_error() -> None:
    desk = experiment()
    desk.tell(TrialLengthReached(0, LENGTH, 1e300, closed=False, lack="batch 8 lacks 'loss'"))
    assert desk.state.status == Status.STOPPING_ERROR
    assert desk.state.message == "trial 1: batch 8 lacks 'loss'"
    assert word_to_trials(desk) == [ExperimentStatusChanged(Status.STOPPING_ERROR)]


def test_what_ended_a_search_is_not_hidden_by_what_its_trials_say_then() -> None:
    desk = experiment(random_plan(2))
    desk.tell(TrialLengthReached(0, LENGTH, 1e300, closed=False, lack="batch 8 lacks 'loss'"))
    desk.tell(TrialEnded(1, Status.ERROR, ExitReason.ERRORED, "OSError: while it stopped"))
    desk.tell(TrialEnded(0, Status.ERROR, ExitReason.ERRORED, "DetcloudError: batch 8"))
    assert desk.state.status == Status.ERROR
    assert desk.state.message == "trial 1: batch 8 lacks 'loss'"


def test_a_search_that_makes_no_trial_ends_in_error_and_says_so() -> None:
    none = SyncHalvingPlan((1, 4), (0, 1), smaller_is_better=True, rules=LENGTH_ERA)
    desk = Desk("experiment#1")
    desk.tell(submitted(replace(random_plan(1), method=none), searcher="sync_halving"))
    assert desk.state.status == Status.ERROR
    assert desk.state.message == (
        "the sync_halving search made no trial: its configuration leaves none to make"
    )


def test_a_search_that_is_ended_already_does_not_miss_its_metric() -> None:
    desk = experiment()
    desk.tell(CANCEL)
    desk.tell(TrialLengthReached(0, LENGTH, 1e300, closed=False, lack="batch 8 lacks 'loss'"))
    assert desk.state.status == Status.STOPPING_CANCELED
    assert desk.state.message == ""


def test_an_experiment_that_cannot_take_a_message_stops_its_trials_and_ends_in_error() -> None:
    desk = experiment()
    desk.bury(TrialValidated(0, 1.0, 0.5))
    assert desk.state.status == Status.STOPPING_ERROR
    assert word_to_trials(desk) == [ExperimentStatusChanged(Status.STOPPING_ERROR)]
    assert desk.state.message == "internal error: TrialValidated could not be processed"
    desk.tell(ended(0, Status.CANCELED, ExitReason.USER_CANCELED))
    assert desk.state.status is Status.ERROR


def test_a_trials_end_that_could_not_be_processed_still_counts_as_its_end() -> None:
    # The trial has ended and will not say so again: without it the experiment stops for ever.
    desk = experiment(random_plan(2))
    desk.bury(ended(0))
    assert desk.state.status == Status.STOPPING_ERROR
    assert [send.to for send in desk.sent] == ["trial#2"]
    desk.bury(ended(0))
    assert desk.state.trials_open == 1
    desk.bury(errored(1))
    assert desk.state.status is Status.ERROR


@pytest.mark.parametrize("status", [s for s in Status if s.final and s is not Status.DELETING])
def test_a_final_status_survives_a_dead_letter(status: Status) -> None:
    desk = experiment_in(status)
    desk.bury(SearchContinued())
    assert desk.state.status is status
    assert desk.sent == []


def test_a_dead_letter_to_no_experiment_makes_none() -> None:
    desk = Desk("experiment#1")
    desk.bury(SearchContinued())
    assert desk.state is None
