"""The end of a trial: restarts, rollbacks, exits decided by the code, and late reports."""

import sys
from dataclasses import replace

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import (
    TrialEnded,
    TrialLengthReached,
    TrialProgressReported,
    TrialValidationReported,
)
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    ProgressReported,
    SlotsAssigned,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.trial.checkpoints import CheckpointRecord
from control_plane.actors.trial.lifecycle import wants_slots
from control_plane.actors.trial.stalls import STALLS_MAX
from control_plane.agents.desired_state import trial_directives
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    checkpoint_reported,
    trial_created,
    trial_settings,
)

POOL, EXPERIMENT = "pool#default", "experiment#1"


def running_trial(of: TrialSettings | None = None, *, closed: bool = True) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(closed=closed, of=of))
    return place_trial(actor)


def place_trial(actor: ActorHarness) -> ActorHarness:
    epoch = actor.state.epoch
    actor.deliver(
        SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, "RUNNING")
    )
    return actor


def deliver_exit(actor: ActorHarness, reason: str, message: str = "") -> None:
    actor.deliver(AllocationExited(actor.state.epoch, reason, message=message))


def record(actor: ActorHarness, steps: int) -> CheckpointRecord:
    stored = actor.part(f"checkpoint/{checkpoint_reported(steps).checkpoint.uuid}")
    assert isinstance(stored, CheckpointRecord)
    return stored


def test_five_restarts_permit_six_runs() -> None:
    actor = running_trial(trial_settings(max_restarts=5))
    for failures in range(1, 6):
        deliver_exit(actor, "errored")
        assert actor.state.restarts == failures
        place_trial(actor)
    assert actor.state.epoch == 6
    deliver_exit(actor, "errored", "out of luck")
    assert actor.state.status is Status.ERROR
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.ERROR, ExitReason.ERRORED, "out of luck")
    ]
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_no_restarts_permit_a_single_run() -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    deliver_exit(actor, "errored")
    assert actor.state.status is Status.ERROR
    assert actor.state.message == "the trial's process failed (errored)"


@pytest.mark.parametrize("reason", ["errored", "something new"])
def test_failure_is_counted(reason: str) -> None:
    actor = running_trial()
    deliver_exit(actor, reason)
    assert (actor.state.restarts, actor.state.losses) == (1, 0)


@pytest.mark.parametrize("reason", ["preempted", "idle"])
def test_stop_is_no_failure(reason: str) -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    deliver_exit(actor, reason)
    assert (actor.state.restarts, actor.state.losses) == (0, 0)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]


@pytest.mark.parametrize("reason", ["lost", "killed"])
def test_lost_machine_or_stopped_agent_is_no_failure(
    reason: str,
) -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    deliver_exit(actor, reason)
    assert (actor.state.restarts, actor.state.losses) == (0, 1)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]


def test_lost_allocation_is_no_failure() -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    actor.deliver(AllocationLost(1, "agent a was lost"))
    assert (actor.state.restarts, actor.state.losses, actor.state.epoch) == (0, 1, 2)


@pytest.mark.parametrize(
    "asked",
    [PreemptionRequested(1, "slots are wanted"), ExperimentStatusChanged(Status.PAUSED)],
)
def test_failure_while_stopping_is_not_counted(asked: object) -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    actor.deliver(asked)
    deliver_exit(actor, "errored", "broken pipe")
    assert actor.state.status is Status.ACTIVE
    assert actor.state.restarts == 0
    assert actor.state.message == "broken pipe"


def test_restarts_are_not_reset_by_success() -> None:
    actor = running_trial(trial_settings(max_restarts=1), closed=False)
    deliver_exit(actor, "errored")
    place_trial(actor).deliver(LengthReached(2, LENGTH, 0.5), WorkAssigned(400, True))
    deliver_exit(actor, "errored")
    assert actor.state.status is Status.ERROR


def test_restarted_trial_rolls_back_to_the_latest_checkpoint() -> None:
    actor = running_trial()
    actor.deliver(checkpoint_reported(40), ValidationReported(1, 60, 0.5))
    assert actor.state.steps == 60
    deliver_exit(actor, "errored")
    assert actor.state.steps == 40
    assert actor.state.checkpoint.steps_completed == 40


