"""A trial that is killed alone, continued or deleted, and stopping statuses of growing severity."""

import itertools

import pytest

from control_plane.actors.messages.experiment import TrialEnded
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    CheckpointDeletionRequested,
    CheckpointFilesDeleted,
    ContainerStateReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialDeleted,
    TrialKillRequested,
    TrialMoved,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.step import CommandRefused, SetTimer
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    checkpoint_reported,
    trial_created,
    trial_settings,
)

POOL, EXPERIMENT = "pool#default", "experiment#1"
KILL = TrialKillRequested()
CANCELED = TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)
WORSE = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


def queued_trial(of: TrialSettings | None = None) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=of))
    return actor


def running_trial(of: TrialSettings | None = None) -> ActorHarness:
    return place_trial(queued_trial(of))


def place_trial(actor: ActorHarness) -> ActorHarness:
    epoch = actor.state.epoch
    actor.deliver(
        SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, "RUNNING")
    )
    return actor


def deliver_exit(actor: ActorHarness, reason: str, message: str = "") -> None:
    actor.deliver(AllocationExited(actor.state.epoch, reason, message=message))


def desired_state(actor: ActorHarness) -> DesiredState:
    desired: DesiredState = actor.state.allocation.desired_state
    return desired


def failed_trial(of: TrialSettings | None = None) -> ActorHarness:
    """Create a trial in ERROR with a checkpoint at batch 40 of 100, after a restart."""
    actor = running_trial(of or trial_settings(max_restarts=0))
    actor.deliver(checkpoint_reported(40))
    deliver_exit(actor, "errored", "out of luck")
    assert actor.state.status is Status.ERROR
    return actor


def step_era(*, terminate_ms: int = 60_000) -> TrialSettings:
    return TrialSettings(
        "default", 2, 5, True, trial_settings().lengths, 500, terminate_ms=terminate_ms
    )


def test_unloadable_code_ends_the_trial_without_restarts() -> None:
    actor = running_trial(trial_settings(max_restarts=5))
    text = "there is no module"
    actor.deliver(AllocationExited(actor.state.epoch, "errored", message=text, is_permanent=True))
    assert (actor.state.status, actor.state.restarts) == (Status.ERROR, 1)
    assert actor.state.message == text


def test_unloadable_code_is_no_failure_of_a_killed_trial() -> None:
    actor = running_trial()
    actor.deliver(KILL)
    actor.deliver(AllocationExited(actor.state.epoch, "errored", is_permanent=True))
    assert actor.messages_to(EXPERIMENT) == [CANCELED]


def test_killed_queued_trial_ends_immediately() -> None:
    actor = queued_trial()
    assert actor.deliver(KILL) == 4
    assert actor.state.status is Status.CANCELED
    assert actor.messages_to(EXPERIMENT) == [CANCELED]
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_killed_running_trial_ends_after_the_exit() -> None:
    actor = running_trial()
    actor.deliver(KILL)
    assert (actor.state.allocation.desired_state, actor.state.status) == (
        DesiredState.KILL,
        Status.ACTIVE,
    )
    assert actor.sent == []
    deliver_exit(actor, "killed")
    assert actor.messages_to(EXPERIMENT) == [CANCELED]


@pytest.mark.parametrize("reason", ["killed", "errored", "lost", "preempted", "start_failed"])
def test_kill_is_no_failure_and_does_not_restart(reason: str) -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    actor.deliver(KILL)
    deliver_exit(actor, reason)
    assert actor.state.status is Status.CANCELED
    assert actor.state.restarts == 0
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_killed_trial_on_a_lost_machine_ends() -> None:
    actor = running_trial()
    actor.deliver(KILL)
    actor.deliver(AllocationLost(1, "agent a was lost"))
    assert actor.messages_to(EXPERIMENT) == [CANCELED]


def test_trial_killed_after_the_whole_length_is_canceled() -> None:
    # The process still ran: a stopping state precedes the search's own end.
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5), KILL)
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT)[-1] == CANCELED
    assert actor.state.status is Status.CANCELED


def test_trial_that_ended_before_the_kill_has_completed() -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, "completed")
    actor.deliver(KILL)
    assert actor.state.status is Status.COMPLETED


def test_killed_paused_trial_ends() -> None:
    actor = queued_trial()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.deliver(KILL)
    assert actor.messages_to(EXPERIMENT) == [CANCELED]


def test_kill_replaces_a_pause_in_progress() -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    assert desired_state(actor) is DesiredState.PREEMPT
    actor.deliver(KILL)
    assert desired_state(actor) is DesiredState.KILL


def test_second_kill_or_kill_of_an_ended_trial_changes_no_state() -> None:
    actor = running_trial()
    actor.deliver(KILL)
    before = actor.state
    assert actor.deliver(KILL) == 4
    assert actor.state == before
    deliver_exit(actor, "killed")
    ended = actor.state
    assert actor.deliver(KILL) == 4
    assert (actor.state, actor.sent) == (ended, [])


