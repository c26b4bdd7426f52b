"""How a trial is stopped, and ends that are no failures of its own: they are bounded all the same.

The rules are those of Determined: what is ready is stopped gracefully and anything else at once;
what was killed or was asked to stop has not failed, nor has what never started.
"""

import pytest

from control_plane.actors.experiment_messages import TrialEnded
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.step import SetTimer
from control_plane.actors.trial import STALLS_MAX
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReported,
    PreemptionRequested,
    RestartDue,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialKillRequested,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.trial_state import Wish
from control_plane.searchers.method import ENDLESS, ExitReason
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, SUBMITTED_MS, checkpoint_reported, created, settings

POOL, EXPERIMENT = "pool#default", "experiment#1"
PAUSED = ExperimentStatusChanged(Status.PAUSED)
ACTIVE = ExperimentStatusChanged(Status.ACTIVE)
CANCELED = ExperimentStatusChanged(Status.STOPPING_CANCELED)
PREEMPTED = PreemptionRequested(1, "slots are wanted")
FORCED = PreemptionRequested(1, "agent a was disabled", forced=True)
HOUR_MS = 3_600_000


def timed(*, preempt_ms: int | None = None, terminate_ms: int | None = None) -> TrialSettings:
    return TrialSettings(
        pool="default",
        slots=2,
        max_restarts=5,
        smaller_is_better=True,
        lengths=settings().lengths,
        submitted_ms=SUBMITTED_MS,
        preempt_ms=preempt_ms,
        terminate_ms=terminate_ms,
    )


def placed(desk: Desk, container: str = "RUNNING") -> Desk:
    epoch = desk.state.epoch
    desk.tell(SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, container))
    return desk


def trial(of: TrialSettings | None = None, container: str = "RUNNING") -> Desk:
    desk = Desk("trial#4")
    desk.tell(created(of=of))
    return placed(desk, container)


def exited(desk: Desk, reason: str, message: str = "") -> None:
    desk.tell(AllocationExited(desk.state.epoch, reason, message=message))


def wish(desk: Desk) -> Wish:
    found: Wish = desk.state.allocation.wish
    return found


# Preemption: graceful for what is ready, else at once.


@pytest.mark.parametrize("container", ["", "PULLING", "STARTING"])
@pytest.mark.parametrize("asked", [PAUSED, CANCELED, PREEMPTED])
def test_what_does_not_run_yet_is_stopped_at_once(container: str, asked: object) -> None:
    desk = trial(container=container)
    desk.tell(asked)
    assert wish(desk) is Wish.KILL
    exited(desk, "killed")
    assert (desk.state.restarts, desk.state.losses) == (0, 0)


@pytest.mark.parametrize(
    "report", [ValidationReported(1, 10, 0.5), checkpoint_reported(10), LengthReported(1, 7, 0.5)]
)
def test_what_reports_runs_whatever_is_known_of_its_container(report: object) -> None:
    desk = trial(container="STARTING")
    desk.tell(report, PAUSED)
    assert wish(desk) is Wish.PREEMPT


def test_a_trial_stopped_before_it_ran_starts_when_it_is_activated() -> None:
    desk = trial(container="STARTING")
    desk.tell(PAUSED)
    exited(desk, "killed")
    assert desk.state.status is Status.ACTIVE
    desk.tell(ACTIVE)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]


def test_a_disabled_agent_stops_what_runs_and_it_goes_on_elsewhere() -> None:
    desk = trial(settings(max_restarts=0))
    desk.tell(checkpoint_reported(40), FORCED)
    assert wish(desk) is Wish.KILL
    exited(desk, "errored", "terminated")
    assert (desk.state.status, desk.state.restarts, desk.state.steps) == (Status.ACTIVE, 0, 40)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]


# The order in which an exit is judged: killed, asked to stop, a good end, an error.


def test_a_good_end_after_a_kill_is_the_kills() -> None:
    # A script that traps SIGTERM and leaves with 0 has not asked to stop.
    desk = trial()
    desk.tell(FORCED)
    exited(desk, "stop_requested")
    assert desk.state.status is Status.ACTIVE
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]
    desk = trial()
    desk.tell(TrialKillRequested())
    exited(desk, "stop_requested")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)]


@pytest.mark.parametrize("asked", [FORCED, PREEMPTED])
def test_code_that_asks_to_stop_stops_also_while_it_is_stopped(asked: object) -> None:
    desk = trial()
    desk.tell(asked, EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    exited(desk, "stop_requested")
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]


def test_code_that_said_that_it_stops_is_not_started_again_for_how_it_ends() -> None:
    # The search has heard of the stop: what the exit code says comes second.
    desk = trial()
    desk.tell(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    exited(desk, "errored", "segmentation fault")
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]
    assert desk.state.restarts == 0


def test_a_good_end_that_nobody_asked_for_is_a_stop_by_the_code() -> None:
    desk = trial()
    exited(desk, "stop_requested")
    assert desk.sent_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]


