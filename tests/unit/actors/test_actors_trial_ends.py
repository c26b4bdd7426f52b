"""How a trial ends: restarts, rollbacks, exits by its own code, and what it reports on the way."""

import sys

import pytest

from control_plane.actors.experiment_messages import TrialEnded, TrialLengthReached, TrialValidated
from control_plane.actors.lengths import Lengths
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.trial import STALLS_MAX
from control_plane.actors.trial_checkpoints import CheckpointRecord
from control_plane.actors.trial_course import wants_slots
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    SlotsAssigned,
    ValidationReported,
    WorkAssigned,
)
from control_plane.searchers.method import ExitReason
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, checkpoint_reported, created, settings

POOL, EXPERIMENT = "pool#default", "experiment#1"


def running(of: TrialSettings | None = None, *, closed: bool = True) -> Desk:
    desk = Desk("trial#4")
    desk.tell(created(closed=closed, of=of))
    return placed(desk)


def placed(desk: Desk) -> Desk:
    epoch = desk.state.epoch
    desk.tell(SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, "RUNNING"))
    return desk


def exited(desk: Desk, reason: str, message: str = "") -> None:
    desk.tell(AllocationExited(desk.state.epoch, reason, message=message))


def record(desk: Desk, steps: int) -> CheckpointRecord:
    found = desk.part(f"checkpoint/{checkpoint_reported(steps).checkpoint.uuid}")
    assert isinstance(found, CheckpointRecord)
    return found


def test_five_restarts_permit_six_runs() -> None:
    desk = running(settings(max_restarts=5))
    for failures in range(1, 6):
        exited(desk, "errored")
        assert desk.state.restarts == failures
        placed(desk)
    assert desk.state.epoch == 6
    exited(desk, "errored", "out of luck")
    assert desk.state.status is Status.ERROR
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(3, Status.ERROR, ExitReason.ERRORED, "out of luck")
    ]
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_no_restarts_permit_one_run() -> None:
    desk = running(settings(max_restarts=0))
    exited(desk, "errored")
    assert desk.state.status is Status.ERROR
    assert desk.state.message == "the trial's process failed (errored)"


@pytest.mark.parametrize("reason", ["errored", "something new"])
def test_a_failure_is_counted(reason: str) -> None:
    desk = running()
    exited(desk, reason)
    assert (desk.state.restarts, desk.state.losses) == (1, 0)


@pytest.mark.parametrize("reason", ["preempted", "idle"])
def test_a_stop_is_no_failure(reason: str) -> None:
    desk = running(settings(max_restarts=0))
    exited(desk, reason)
    assert (desk.state.restarts, desk.state.losses) == (0, 0)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]


@pytest.mark.parametrize("reason", ["lost", "killed"])
def test_a_machine_that_goes_or_an_agent_that_is_stopped_is_no_failure_of_the_trial(
    reason: str,
) -> None:
    desk = running(settings(max_restarts=0))
    exited(desk, reason)
    assert (desk.state.restarts, desk.state.losses) == (0, 1)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]


def test_a_lost_allocation_is_no_failure_of_the_trial() -> None:
    desk = running(settings(max_restarts=0))
    desk.tell(AllocationLost(1, "agent a was lost"))
    assert (desk.state.restarts, desk.state.losses, desk.state.epoch) == (0, 1, 2)


@pytest.mark.parametrize(
    "asked",
    [PreemptionRequested(1, "slots are wanted"), ExperimentStatusChanged(Status.PAUSED)],
)
def test_a_failure_while_stopping_is_not_counted(asked: object) -> None:
    desk = running(settings(max_restarts=0))
    desk.tell(asked)
    exited(desk, "errored", "broken pipe")
    assert desk.state.status is Status.ACTIVE
    assert desk.state.restarts == 0
    assert desk.state.message == "broken pipe"


def test_restarts_are_not_reset_by_success() -> None:
    desk = running(settings(max_restarts=1), closed=False)
    exited(desk, "errored")
    placed(desk).tell(LengthReported(2, LENGTH, 0.5), WorkAssigned(400, True))
    exited(desk, "errored")
    assert desk.state.status is Status.ERROR