def test_trial_without_a_checkpoint_starts_over() -> None:
    actor = running_trial()
    actor.deliver(ValidationReported(1, 60, 0.5))
    deliver_exit(actor, "errored")
    assert actor.state.steps == 0
    assert actor.state.checkpoint is None


def test_reached_length_is_not_reported_again() -> None:
    # Reached 100, went on towards 400, failed and began again at 0: 100 is reached a second time.
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    assert actor.messages_to(EXPERIMENT) == [TrialLengthReached(3, LENGTH, 0.5, False)]
    actor.deliver(WorkAssigned(400, False))
    deliver_exit(actor, "errored")
    place_trial(actor).deliver(LengthReached(2, LENGTH, 0.4))
    assert actor.sent == []
    actor.deliver(LengthReached(2, 400, 0.3))
    assert actor.messages_to(EXPERIMENT) == [TrialLengthReached(3, 400, 0.3, False)]


def test_repeated_length_counts_once() -> None:
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    actor.deliver(LengthReached(1, LENGTH, 0.4))
    assert actor.sent == []


@pytest.mark.parametrize("length", [0, 50, 101])
def test_length_that_was_not_assigned_is_ignored(length: int) -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, length, 0.5))
    assert actor.sent == []
    assert actor.state.reached == 0


@pytest.mark.parametrize(
    ("smaller_is_better", "worst"), [(True, sys.float_info.max), (False, -sys.float_info.max)]
)
def test_non_finite_metric_is_reported_as_the_worst(smaller_is_better: bool, worst: float) -> None:
    actor = running_trial(trial_settings(smaller_is_better=smaller_is_better))
    actor.deliver(ValidationReported(1, LENGTH, None), LengthReached(1, LENGTH, None))
    assert actor.messages_to(EXPERIMENT) == [
        TrialValidationReported(3, 100.0, None),
        TrialLengthReached(3, LENGTH, worst, True),
    ]
    assert actor.state.best_metric is None


@pytest.mark.parametrize(("smaller_is_better", "best"), [(True, 0.2), (False, 0.9)])
def test_best_metric_of_a_trial_follows_the_sign(smaller_is_better: bool, best: float) -> None:
    actor = running_trial(trial_settings(smaller_is_better=smaller_is_better))
    for steps, metric in ((10, 0.5), (20, 0.9), (30, 0.2), (40, 0.4)):
        actor.deliver(ValidationReported(1, steps, metric))
    assert (actor.state.best_metric, actor.state.metric) == (best, 0.4)


def test_lengths_are_converted_by_the_trial() -> None:
    # 2 epochs of 1000 records in batches of 64: 2000 // 64 = 31; 31 * 64 / 1000 = 1.984 epochs.
    actor = ActorHarness("trial#4")
    epochs = trial_settings(lengths=Lengths("epochs", records_per_epoch=1000))
    actor.deliver(trial_created(length=2, of=epochs, hparams={"global_batch_size": 64}))
    assert actor.state.length == 31
    place_trial(actor).deliver(ValidationReported(1, 31, 0.5), LengthReached(1, 31, 0.5))
    assert actor.messages_to(EXPERIMENT) == [
        TrialValidationReported(3, 1.984, 0.5),
        TrialLengthReached(3, 2, 0.5, True),
    ]


def test_epochs_of_unknown_length_stay_epochs() -> None:
    actor = ActorHarness("trial#4")
    epochs = trial_settings(lengths=Lengths("epochs"))
    actor.deliver(trial_created(length=2, closed=False, of=epochs))
    assert (actor.state.target_epochs, actor.state.target_steps) == (2, None)
    place_trial(actor).deliver(ProgressReported(1, 0.5), ProgressReported(1, 0.505))
    assert actor.messages_to(EXPERIMENT) == [TrialProgressReported(3, 0.5, 1.0)]
    # A validation has the units of the last progress. The reached length completes the progress.
    actor.deliver(ValidationReported(1, 30, 0.7), LengthReached(1, 2, 0.6))
    assert actor.messages_to(EXPERIMENT) == [
        TrialValidationReported(3, 1.0, 0.7),
        TrialProgressReported(3, 1.0, 2.0),
        TrialLengthReached(3, 2, 0.6, False),
    ]
    assert (actor.state.reached, actor.state.steps) == (2, 30)
    actor.deliver(WorkAssigned(6, True))
    assert (actor.state.length, actor.state.decided_length) == (6, 2)
    # A quarter of six is less than the two that are done.
    actor.deliver(ProgressReported(1, 0.25), ProgressReported(1, 0.5), LengthReached(1, 6, 0.4))
    assert actor.all_messages(TrialProgressReported)[2:] == [
        TrialProgressReported(3, 0.25, 2.0),
        TrialProgressReported(3, 0.5, 3.0),
        TrialProgressReported(3, 1.0, 6.0),
    ]
    deliver_exit(actor, "completed")
    assert actor.state.status is Status.COMPLETED


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
@pytest.mark.parametrize("exit_reason", ["invalid_hp", "errored", "completed"])
def test_trial_with_refused_hyperparameters_is_not_restarted(
    reason: ExitReason, exit_reason: str
) -> None:
    actor = running_trial()
    actor.deliver(EarlyExitReported(1, reason))
    deliver_exit(actor, exit_reason)
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, reason)]
    assert actor.state.message == "the hyperparameters were refused"
    assert actor.state.restarts == 0


