"""The experiment's statuses: the effect of each command in each status, and the end."""

from dataclasses import replace

import pytest

from control_plane.actors.experiment.listing import ListingRow, decode_listing
from control_plane.actors.messages.experiment import (
    ActivateRequested,
    CancelRequested,
    KillRequested,
    PauseRequested,
    SearchContinued,
    TrialEnded,
    TrialLengthReached,
    TrialValidationReported,
)
from control_plane.actors.messages.trial import ExperimentStatusChanged, TrialCreated, WorkAssigned
from control_plane.actors.records import Status
from control_plane.actors.step import CommandRefused
from control_plane.evolve import evolve
from control_plane.searchers.era_rules import LENGTH_ERA, STEP_ERA, SearchRules
from control_plane.searchers.halving.synchronous import SyncHalvingPlan
from control_plane.searchers.method import ExitReason
from control_plane.searchers.search import SearchPlan
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import LENGTH, experiment_submitted, random_plan, single_plan

ACTIVATE, PAUSE = ActivateRequested(), PauseRequested()
CANCEL, KILL = CancelRequested(), KillRequested()
COMPLETED = Status.COMPLETED


def experiment(plan: SearchPlan | None = None, *, paused: bool = False) -> ActorHarness:
    actor = ActorHarness("experiment#1")
    actor.deliver(experiment_submitted(plan, paused=paused))
    return actor


def experiment_in(status: Status) -> ActorHarness:
    """Create an experiment with a trial. The trial is open unless the status is final."""
    actor = experiment()
    actor.state = evolve(actor.state, status=status, trials_open=0 if status.is_final else 1)
    return actor


def listing_row(actor: ActorHarness) -> ListingRow:
    return decode_listing(actor.row("experiments", "000000000001").body)


def trial_ended(number: int, status: Status = COMPLETED, early_exit: str = "") -> TrialEnded:
    return TrialEnded(number, status, early_exit)


def trial_errored(number: int) -> TrialEnded:
    return TrialEnded(number, Status.ERROR, ExitReason.ERRORED, "out of luck")


def messages_to_trials(actor: ActorHarness) -> list[object]:
    return [send.message for send in actor.sent if send.to.startswith("trial#")]


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
def test_command_changes_the_status_and_notifies_open_trials(
    status: Status, command: object, after: Status
) -> None:
    actor = experiment_in(status)
    assert actor.deliver(command) == 1
    assert actor.state.status is after
    assert actor.messages_to("trial#1") == [ExperimentStatusChanged(after)]
    assert listing_row(actor).state == after


ENDED = [status for status in Status if status.is_final and status is not Status.DELETED]
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
def test_command_without_a_change_succeeds(status: Status, command: object) -> None:
    actor = experiment_in(status)
    before = actor.state
    assert actor.deliver(command) == 1
    assert actor.state == before
    assert actor.sent == []


@pytest.mark.parametrize("status", [s for s in Status if s in ENDED or s.is_stopping])
@pytest.mark.parametrize(("command", "verb"), [(ACTIVATE, "activated"), (PAUSE, "paused")])
def test_stopping_experiment_is_neither_activated_nor_paused(
    status: Status, command: object, verb: str
) -> None:
    actor = experiment_in(status)
    before = actor.state
    with pytest.raises(CommandRefused) as refused:
        actor.deliver(command)
    assert str(refused.value) == f"experiment 1 is {status} and can no longer be {verb}"
    assert refused.value.code == "conflict"
    assert actor.state == before


@pytest.mark.parametrize(
    ("stopping", "final"),
    [
        (Status.STOPPING_COMPLETED, Status.COMPLETED),
        (Status.STOPPING_CANCELED, Status.CANCELED),
        (Status.STOPPING_KILLED, Status.CANCELED),
        (Status.STOPPING_ERROR, Status.ERROR),
    ],
)
def test_stopping_status_becomes_final_without_open_trials(stopping: Status, final: Status) -> None:
    actor = experiment_in(stopping)
    actor.now_ms = 9_000
    actor.deliver(trial_ended(0, Status.CANCELED, ExitReason.USER_CANCELED))
    assert actor.state.status is final
    assert actor.state.ended_ms == 9_000
    assert actor.state.progress == (1.0 if final is COMPLETED else 0.0)
    assert listing_row(actor).state == final