@pytest.mark.parametrize("reason", ["killed", "errored", "lost", "start_failed"])
def test_an_end_that_was_asked_for_is_neither_a_failure_nor_a_loss(reason: str) -> None:
    desk = trial(settings(max_restarts=0))
    desk.tell(PAUSED)
    exited(desk, reason)
    state = desk.state
    assert (state.status, state.restarts, state.losses, state.stalls) == (Status.ACTIVE, 0, 0, 0)
    assert desk.timers == []


# Trials mirror their experiment: STOPPING_x becomes x.


@pytest.mark.parametrize(
    ("status", "ended", "early_exit"),
    [
        (Status.STOPPING_COMPLETED, Status.COMPLETED, ""),
        (Status.STOPPING_CANCELED, Status.CANCELED, ExitReason.USER_CANCELED),
        (Status.STOPPING_KILLED, Status.CANCELED, ExitReason.USER_CANCELED),
        (Status.STOPPING_ERROR, Status.ERROR, ExitReason.ERRORED),
    ],
)
def test_a_stopped_trial_ends_as_its_experiment_does(
    status: Status, ended: Status, early_exit: str
) -> None:
    desk = trial()
    desk.tell(ExperimentStatusChanged(status))
    exited(desk, "preempted")
    # The experiment has its own reason, which nothing of a trial replaces.
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, ended, early_exit)]
    assert desk.state.message == ("the experiment ended in ERROR" if ended == "ERROR" else "")


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.STOPPING_COMPLETED, Status.CANCELED), (Status.STOPPING_ERROR, Status.ERROR)],
)
def test_a_trial_killed_alone_ends_in_what_is_worse(status: Status, ended: Status) -> None:
    desk = trial()
    desk.tell(TrialKillRequested(), ExperimentStatusChanged(status))
    exited(desk, "killed")
    assert desk.state.status is ended


# The preemption timeout: 3600 s in the length era unless configured; then it is killed.


@pytest.mark.parametrize("asked", [PAUSED, CANCELED, PREEMPTED])
def test_a_trial_that_does_not_heed_a_preemption_is_killed(asked: object) -> None:
    desk = trial(timed(preempt_ms=HOUR_MS))
    desk.now_ms = 5_000
    desk.tell(asked)
    assert desk.timers == [SetTimer(5_000 + HOUR_MS, TerminationOverdue(1))]
    desk.tell(TerminationOverdue(1))
    assert wish(desk) is Wish.KILL
    exited(desk, "killed")
    assert (desk.state.restarts, desk.state.losses) == (0, 0)


def test_the_time_to_heed_it_begins_once() -> None:
    desk = trial(timed(preempt_ms=HOUR_MS))
    desk.tell(PREEMPTED, PAUSED, CANCELED)
    assert len(desk.timers) == 1


def test_no_time_is_taken_where_nobody_is_preempted_or_all_is_over() -> None:
    desk = trial(timed(preempt_ms=HOUR_MS))
    desk.tell(LengthReported(1, LENGTH, 0.5))
    exited(desk, "completed")
    desk = trial(timed(preempt_ms=HOUR_MS), container="STARTING")
    desk.tell(PAUSED)
    assert desk.timers == []


def test_a_late_hour_finds_another_run_or_none() -> None:
    desk = trial(timed(preempt_ms=HOUR_MS))
    desk.tell(PREEMPTED)
    exited(desk, "preempted")
    placed(desk)
    before = desk.state
    desk.tell(TerminationOverdue(1))
    assert desk.state == before
    exited(desk, "completed")
    ended = desk.state
    desk.tell(TerminationOverdue(1), TerminationOverdue(2))
    assert desk.state == ended


# Refused hyperparameters: 10 s to end in the length era, a minute in the step era.


@pytest.mark.parametrize(("terminate_ms", "patience_ms"), [(None, 10_000), (60_000, 60_000)])
def test_code_that_refused_its_hyperparameters_and_goes_on_is_killed(
    terminate_ms: int | None, patience_ms: int
) -> None:
    desk = trial(timed(terminate_ms=terminate_ms))
    refused = EarlyExitReported(1, ExitReason.INVALID_HP)
    desk.tell(refused, refused)
    assert desk.timers == [SetTimer(desk.now_ms + patience_ms, TerminationOverdue(1))]
    desk.tell(TerminationOverdue(1))
    assert wish(desk) is Wish.KILL
    exited(desk, "killed")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, ExitReason.INVALID_HP)]


def test_code_that_asks_to_stop_may_take_its_time() -> None:
    desk = trial()
    desk.tell(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP), TerminationOverdue(1))
    assert (desk.timers, wish(desk)) == ([], Wish.RUN)


# Resources that never started are no failure of the trial, and not tried for ever.


def test_a_start_that_failed_is_not_counted_and_tried_again_after_a_while() -> None:
    desk = trial(settings(max_restarts=0), container="PULLING")
    exited(desk, "start_failed", "the disk is full")
    assert (desk.state.status, desk.state.restarts) == (Status.ACTIVE, 0)
    assert desk.state.message == "the disk is full"
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]
    assert desk.timers == [SetTimer(desk.now_ms + 1_000, RestartDue(1))]
    desk.tell(RestartDue(1))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]
    desk.tell(RestartDue(1))
    assert desk.sent == []