def test_refusal_is_forgotten_with_the_allocation() -> None:
    # The exit was lost with the machine: only the next run's report counts.
    actor = running_trial()
    actor.deliver(EarlyExitReported(1, ExitReason.INVALID_HP))
    actor.deliver(AllocationLost(1, "agent a was lost"))
    assert actor.state.early_exit == ""
    place_trial(actor)
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_code_may_stop_the_trial() -> None:
    actor = running_trial()
    actor.deliver(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    deliver_exit(actor, "stop_requested")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


@pytest.mark.parametrize("reason", ["lost", "killed", "preempted"])
def test_good_exit_after_all_work_completes_the_trial(
    reason: str,
) -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, reason)
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def failed_after_its_length(max_restarts: int = 2) -> ActorHarness:
    """Create a trial that saved and reported the whole length.

    The process then exited with code 3.
    """
    actor = running_trial(trial_settings(max_restarts=max_restarts))
    actor.deliver(checkpoint_reported(LENGTH), ValidationReported(1, LENGTH, 0.5))
    actor.deliver(LengthReached(1, LENGTH, 0.5), WorkAssigned(None, True))
    deliver_exit(actor, "errored", "exit code 3")
    return actor


def test_failure_after_the_final_length_is_a_failure() -> None:
    actor = failed_after_its_length()
    assert (actor.state.status, actor.state.restarts) == (Status.ACTIVE, 1)
    assert actor.state.steps == LENGTH
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert actor.messages_to(EXPERIMENT) == []


def test_run_after_a_failed_end_gets_the_same_length_again() -> None:
    # The code may not have saved the last batches, so the new run may have to repeat the training.
    actor = place_trial(failed_after_its_length())
    directives = trial_directives(actor.state)
    assert (directives["length"], directives["closed"], directives["answered"]) == (LENGTH, True, 0)
    actor.deliver(LengthReached(2, LENGTH, 0.4))
    assert actor.sent == []
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert (actor.state.metric, actor.state.restarts) == (0.5, 1)


def test_good_exit_at_the_reached_length_completes_the_trial() -> None:
    # The code found the length already trained, and requested no operation of the searcher.
    actor = place_trial(failed_after_its_length())
    deliver_exit(actor, "stop_requested")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_failures_after_the_final_length_use_up_restarts() -> None:
    actor = failed_after_its_length(max_restarts=1)
    deliver_exit(place_trial(actor), "errored", "exit code 3")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.ERROR, ExitReason.ERRORED, "exit code 3")
    ]
    assert actor.state.restarts == 2


@pytest.mark.parametrize("reason", ["lost", "preempted"])
def test_trial_that_failed_after_the_final_length_runs_until_a_good_exit(reason: str) -> None:
    actor = place_trial(failed_after_its_length())
    deliver_exit(actor, reason)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    deliver_exit(place_trial(actor), "completed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_failure_before_the_searchs_answer_waits_for_the_answer() -> None:
    # The trial has reached its length, so a new run would train nothing.
    actor = running_trial(closed=False)
    actor.deliver(checkpoint_reported(LENGTH), LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, "errored")
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    assert actor.state.restarts == 1
    actor.deliver(WorkAssigned(None, True))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_longer_length_replaces_the_repetition_of_a_failed_end() -> None:
    actor = running_trial(closed=False)
    actor.deliver(checkpoint_reported(LENGTH), LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, "errored")
    actor.deliver(WorkAssigned(400, True))
    place_trial(actor)
    assert trial_directives(actor.state)["answered"] == LENGTH
    actor.deliver(LengthReached(2, 400, 0.3))
    # The failure belongs to an earlier run: this run has no work left.
    deliver_exit(actor, "lost")
    assert actor.state.status is Status.COMPLETED


def test_trial_stopped_after_a_failed_end_does_not_run_again() -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5), PreemptionRequested(1, "slots are wanted"))
    deliver_exit(actor, "errored")
    assert (actor.state.status, actor.state.restarts) == (Status.COMPLETED, 0)