@pytest.mark.parametrize("command", [CANCEL, KILL])
def test_experiment_keeps_stopping_while_a_trial_is_open(command: object) -> None:
    actor = experiment(random_plan(3))
    actor.deliver(trial_ended(0))
    actor.deliver(command)
    actor.deliver(trial_ended(1, Status.CANCELED, ExitReason.USER_CANCELED))
    assert actor.state.status.is_stopping
    actor.deliver(trial_ended(2, Status.CANCELED, ExitReason.USER_CANCELED))
    assert actor.state.status is Status.CANCELED


def test_only_open_trials_are_notified_of_a_status() -> None:
    actor = experiment(random_plan(3))
    actor.deliver(trial_ended(1))
    actor.deliver(PAUSE)
    assert [send.to for send in actor.sent] == ["trial#1", "trial#3"]


def test_paused_submission_creates_paused_trials() -> None:
    actor = experiment(random_plan(2), paused=True)
    assert actor.state.status is Status.PAUSED
    assert [created.experiment_status for created in actor.all_messages(TrialCreated)] == [
        Status.PAUSED,
        Status.PAUSED,
    ]


def test_second_submission_changes_no_state() -> None:
    actor = experiment()
    before = actor.state
    actor.deliver(experiment_submitted(random_plan(9)))
    assert actor.state == before
    assert actor.sent == []


@pytest.mark.parametrize(
    "message", [PAUSE, SearchContinued(), trial_ended(0), TrialValidationReported(0, 1, 1)]
)
def test_only_a_submission_creates_an_experiment(message: object) -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver(message)
    assert actor.state is None
    assert actor.sent == []


def test_experiment_completes_if_any_trial_did_not_fail() -> None:
    actor = experiment(random_plan(3))
    actor.deliver(trial_errored(0), trial_errored(2))
    assert actor.state.status is Status.ACTIVE
    actor.deliver(trial_ended(1))
    assert actor.state.status is COMPLETED
    assert (actor.state.trials_completed, actor.state.trials_errored) == (1, 2)


def test_experiment_ends_in_error_if_all_trials_failed() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(trial_errored(0), trial_errored(1))
    assert actor.state.status is Status.ERROR
    assert actor.state.message == "out of luck"


@pytest.mark.parametrize(
    ("rules", "final"), [(STEP_ERA, Status.ERROR), (LENGTH_ERA, Status.COMPLETED)]
)
def test_trials_stopped_by_code_count_as_failed_only_in_the_step_era(
    rules: SearchRules, final: Status
) -> None:
    actor = experiment(random_plan(1, rules=rules))
    actor.deliver(trial_ended(0, COMPLETED, ExitReason.USER_REQUESTED_STOP))
    assert actor.state.status is final


@pytest.mark.parametrize(
    ("rules", "final"), [(STEP_ERA, Status.ERROR), (LENGTH_ERA, Status.CANCELED)]
)
def test_search_with_only_killed_trials_is_not_completed(rules: SearchRules, final: Status) -> None:
    # In the step era every early exit counts as a failure.
    actor = experiment(random_plan(2, rules=rules))
    for number in (0, 1):
        actor.deliver(trial_ended(number, Status.CANCELED, ExitReason.USER_CANCELED))
    assert actor.state.status is final


def test_invalid_hyperparameters_of_a_single_search_end_the_experiment() -> None:
    actor = experiment(single_plan())
    actor.deliver(trial_ended(0, COMPLETED, ExitReason.INVALID_HP))
    assert actor.all_messages(TrialCreated)[1:] == []
    assert actor.state.status.is_final


def test_stopping_experiment_creates_no_trials() -> None:
    actor = experiment(random_plan(5, concurrent=2))
    actor.deliver(CANCEL)
    actor.deliver(trial_ended(0), SearchContinued())
    assert actor.all_messages(TrialCreated)[2:] == []
    assert actor.state.status is Status.STOPPING_CANCELED


def test_paused_experiment_applies_operations_of_the_search() -> None:
    # Trial 0 ends before the pause is complete, and the search creates a paused trial instead.
    actor = experiment(random_plan(5, concurrent=2))
    actor.deliver(PAUSE)
    actor.deliver(trial_ended(0))
    assert [created.experiment_status for created in actor.all_messages(TrialCreated)[2:]] == [
        Status.PAUSED
    ]


