"""A trial that is killed alone, goes on after its end, or is deleted; stops that only get worse."""

import itertools

import pytest

from control_plane.actors.experiment_messages import TrialEnded
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.step import Refused, SetTimer
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    CheckpointFilesDeleted,
    CheckpointsUnwanted,
    ContainerStateReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialDeleted,
    TrialKillRequested,
    TrialMoved,
    WorkAssigned,
)
from control_plane.actors.trial_state import Wish
from control_plane.searchers.method import ExitReason
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, checkpoint_reported, created, settings

POOL, EXPERIMENT = "pool#default", "experiment#1"
KILL = TrialKillRequested()
CANCELED = TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)
WORSE = (
    Status.STOPPING_COMPLETED,
    Status.STOPPING_CANCELED,
    Status.STOPPING_KILLED,
    Status.STOPPING_ERROR,
)


def queued(of: TrialSettings | None = None) -> Desk:
    desk = Desk("trial#4")
    desk.tell(created(of=of))
    return desk


def running(of: TrialSettings | None = None) -> Desk:
    return placed(queued(of))


def placed(desk: Desk) -> Desk:
    epoch = desk.state.epoch
    desk.tell(SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, "RUNNING"))
    return desk


def exited(desk: Desk, reason: str, message: str = "") -> None:
    desk.tell(AllocationExited(desk.state.epoch, reason, message=message))


def wish(desk: Desk) -> Wish:
    found: Wish = desk.state.allocation.wish
    return found


def failed(of: TrialSettings | None = None) -> Desk:
    """A trial in ERROR with a checkpoint at 40 of 100 batches and one restart behind it."""
    desk = running(of or settings(max_restarts=0))
    desk.tell(checkpoint_reported(40))
    exited(desk, "errored", "out of luck")
    assert desk.state.status is Status.ERROR
    return desk


def step_era(*, terminate_ms: int = 60_000) -> TrialSettings:
    return TrialSettings("default", 2, 5, True, settings().lengths, 500, terminate_ms=terminate_ms)


def test_a_queued_trial_that_is_killed_ends_at_once() -> None:
    desk = queued()
    assert desk.tell(KILL) == 4
    assert desk.state.status is Status.CANCELED
    assert desk.sent_to(EXPERIMENT) == [CANCELED]
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_a_running_trial_that_is_killed_is_stopped_at_once_and_ends_when_it_is_gone() -> None:
    desk = running()
    desk.tell(KILL)
    assert (desk.state.allocation.wish, desk.state.status) == (Wish.KILL, Status.ACTIVE)
    assert desk.sent == []
    exited(desk, "killed")
    assert desk.sent_to(EXPERIMENT) == [CANCELED]


@pytest.mark.parametrize("reason", ["killed", "errored", "lost", "preempted", "start_failed"])
def test_a_kill_is_no_failure_and_nothing_restarts_after_it(reason: str) -> None:
    desk = running(settings(max_restarts=0))
    desk.tell(KILL)
    exited(desk, reason)
    assert desk.state.status is Status.CANCELED
    assert desk.state.restarts == 0
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_a_killed_trial_whose_machine_is_lost_ends() -> None:
    desk = running()
    desk.tell(KILL)
    desk.tell(AllocationLost(1, "agent a was lost"))
    assert desk.sent_to(EXPERIMENT) == [CANCELED]


def test_a_trial_that_completed_before_it_was_killed_has_completed() -> None:
    desk = running()
    desk.tell(LengthReported(1, LENGTH, 0.5), KILL)
    exited(desk, "completed")
    assert desk.state.status is Status.COMPLETED


def test_a_paused_trial_that_is_killed_ends() -> None:
    desk = queued()
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    desk.tell(KILL)
    assert desk.sent_to(EXPERIMENT) == [CANCELED]


def test_a_kill_upgrades_a_pause_that_is_under_way() -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    assert wish(desk) is Wish.PREEMPT
    desk.tell(KILL)
    assert wish(desk) is Wish.KILL


def test_killing_twice_or_what_has_ended_changes_nothing() -> None:
    desk = running()
    desk.tell(KILL)
    before = desk.state
    assert desk.tell(KILL) == 4
    assert desk.state == before
    exited(desk, "killed")
    ended = desk.state
    assert desk.tell(KILL) == 4
    assert (desk.state, desk.sent) == (ended, [])