def test_checkpoint_is_stored_as_a_part_and_found_by_uuid() -> None:
    actor = running_trial()
    reported = checkpoint_reported(40)
    actor.deliver(reported)
    assert record(actor, 40) == CheckpointRecord(reported.checkpoint, 8, 1, None, actor.now_ms, {})
    assert actor.row("checkpoints", reported.checkpoint.uuid).body == b"4"
    assert actor.state.checkpoint == reported.checkpoint


def test_older_checkpoint_is_kept_in_addition_to_the_latest() -> None:
    actor = running_trial()
    actor.deliver(checkpoint_reported(40), checkpoint_reported(20))
    assert actor.state.checkpoint.steps_completed == 40
    assert record(actor, 20).checkpoint.steps_completed == 20


def test_checkpoint_after_the_validation_has_the_metric() -> None:
    actor = running_trial()
    actor.deliver(ValidationReported(1, 40, 0.5), checkpoint_reported(40))
    assert record(actor, 40).metric == 0.5


def test_checkpoint_before_the_validation_gets_the_metric() -> None:
    # The order at the end of a length: a known metric can always be restored.
    actor = running_trial()
    actor.deliver(checkpoint_reported(40))
    actor.deliver(ValidationReported(1, 40, 0.5))
    assert record(actor, 40).metric == 0.5


def test_checkpoint_stored_during_further_training_keeps_the_metric() -> None:
    actor = running_trial()
    actor.deliver(ValidationReported(1, 40, 0.5))
    actor.deliver(ValidationReported(1, 60, 0.25))
    actor.deliver(replace(checkpoint_reported(40), metric=0.5))
    assert record(actor, 40).metric == 0.5
    # The metric of the known validation takes precedence over the metric of the report.
    actor.deliver(replace(checkpoint_reported(60), metric=9.0))
    assert record(actor, 60).metric == 0.25


def test_checkpoint_never_has_the_metric_of_a_different_step() -> None:
    # Back at 40 after a failure, the last metric is that of batch 60.
    actor = running_trial()
    actor.deliver(checkpoint_reported(40), ValidationReported(1, 60, 0.5))
    deliver_exit(actor, "errored")
    place_trial(actor).deliver(checkpoint_reported(40, epoch=2, number=1))
    again = actor.part(f"checkpoint/{checkpoint_reported(40, number=1).checkpoint.uuid}")
    assert isinstance(again, CheckpointRecord)
    assert again.metric is None
    assert record(actor, 40).metric is None


def test_fallback_ends_the_trial_in_error_and_releases_the_slots() -> None:
    actor = running_trial()
    actor.deliver_dead_letter(ValidationReported(1, 60, 0.5))
    text = "internal error: ValidationReported could not be processed"
    assert actor.state.status is Status.ERROR
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.ERROR, ExitReason.ERRORED, text)]
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_fallback_for_a_creation_ends_the_trial() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver_dead_letter(trial_created())
    assert actor.state.status is Status.ERROR
    assert [type(message) for message in actor.messages_to(EXPERIMENT)] == [TrialEnded]
    assert actor.messages_to(POOL) == []


def test_dead_letter_creates_no_trial() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver_dead_letter(WorkAssigned(400, True))
    assert actor.state is None
    assert actor.sent == []


def test_trial_that_always_yields_without_training_ends() -> None:
    actor = running_trial(trial_settings())
    for _ in range(STALLS_MAX):
        deliver_exit(actor, "idle")
        place_trial(actor)
    assert wants_slots(actor.state)
    deliver_exit(actor, "idle")
    assert actor.state.status is Status.ERROR
    assert "without training a batch" in actor.state.message