def test_a_restarted_trial_goes_back_to_its_latest_checkpoint() -> None:
    desk = running()
    desk.tell(checkpoint_reported(40), ValidationReported(1, 60, 0.5))
    assert desk.state.steps == 60
    exited(desk, "errored")
    assert desk.state.steps == 40
    assert desk.state.checkpoint.steps_completed == 40


def test_a_trial_without_a_checkpoint_starts_over() -> None:
    desk = running()
    desk.tell(ValidationReported(1, 60, 0.5))
    exited(desk, "errored")
    assert desk.state.steps == 0
    assert desk.state.checkpoint is None


def test_the_search_does_not_see_a_length_again() -> None:
    # Reached 100, went on towards 400, failed and began again at 0: 100 is reached a second time.
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, 0.5))
    assert desk.sent_to(EXPERIMENT) == [TrialLengthReached(3, LENGTH, 0.5, False)]
    desk.tell(WorkAssigned(400, False))
    exited(desk, "errored")
    placed(desk).tell(LengthReported(2, LENGTH, 0.4))
    assert desk.sent == []
    desk.tell(LengthReported(2, 400, 0.3))
    assert desk.sent_to(EXPERIMENT) == [TrialLengthReached(3, 400, 0.3, False)]


def test_a_length_reported_twice_counts_once() -> None:
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, 0.5))
    desk.tell(LengthReported(1, LENGTH, 0.4))
    assert desk.sent == []


@pytest.mark.parametrize("length", [0, 50, 101])
def test_a_length_that_nobody_asked_for_is_ignored(length: int) -> None:
    desk = running()
    desk.tell(LengthReported(1, length, 0.5))
    assert desk.sent == []
    assert desk.state.reached == 0


@pytest.mark.parametrize(
    ("smaller_is_better", "worst"), [(True, sys.float_info.max), (False, -sys.float_info.max)]
)
def test_a_metric_that_is_no_number_is_the_worst_to_the_search(
    smaller_is_better: bool, worst: float
) -> None:
    desk = running(settings(smaller_is_better=smaller_is_better))
    desk.tell(ValidationReported(1, LENGTH, None), LengthReported(1, LENGTH, None))
    assert desk.sent_to(EXPERIMENT) == [
        TrialValidated(3, 100.0, None),
        TrialLengthReached(3, LENGTH, worst, True),
    ]
    assert desk.state.best_metric is None


@pytest.mark.parametrize(("smaller_is_better", "best"), [(True, 0.2), (False, 0.9)])
def test_the_trials_best_metric_follows_its_sign(smaller_is_better: bool, best: float) -> None:
    desk = running(settings(smaller_is_better=smaller_is_better))
    for steps, metric in ((10, 0.5), (20, 0.9), (30, 0.2), (40, 0.4)):
        desk.tell(ValidationReported(1, steps, metric))
    assert (desk.state.best_metric, desk.state.metric) == (best, 0.4)


def test_lengths_and_units_are_converted_at_the_trial() -> None:
    # 2 epochs of 1000 records in batches of 64: 2000 // 64 = 31; 31 * 64 / 1000 = 1.984 epochs.
    desk = Desk("trial#4")
    epochs = settings(lengths=Lengths("epochs", records_per_epoch=1000))
    desk.tell(created(length=2, of=epochs, hparams={"global_batch_size": 64}))
    assert desk.state.length == 31
    placed(desk).tell(ValidationReported(1, 31, 0.5), LengthReported(1, 31, 0.5))
    assert desk.sent_to(EXPERIMENT) == [
        TrialValidated(3, 1.984, 0.5),
        TrialLengthReached(3, 2, 0.5, True),
    ]


@pytest.mark.parametrize("reason", [ExitReason.INVALID_HP, ExitReason.INIT_INVALID_HP])
@pytest.mark.parametrize("exit_reason", ["invalid_hp", "errored", "completed"])
def test_a_trial_that_refuses_its_hyperparameters_is_not_restarted(
    reason: ExitReason, exit_reason: str
) -> None:
    desk = running()
    desk.tell(EarlyExitReported(1, reason))
    exited(desk, exit_reason)
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, reason)]
    assert desk.state.message == "the hyperparameters were refused"
    assert desk.state.restarts == 0