def test_a_forced_stop_kills_what_a_canceled_experiment_runs() -> None:
    # In the step era a killed experiment is canceled: the containers go at once all the same.
    desk = running()
    desk.tell(ExperimentStatusChanged(Status.STOPPING_CANCELED))
    assert wish(desk) is Wish.PREEMPT
    desk.tell(ExperimentStatusChanged(Status.STOPPING_CANCELED, forced=True))
    assert wish(desk) is Wish.KILL
    exited(desk, "killed")
    assert desk.sent_to(EXPERIMENT) == [CANCELED]


@pytest.mark.parametrize(("before", "after"), list(itertools.product(WORSE, WORSE)))
def test_stopping_only_gets_worse(before: Status, after: Status) -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(before), ExperimentStatusChanged(after))
    assert desk.state.experiment_status is max(before, after, key=WORSE.index)


@pytest.mark.parametrize(
    "status", [s for s in Status if not s.stopping], ids=lambda status: str(status)
)
def test_a_stopping_trial_hears_of_nothing_milder(status: Status) -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(Status.STOPPING_CANCELED), ExperimentStatusChanged(status))
    assert desk.state.experiment_status is Status.STOPPING_CANCELED


@pytest.mark.parametrize("status", [s for s in Status if s.final])
def test_a_final_status_of_its_experiment_is_none_of_a_trials(status: Status) -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(status))
    assert desk.state.experiment_status is Status.ACTIVE


def test_one_that_has_saved_its_work_and_does_not_end_is_killed_after_a_minute() -> None:
    desk = running(step_era())
    desk.tell(ExperimentStatusChanged(Status.PAUSED))
    desk.now_ms = 5_000
    desk.tell(checkpoint_reported(40))
    assert desk.timers == [SetTimer(65_000, TerminationOverdue(1))]
    desk.tell(TerminationOverdue(1))
    assert wish(desk) is Wish.KILL
    exited(desk, "killed")
    # It goes on from what it saved when it is activated, and it did not fail.
    assert (desk.state.status, desk.state.steps, desk.state.restarts) == (Status.ACTIVE, 40, 0)
    desk.tell(ExperimentStatusChanged(Status.ACTIVE))
    assert desk.state.epoch == 2


def test_a_trial_that_ends_in_time_hears_nothing_of_the_minute() -> None:
    desk = running(step_era())
    desk.tell(PreemptionRequested(1, "slots are wanted"), checkpoint_reported(40))
    exited(desk, "preempted")
    placed(desk)
    before = desk.state
    desk.tell(TerminationOverdue(1))
    assert desk.state == before


def test_no_minute_is_set_while_nobody_wants_it_to_stop_nor_in_the_length_era() -> None:
    desk = running(step_era())
    desk.tell(checkpoint_reported(40))
    assert desk.timers == []
    desk = running()
    desk.tell(ExperimentStatusChanged(Status.PAUSED), checkpoint_reported(40))
    assert desk.timers == []


def test_what_waits_moves_to_another_pool_at_once() -> None:
    desk = queued()
    desk.tell(TrialMoved("spot"))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]
    [request] = desk.sent_to("pool#spot")
    assert isinstance(request, SlotsRequested)
    assert (request.epoch, request.group) == (2, 1)
    # The pool that it left may have placed it meanwhile.
    desk.tell(SlotsAssigned(1, (Place("a", (0, 1)),)))
    assert desk.state.allocation.places == ()


def test_what_runs_saves_its_work_before_it_moves_and_gives_its_slots_back_where_it_has_them() -> (
    None
):
    desk = running()
    desk.tell(TrialMoved("spot"))
    assert desk.sent == []
    assert desk.state.allocation.wish == "preempt"
    assert desk.state.allocation.wish_reason == "the experiment moved to pool spot"
    desk.tell(checkpoint_reported(40))
    exited(desk, "preempted")
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]
    assert [type(message) for message in desk.sent_to("pool#spot")] == [SlotsRequested]
    assert desk.state.restarts == 0


def test_a_move_to_the_pool_it_is_in_is_none() -> None:
    for desk in (queued(), running()):
        before = desk.state
        desk.tell(TrialMoved("default"))
        assert (desk.state, desk.sent) == (before, [])


def test_a_preempted_trial_keeps_the_place_of_its_job_in_the_queue() -> None:
    # Submitted at 500 ms; it asks again an hour later.
    desk = running()
    desk.now_ms = 3_600_000
    desk.tell(PreemptionRequested(1, "its share is 0 of 4 slots"))
    exited(desk, "preempted")
    [request] = [m for m in desk.sent_to(POOL) if isinstance(m, SlotsRequested)]
    assert request.ticket == "00000000000500.00000003600000.000000000004"