def test_starts_that_fail_come_slower_and_slower_and_end_the_trial_at_last() -> None:
    # 1 + 2 + 4 + 8 + 16 + 32 s, then 60 s each: 63 + 14 * 60 s are a quarter of an hour.
    desk = trial(settings(max_restarts=0))
    for _ in range(STALLS_MAX):
        exited(desk, "start_failed", "the disk is full")
        desk.tell(RestartDue(desk.state.epoch))
        placed(desk)
    pauses = [(timer.due_ms - desk.now_ms) // 1_000 for timer in desk.timers]
    assert pauses == [1, 2, 4, 8, 16, 32, *[60] * 14]
    assert sum(pauses) == 903
    exited(desk, "start_failed", "the disk is full")
    assert (desk.state.status, desk.state.restarts) == (Status.ERROR, 0)
    text = "it could not be started 21 times in a row: the disk is full"
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.ERROR, ExitReason.ERRORED, text)]


def test_a_trial_that_waits_for_its_next_start_is_paused_activated_and_killed_at_once() -> None:
    desk = trial()
    exited(desk, "start_failed")
    desk.tell(PAUSED)
    desk.tell(RestartDue(1))
    assert desk.sent == []
    desk.tell(ACTIVE)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]
    exited(placed(desk), "start_failed")
    desk.tell(PAUSED)
    # Whoever activates it does not want to wait.
    desk.tell(ACTIVE)
    assert desk.state.epoch == 3
    exited(placed(desk), "start_failed")
    desk.tell(TrialKillRequested())
    assert desk.state.status is Status.CANCELED
    desk.tell(TrialContinued(1, settings()))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]


def test_a_run_in_between_forgives_starts_that_failed() -> None:
    desk = trial()
    exited(desk, "start_failed")
    desk.tell(RestartDue(1))
    exited(placed(desk), "errored")
    assert (desk.state.stalls, desk.state.restarts) == (0, 1)


# Losses are no failures either. A machine that goes may go for ever; processes that vanish from one
# that is there are not started for ever.


def test_a_machine_may_be_lost_any_number_of_times() -> None:
    desk = trial(settings(max_restarts=0))
    for _ in range(3 * STALLS_MAX):
        desk.tell(AllocationLost(desk.state.epoch, "agent a was lost"))
        placed(desk)
    assert (desk.state.status, desk.state.losses) == (Status.ACTIVE, 3 * STALLS_MAX)


def test_processes_that_vanish_again_and_again_end_their_trial() -> None:
    desk = trial(settings(max_restarts=0))
    for _ in range(STALLS_MAX):
        exited(desk, "lost", "they disappeared")
        placed(desk)
    exited(desk, "lost", "they disappeared")
    assert desk.state.status is Status.ERROR
    assert (
        desk.state.message
        == "it was lost 21 times in a row without training a batch: they disappeared"
    )


def test_processes_that_vanish_after_some_work_are_always_replaced() -> None:
    desk = trial(settings(max_restarts=0))
    for n in range(1, 2 * STALLS_MAX):
        desk.tell(checkpoint_reported(n, epoch=desk.state.epoch, number=n))
        exited(desk, "lost")
        placed(desk)
    assert desk.state.status is Status.ACTIVE


def test_what_the_search_stops_saves_its_work_and_ends_well() -> None:
    desk = trial()
    desk.tell(WorkAssigned(None, closed=True, stopped=True))
    assert wish(desk) is Wish.PREEMPT
    assert desk.state.allocation.wish_reason == "the search stopped it"
    exited(desk, "preempted")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


@pytest.mark.parametrize("reason", ["errored", "lost", "killed", "completed"])
def test_what_the_search_stopped_ends_well_however_its_processes_do(reason: str) -> None:
    desk = trial()
    desk.tell(WorkAssigned(None, closed=True, stopped=True))
    exited(desk, reason)
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_what_the_search_stops_while_it_waits_for_slots_or_is_paused_ends_at_once() -> None:
    for before in ([], [PAUSED]):
        desk = Desk("trial#1")
        desk.tell(created(length=ENDLESS, closed=False), *before)
        desk.tell(WorkAssigned(None, closed=True, stopped=True))
        assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
        assert desk.state.allocation is None


def test_endless_training_that_ends_by_itself_is_complete() -> None:
    desk = placed_endless()
    # It may say that it is done with the length that it never had.
    desk.tell(LengthReported(1, ENDLESS, 0.5))
    assert desk.sent_to(EXPERIMENT) == []
    exited(desk, "completed")
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_endless_training_goes_on_after_a_pause() -> None:
    desk = placed_endless()
    desk.tell(PAUSED)
    exited(desk, "preempted")
    desk.tell(ACTIVE)
    assert desk.ever_sent(SlotsRequested)[-1].epoch == 2


def placed_endless() -> Desk:
    desk = Desk("trial#1")
    desk.tell(created(length=ENDLESS, closed=False))
    return placed(desk)