def test_forced_stop_kills_trials_of_a_canceled_experiment() -> None:
    # In the step era a killed experiment is canceled, but the containers are still killed
    # immediately.
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(Status.STOPPING_CANCELED))
    assert desired_state(actor) is DesiredState.PREEMPT
    actor.deliver(ExperimentStatusChanged(Status.STOPPING_CANCELED, forced=True))
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "killed")
    assert actor.messages_to(EXPERIMENT) == [CANCELED]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(WORSE, WORSE)))
def test_stopping_status_only_becomes_more_severe(before: Status, after: Status) -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(before), ExperimentStatusChanged(after))
    assert actor.state.experiment_status is max(before, after, key=WORSE.index)


@pytest.mark.parametrize(
    "status", [s for s in Status if not s.is_stopping], ids=lambda status: str(status)
)
def test_stopping_trial_ignores_less_severe_statuses(status: Status) -> None:
    actor = running_trial()
    actor.deliver(
        ExperimentStatusChanged(Status.STOPPING_CANCELED), ExperimentStatusChanged(status)
    )
    assert actor.state.experiment_status is Status.STOPPING_CANCELED


@pytest.mark.parametrize("status", [s for s in Status if s.is_final])
def test_final_status_of_the_experiment_does_not_change_the_trial(status: Status) -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(status))
    assert actor.state.experiment_status is Status.ACTIVE


def test_trial_that_saved_and_does_not_exit_is_killed_after_a_minute() -> None:
    actor = running_trial(step_era())
    actor.deliver(ExperimentStatusChanged(Status.PAUSED))
    actor.now_ms = 5_000
    actor.deliver(checkpoint_reported(40))
    assert actor.timers == [SetTimer(65_000, TerminationOverdue(1))]
    actor.deliver(TerminationOverdue(1))
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "killed")
    # The trial continues from its checkpoint after the activation, and no failure was counted.
    assert (actor.state.status, actor.state.steps, actor.state.restarts) == (Status.ACTIVE, 40, 0)
    actor.deliver(ExperimentStatusChanged(Status.ACTIVE))
    assert actor.state.epoch == 2


def test_timer_of_a_trial_that_exited_in_time_changes_no_state() -> None:
    actor = running_trial(step_era())
    actor.deliver(PreemptionRequested(1, "slots are wanted"), checkpoint_reported(40))
    deliver_exit(actor, "preempted")
    place_trial(actor)
    before = actor.state
    actor.deliver(TerminationOverdue(1))
    assert actor.state == before


def test_no_timer_is_set_without_a_stop_or_in_the_length_era() -> None:
    actor = running_trial(step_era())
    actor.deliver(checkpoint_reported(40))
    assert actor.timers == []
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(Status.PAUSED), checkpoint_reported(40))
    assert actor.timers == []


def test_queued_trial_moves_to_a_new_pool_immediately() -> None:
    actor = queued_trial()
    actor.deliver(TrialMoved("spot"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    [request] = actor.messages_to("pool#spot")
    assert isinstance(request, SlotsRequested)
    assert (request.epoch, request.group) == (2, 1)
    # The old pool may have assigned slots meanwhile.
    actor.deliver(SlotsAssigned(1, (Place("a", (0, 1)),)))
    assert actor.state.allocation.places == ()


def test_running_trial_saves_and_releases_slots_in_the_old_pool() -> None:
    actor = running_trial()
    actor.deliver(TrialMoved("spot"))
    assert actor.sent == []
    assert actor.state.allocation.desired_state == "preempt"
    assert actor.state.allocation.desired_state_reason == "the experiment moved to pool spot"
    actor.deliver(checkpoint_reported(40))
    deliver_exit(actor, "preempted")
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    assert [type(message) for message in actor.messages_to("pool#spot")] == [SlotsRequested]
    assert actor.state.restarts == 0


def test_move_to_the_present_pool_changes_no_state() -> None:
    for actor in (queued_trial(), running_trial()):
        before = actor.state
        actor.deliver(TrialMoved("default"))
        assert (actor.state, actor.sent) == (before, [])


def test_preempted_trial_keeps_the_queue_position_of_the_job() -> None:
    # Submitted at 500 ms; the trial requests slots again an hour later.
    actor = running_trial()
    actor.now_ms = 3_600_000
    actor.deliver(PreemptionRequested(1, "its share is 0 of 4 slots"))
    deliver_exit(actor, "preempted")
    [request] = [m for m in actor.messages_to(POOL) if isinstance(m, SlotsRequested)]
    assert request.ticket == "00000000000500.00000003600000.000000000004"


def test_continued_trial_starts_from_the_latest_checkpoint_with_new_restarts() -> None:
    actor = failed_trial()
    actor.deliver(TrialContinued(1, trial_settings(max_restarts=2)))
    state = actor.state
    assert (state.status, state.experiment_status) == (Status.ACTIVE, Status.ACTIVE)
    assert (state.restarts, state.message, state.ended_ms) == (0, "", None)
    assert (state.steps, state.checkpoint.steps_completed) == (40, 40)
    [request] = actor.messages_to(POOL)
    assert isinstance(request, SlotsRequested)
    assert request.epoch == 2
    # Two restarts are three more runs.
    for _ in range(3):
        deliver_exit(place_trial(actor), "errored")
    assert actor.state.status is Status.ERROR
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(
            3,
            Status.ERROR,
            ExitReason.ERRORED,
            "the trial's process failed (errored)",
            run_generation=1,
        )
    ]


def test_continued_trial_without_a_checkpoint_starts_from_the_beginning() -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    deliver_exit(actor, "errored")
    actor.deliver(TrialContinued(1, trial_settings()))
    assert (actor.state.steps, actor.state.allocation.from_steps) == (0, 0)


def test_killed_trial_may_be_continued() -> None:
    actor = queued_trial()
    actor.deliver(KILL)
    actor.deliver(TrialContinued(1, trial_settings()))
    assert not actor.state.killed
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_continued_trial_that_failed_after_the_last_length_completes_immediately() -> None:
    actor = running_trial(trial_settings(max_restarts=0))
    actor.deliver(LengthReached(1, LENGTH, 0.5), KILL)
    deliver_exit(actor, "killed")
    assert actor.state.status is Status.CANCELED
    actor.deliver(TrialContinued(1, trial_settings()))
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "", run_generation=1)]