def test_trial_at_the_assigned_length_gets_an_answer_unless_closed() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(None, False)]
    actor.deliver(TrialLengthReached(1, LENGTH, 0.5, closed=True))
    assert actor.sent == []


def test_stopping_experiment_answers_a_waiting_trial() -> None:
    actor = experiment()
    actor.deliver(CANCEL)
    actor.deliver(TrialLengthReached(0, LENGTH, 0.5, closed=False))
    assert actor.messages_to("trial#1") == [WorkAssigned(None, False)]


def test_search_without_the_metric_ends_in_error() -> None:
    actor = experiment()
    actor.deliver(
        TrialLengthReached(
            0, LENGTH, 1e300, closed=False, missing_metric_reason="batch 8 lacks 'loss'"
        )
    )
    assert actor.state.status == Status.STOPPING_ERROR
    assert actor.state.message == "trial 1: batch 8 lacks 'loss'"
    assert messages_to_trials(actor) == [ExperimentStatusChanged(Status.STOPPING_ERROR)]


def test_message_about_a_missing_metric_survives_the_trials_ends() -> None:
    actor = experiment(random_plan(2))
    actor.deliver(
        TrialLengthReached(
            0, LENGTH, 1e300, closed=False, missing_metric_reason="batch 8 lacks 'loss'"
        )
    )
    actor.deliver(TrialEnded(1, Status.ERROR, ExitReason.ERRORED, "OSError: while it stopped"))
    actor.deliver(TrialEnded(0, Status.ERROR, ExitReason.ERRORED, "DetcloudError: batch 8"))
    assert actor.state.status == Status.ERROR
    assert actor.state.message == "trial 1: batch 8 lacks 'loss'"


def test_search_without_trials_ends_in_error_with_a_message() -> None:
    none = SyncHalvingPlan((1, 4), (0, 1), smaller_is_better=True, rules=LENGTH_ERA)
    actor = ActorHarness("experiment#1")
    actor.deliver(
        experiment_submitted(replace(random_plan(1), method=none), searcher="sync_halving")
    )
    assert actor.state.status == Status.ERROR
    assert actor.state.message == (
        "the sync_halving search made no trial: its configuration leaves none to make"
    )


def test_stopping_search_ignores_a_missing_metric() -> None:
    actor = experiment()
    actor.deliver(CANCEL)
    actor.deliver(
        TrialLengthReached(
            0, LENGTH, 1e300, closed=False, missing_metric_reason="batch 8 lacks 'loss'"
        )
    )
    assert actor.state.status == Status.STOPPING_CANCELED
    assert actor.state.message == ""


def test_fallback_stops_trials_and_ends_the_experiment_in_error() -> None:
    actor = experiment()
    actor.deliver_dead_letter(TrialValidationReported(0, 1.0, 0.5))
    assert actor.state.status == Status.STOPPING_ERROR
    assert messages_to_trials(actor) == [ExperimentStatusChanged(Status.STOPPING_ERROR)]
    assert actor.state.message == "internal error: TrialValidated could not be processed"
    actor.deliver(trial_ended(0, Status.CANCELED, ExitReason.USER_CANCELED))
    assert actor.state.status is Status.ERROR


def test_fallback_counts_the_end_of_a_trial() -> None:
    # The trial has ended and sends no second message: without this count the experiment would stop
    # for ever.
    actor = experiment(random_plan(2))
    actor.deliver_dead_letter(trial_ended(0))
    assert actor.state.status == Status.STOPPING_ERROR
    assert [send.to for send in actor.sent] == ["trial#2"]
    actor.deliver_dead_letter(trial_ended(0))
    assert actor.state.trials_open == 1
    actor.deliver_dead_letter(trial_errored(1))
    assert actor.state.status is Status.ERROR


@pytest.mark.parametrize("status", [s for s in Status if s.is_final and s is not Status.DELETING])
def test_final_status_survives_a_dead_letter(status: Status) -> None:
    actor = experiment_in(status)
    actor.deliver_dead_letter(SearchContinued())
    assert actor.state.status is status
    assert actor.sent == []


def test_dead_letter_creates_no_experiment() -> None:
    actor = ActorHarness("experiment#1")
    actor.deliver_dead_letter(SearchContinued())
    assert actor.state is None