def test_a_refusal_is_forgotten_with_its_allocation() -> None:
    # The exit was lost with the machine: the next run speaks for itself.
    desk = running()
    desk.tell(EarlyExitReported(1, ExitReason.INVALID_HP))
    desk.tell(AllocationLost(1, "agent a was lost"))
    assert desk.state.early_exit == ""
    placed(desk)
    exited(desk, "completed")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_a_trial_may_ask_to_stop() -> None:
    desk = running()
    desk.tell(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    exited(desk, "stop_requested")
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


@pytest.mark.parametrize("reason", ["errored", "lost", "preempted"])
def test_a_crash_after_all_work_was_reported_still_completes_the_trial(reason: str) -> None:
    desk = running()
    desk.tell(LengthReported(1, LENGTH, 0.5))
    exited(desk, reason)
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_a_completed_exit_wins_over_a_kill() -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(Status.STOPPING_KILLED))
    exited(desk, "completed")
    assert desk.state.status is Status.COMPLETED


def test_a_checkpoint_is_kept_as_a_part_and_found_by_its_uuid() -> None:
    desk = running()
    reported = checkpoint_reported(40)
    desk.tell(reported)
    assert record(desk, 40) == CheckpointRecord(reported.checkpoint, 8, 1, None, desk.now_ms, {})
    assert desk.row("checkpoints", reported.checkpoint.uuid).body == b"4"
    assert desk.state.checkpoint == reported.checkpoint


def test_an_older_checkpoint_is_kept_beside_the_newest() -> None:
    desk = running()
    desk.tell(checkpoint_reported(40), checkpoint_reported(20))
    assert desk.state.checkpoint.steps_completed == 40
    assert record(desk, 20).checkpoint.steps_completed == 20


def test_a_checkpoint_after_its_validation_has_its_metric() -> None:
    desk = running()
    desk.tell(ValidationReported(1, 40, 0.5), checkpoint_reported(40))
    assert record(desk, 40).metric == 0.5


def test_a_checkpoint_before_its_validation_gets_its_metric() -> None:
    # The order at the end of a length: a metric that is known can always be restored.
    desk = running()
    desk.tell(checkpoint_reported(40))
    desk.tell(ValidationReported(1, 40, 0.5))
    assert record(desk, 40).metric == 0.5


def test_a_checkpoint_never_has_the_metric_of_another_step() -> None:
    # Back at 40 after a failure, the last metric is the one of 60.
    desk = running()
    desk.tell(checkpoint_reported(40), ValidationReported(1, 60, 0.5))
    exited(desk, "errored")
    placed(desk).tell(checkpoint_reported(40, epoch=2, number=1))
    again = desk.part(f"checkpoint/{checkpoint_reported(40, number=1).checkpoint.uuid}")
    assert isinstance(again, CheckpointRecord)
    assert again.metric is None
    assert record(desk, 40).metric is None


def test_a_trial_that_cannot_take_a_message_ends_in_error_and_gives_its_slots_back() -> None:
    desk = running()
    desk.bury(ValidationReported(1, 60, 0.5))
    text = "internal error: ValidationReported could not be processed"
    assert desk.state.status is Status.ERROR
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.ERROR, ExitReason.ERRORED, text)]
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_a_creation_that_could_not_be_processed_ends_its_trial() -> None:
    desk = Desk("trial#4")
    desk.bury(created())
    assert desk.state.status is Status.ERROR
    assert [type(message) for message in desk.sent_to(EXPERIMENT)] == [TrialEnded]
    assert desk.sent_to(POOL) == []


def test_a_dead_letter_to_no_trial_makes_none() -> None:
    desk = Desk("trial#4")
    desk.bury(WorkAssigned(400, True))
    assert desk.state is None
    assert desk.sent == []


def test_a_trial_that_gives_up_its_slots_again_and_again_without_training_ends() -> None:
    desk = running(settings())
    for _ in range(STALLS_MAX):
        exited(desk, "idle")
        placed(desk)
    assert wants_slots(desk.state)
    exited(desk, "idle")
    assert desk.state.status is Status.ERROR
    assert "without training a batch" in desk.state.message


def test_a_crash_after_the_last_length_is_no_failure() -> None:
    desk = running(settings(max_restarts=0))
    desk.tell(LengthReported(1, desk.state.length, 0.5))
    exited(desk, "errored")
    assert (desk.state.status, desk.state.restarts) == (Status.COMPLETED, 0)