def test_a_trial_goes_on_from_its_latest_checkpoint_with_restarts_to_spare() -> None:
    desk = failed()
    desk.tell(TrialContinued(1, settings(max_restarts=2)))
    state = desk.state
    assert (state.status, state.experiment_status) == (Status.ACTIVE, Status.ACTIVE)
    assert (state.restarts, state.message, state.ended_ms) == (0, "", None)
    assert (state.steps, state.checkpoint.steps_completed) == (40, 40)
    [request] = desk.sent_to(POOL)
    assert isinstance(request, SlotsRequested)
    assert request.epoch == 2
    # Two restarts are three more runs.
    for _ in range(3):
        exited(placed(desk), "errored")
    assert desk.state.status is Status.ERROR
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(
            3, Status.ERROR, ExitReason.ERRORED, "the trial's process failed (errored)", life=1
        )
    ]


def test_a_trial_without_a_checkpoint_goes_on_from_the_start() -> None:
    desk = running(settings(max_restarts=0))
    exited(desk, "errored")
    desk.tell(TrialContinued(1, settings()))
    assert (desk.state.steps, desk.state.allocation.from_steps) == (0, 0)


def test_a_killed_trial_may_go_on() -> None:
    desk = queued()
    desk.tell(KILL)
    desk.tell(TrialContinued(1, settings()))
    assert not desk.state.killed
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]


def test_a_trial_that_failed_after_its_last_length_completes_at_once() -> None:
    desk = running(settings(max_restarts=0))
    desk.tell(LengthReported(1, LENGTH, 0.5), KILL)
    exited(desk, "killed")
    assert desk.state.status is Status.CANCELED
    desk.tell(TrialContinued(1, settings()))
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "", life=1)]


def test_a_lengthened_trial_trains_on_from_where_it_was() -> None:
    desk = running()
    desk.tell(checkpoint_reported(LENGTH), LengthReported(1, LENGTH, 0.5))
    exited(desk, "completed")
    desk.tell(TrialContinued(1, settings(), 250))
    assert (desk.state.length, desk.state.reached, desk.state.steps) == (250, LENGTH, LENGTH)
    placed(desk).tell(LengthReported(2, 250, 0.4))
    exited(desk, "completed")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "", life=1)]


def test_a_trial_that_has_not_ended_is_not_continued() -> None:
    desk = running()
    before = desk.state
    desk.tell(TrialContinued(1, settings(), 250))
    assert (desk.state, desk.sent) == (before, [])


def test_a_late_word_to_go_on_wakes_nobody() -> None:
    desk = failed()
    desk.tell(TrialContinued(1, settings(max_restarts=0)))
    exited(placed(desk), "errored")
    ended = desk.state
    desk.tell(TrialContinued(1, settings()), TrialContinued(0, settings()))
    assert (desk.state, desk.sent) == (ended, [])


def test_reports_of_before_the_end_are_late_after_it() -> None:
    desk = failed()
    desk.tell(TrialContinued(1, settings()))
    before = desk.state
    desk.tell(AllocationExited(1, "errored"), LengthReported(1, LENGTH, 0.1), KILL)
    assert before.epoch == 2
    assert desk.state.status is Status.CANCELED


def test_a_deleted_trial_leaves_a_head_that_wants_nothing() -> None:
    desk = failed()
    desk.tell(TrialDeleted())
    assert desk.state.deleted
    assert (desk.state.hparams, desk.state.checkpoint) == ({}, None)
    before = desk.state
    desk.tell(
        TrialDeleted(),
        TrialContinued(5, settings()),
        WorkAssigned(400, False),
        CheckpointsUnwanted(("x",)),
        CheckpointFilesDeleted(("x",)),
        AllocationExited(1, "errored"),
        created(),
    )
    assert (desk.state, desk.sent) == (before, [])
    with pytest.raises(Refused, match="trial 4 was deleted with its experiment") as refused:
        desk.tell(KILL)
    assert refused.value.code == "not_found"


def test_a_trial_that_runs_is_not_deleted() -> None:
    desk = running()
    before = desk.state
    desk.tell(TrialDeleted())
    assert desk.state == before


@pytest.mark.parametrize(
    "message",
    [KILL, TrialContinued(1, settings()), TrialDeleted(), TrialMoved("b"), TerminationOverdue(1)],
)
def test_nothing_new_makes_a_trial(message: object) -> None:
    desk = Desk("trial#4")
    desk.tell(message)
    assert (desk.state, desk.sent) == (None, [])