def test_lengthened_trial_continues_the_training() -> None:
    actor = running_trial()
    actor.deliver(checkpoint_reported(LENGTH), LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, "completed")
    actor.deliver(TrialContinued(1, trial_settings(), 250))
    assert (actor.state.length, actor.state.reached, actor.state.steps) == (250, LENGTH, LENGTH)
    place_trial(actor).deliver(LengthReached(2, 250, 0.4))
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "", run_generation=1)]


def test_open_trial_is_not_continued() -> None:
    actor = running_trial()
    before = actor.state
    actor.deliver(TrialContinued(1, trial_settings(), 250))
    assert (actor.state, actor.sent) == (before, [])


def test_late_continuation_changes_no_state() -> None:
    actor = failed_trial()
    actor.deliver(TrialContinued(1, trial_settings(max_restarts=0)))
    deliver_exit(place_trial(actor), "errored")
    ended = actor.state
    actor.deliver(TrialContinued(1, trial_settings()), TrialContinued(0, trial_settings()))
    assert (actor.state, actor.sent) == (ended, [])


def test_reports_from_before_the_end_change_no_state() -> None:
    actor = failed_trial()
    actor.deliver(TrialContinued(1, trial_settings()))
    before = actor.state
    actor.deliver(AllocationExited(1, "errored"), LengthReached(1, LENGTH, 0.1), KILL)
    assert before.epoch == 2
    assert actor.state.status is Status.CANCELED


def test_deleted_trial_keeps_only_the_head() -> None:
    actor = failed_trial()
    actor.deliver(TrialDeleted())
    assert actor.state.deleted
    assert (actor.state.hparams, actor.state.checkpoint) == ({}, None)
    before = actor.state
    actor.deliver(
        TrialDeleted(),
        TrialContinued(5, trial_settings()),
        WorkAssigned(400, False),
        CheckpointDeletionRequested(("x",)),
        CheckpointFilesDeleted(("x",)),
        AllocationExited(1, "errored"),
        trial_created(),
    )
    assert (actor.state, actor.sent) == (before, [])
    with pytest.raises(CommandRefused, match="trial 4 was deleted with its experiment") as refused:
        actor.deliver(KILL)
    assert refused.value.code == "not_found"


def test_open_trial_is_not_deleted() -> None:
    actor = running_trial()
    before = actor.state
    actor.deliver(TrialDeleted())
    assert actor.state == before


@pytest.mark.parametrize(
    "message",
    [
        KILL,
        TrialContinued(1, trial_settings()),
        TrialDeleted(),
        TrialMoved("b"),
        TerminationOverdue(1),
    ],
)
def test_messages_other_than_a_creation_create_no_trial(message: object) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(message)
    assert (actor.state, actor.sent) == (None, [])


def test_running_trial_keeps_the_slots_in_an_automatic_move() -> None:
    actor = running_trial()
    actor.deliver(TrialMoved("spot", keeps_slots=True), TrialMoved("spot", keeps_slots=True))
    assert (actor.sent, actor.state.allocation.desired_state) == (
        [],
        running_trial().state.allocation.desired_state,
    )
    # Later slots are of the new pool.
    actor.deliver(PreemptionRequested(1, "its share is 0 of 4 slots"))
    deliver_exit(actor, "preempted")
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    assert [type(message) for message in actor.messages_to("pool#spot")] == [SlotsRequested]


def test_queued_trial_moves_immediately_in_an_automatic_move() -> None:
    actor = queued_trial()
    actor.deliver(TrialMoved("spot", keeps_slots=True))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    assert [type(message) for message in actor.messages_to("pool#spot")] == [SlotsRequested]
    actor.deliver(TrialMoved("spot", keeps_slots=True))
    assert actor.sent == []
