"""The stop of a trial, and ends that are no failures of the trial but are limited in number.

The rules are those of Determined. Running allocations are stopped gracefully, and others
immediately. An allocation that was killed, was asked to stop or never started has not failed.
"""

import pytest

from control_plane.actors.messages.experiment import (
    TrialEnded,
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
    RestartDue,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialKillRequested,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status, TrialSettings
from control_plane.actors.step import SetTimer
from control_plane.actors.trial.stalls import STALLS_MAX
from control_plane.actors.trial.state import DesiredState
from control_plane.searchers.method import ENDLESS, ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    SUBMITTED_MS,
    checkpoint_reported,
    trial_created,
    trial_settings,
)

POOL, EXPERIMENT = "pool#default", "experiment#1"
PAUSED = ExperimentStatusChanged(Status.PAUSED)
ACTIVE = ExperimentStatusChanged(Status.ACTIVE)
CANCELED = ExperimentStatusChanged(Status.STOPPING_CANCELED)
PREEMPTED = PreemptionRequested(1, "slots are wanted")
FORCED = PreemptionRequested(1, "agent a was disabled", forced=True)
HOUR_MS = 3_600_000


def settings_with_times(
    *, preempt_ms: int | None = None, terminate_ms: int | None = None
) -> TrialSettings:
    return TrialSettings(
        pool="default",
        slots=2,
        max_restarts=5,
        smaller_is_better=True,
        lengths=trial_settings().lengths,
        submitted_ms=SUBMITTED_MS,
        preempt_ms=preempt_ms,
        terminate_ms=terminate_ms,
    )


def place_trial(actor: ActorHarness, container: str = "RUNNING") -> ActorHarness:
    epoch = actor.state.epoch
    actor.deliver(
        SlotsAssigned(epoch, (Place("a", (0, 1)),)), ContainerStateReported(epoch, container)
    )
    return actor


def trial(of: TrialSettings | None = None, container: str = "RUNNING") -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(of=of))
    return place_trial(actor, container)


def deliver_exit(actor: ActorHarness, reason: str, message: str = "") -> None:
    actor.deliver(AllocationExited(actor.state.epoch, reason, message=message))


def desired_state(actor: ActorHarness) -> DesiredState:
    desired: DesiredState = actor.state.allocation.desired_state
    return desired


# Preemption: graceful for running allocations, otherwise immediate.


@pytest.mark.parametrize("container", ["", "PULLING", "STARTING"])
@pytest.mark.parametrize("asked", [PAUSED, CANCELED, PREEMPTED])
def test_allocation_that_does_not_run_yet_is_stopped_immediately(
    container: str, asked: object
) -> None:
    actor = trial(container=container)
    actor.deliver(asked)
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "killed")
    assert (actor.state.restarts, actor.state.losses) == (0, 0)


@pytest.mark.parametrize(
    "report", [ValidationReported(1, 10, 0.5), checkpoint_reported(10), LengthReached(1, 7, 0.5)]
)
def test_report_proves_a_running_allocation(report: object) -> None:
    actor = trial(container="STARTING")
    actor.deliver(report, PAUSED)
    assert desired_state(actor) is DesiredState.PREEMPT


def test_trial_stopped_before_the_run_starts_after_activation() -> None:
    actor = trial(container="STARTING")
    actor.deliver(PAUSED)
    deliver_exit(actor, "killed")
    assert actor.state.status is Status.ACTIVE
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_disabled_agent_stops_the_trial_which_continues_elsewhere() -> None:
    actor = trial(trial_settings(max_restarts=0))
    actor.deliver(checkpoint_reported(40), FORCED)
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "errored", "terminated")
    assert (actor.state.status, actor.state.restarts, actor.state.steps) == (Status.ACTIVE, 0, 40)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]


# The order in which an exit is judged: killed, asked to stop, a good end, an error.


def test_good_exit_after_a_kill_counts_as_killed() -> None:
    # A script that traps SIGTERM and exits with 0 has not asked to stop.
    actor = trial()
    actor.deliver(FORCED)
    deliver_exit(actor, "stop_requested")
    assert actor.state.status is Status.ACTIVE
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    actor = trial()
    actor.deliver(TrialKillRequested())
    deliver_exit(actor, "stop_requested")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)
    ]


@pytest.mark.parametrize("asked", [FORCED, PREEMPTED])
def test_code_may_stop_the_trial_during_a_stop(asked: object) -> None:
    actor = trial()
    actor.deliver(asked, EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    deliver_exit(actor, "stop_requested")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]


def test_code_that_announced_a_stop_is_not_restarted_after_any_exit() -> None:
    # The search knows of the stop, so the exit code does not matter.
    actor = trial()
    actor.deliver(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP))
    deliver_exit(actor, "errored", "segmentation fault")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]
    assert actor.state.restarts == 0


def test_unrequested_good_exit_is_a_stop_by_the_code() -> None:
    actor = trial()
    deliver_exit(actor, "stop_requested")
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.COMPLETED, ExitReason.USER_REQUESTED_STOP)
    ]


@pytest.mark.parametrize("reason", ["killed", "errored", "lost", "start_failed"])
def test_requested_exit_is_neither_a_failure_nor_a_loss(reason: str) -> None:
    actor = trial(trial_settings(max_restarts=0))
    actor.deliver(PAUSED)
    deliver_exit(actor, reason)
    state = actor.state
    assert (state.status, state.restarts, state.losses, state.stalls) == (Status.ACTIVE, 0, 0, 0)
    assert actor.timers == []


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
def test_stopped_trial_ends_like_the_experiment(
    status: Status, ended: Status, early_exit: str
) -> None:
    actor = trial()
    actor.deliver(ExperimentStatusChanged(status))
    deliver_exit(actor, "preempted")
    # The experiment has a reason, which no trial replaces.
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, ended, early_exit)]
    assert actor.state.message == ("the experiment ended in ERROR" if ended == "ERROR" else "")


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.STOPPING_COMPLETED, Status.CANCELED), (Status.STOPPING_ERROR, Status.ERROR)],
)
def test_trial_killed_alone_ends_with_the_more_severe_status(status: Status, ended: Status) -> None:
    actor = trial()
    actor.deliver(TrialKillRequested(), ExperimentStatusChanged(status))
    deliver_exit(actor, "killed")
    assert actor.state.status is ended


# The preemption timeout: 3600 s in the length era unless configured; then the trial is killed.


@pytest.mark.parametrize("asked", [PAUSED, CANCELED, PREEMPTED])
def test_trial_that_ignores_a_preemption_is_killed(asked: object) -> None:
    actor = trial(settings_with_times(preempt_ms=HOUR_MS))
    actor.now_ms = 5_000
    actor.deliver(asked)
    assert actor.timers == [SetTimer(5_000 + HOUR_MS, TerminationOverdue(1))]
    actor.deliver(TerminationOverdue(1))
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "killed")
    assert (actor.state.restarts, actor.state.losses) == (0, 0)


def test_time_to_exit_begins_once() -> None:
    actor = trial(settings_with_times(preempt_ms=HOUR_MS))
    actor.deliver(PREEMPTED, PAUSED, CANCELED)
    assert len(actor.timers) == 1


def test_no_time_limit_is_set_without_a_preemption_or_after_the_end() -> None:
    actor = trial(settings_with_times(preempt_ms=HOUR_MS))
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    deliver_exit(actor, "completed")
    actor = trial(settings_with_times(preempt_ms=HOUR_MS), container="STARTING")
    actor.deliver(PAUSED)
    assert actor.timers == []


def test_late_timer_changes_no_state() -> None:
    actor = trial(settings_with_times(preempt_ms=HOUR_MS))
    actor.deliver(PREEMPTED)
    deliver_exit(actor, "preempted")
    place_trial(actor)
    before = actor.state
    actor.deliver(TerminationOverdue(1))
    assert actor.state == before
    deliver_exit(actor, "completed")
    ended = actor.state
    actor.deliver(TerminationOverdue(1), TerminationOverdue(2))
    assert actor.state == ended


# Refused hyperparameters: 10 s to end in the length era, a minute in the step era.


@pytest.mark.parametrize(("terminate_ms", "patience_ms"), [(None, 10_000), (60_000, 60_000)])
def test_code_that_refused_the_hyperparameters_and_continues_is_killed(
    terminate_ms: int | None, patience_ms: int
) -> None:
    actor = trial(settings_with_times(terminate_ms=terminate_ms))
    refused = EarlyExitReported(1, ExitReason.INVALID_HP)
    actor.deliver(refused, refused)
    assert actor.timers == [SetTimer(actor.now_ms + patience_ms, TerminationOverdue(1))]
    actor.deliver(TerminationOverdue(1))
    assert desired_state(actor) is DesiredState.KILL
    deliver_exit(actor, "killed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, ExitReason.INVALID_HP)]


def test_code_that_announced_a_stop_has_no_time_limit() -> None:
    actor = trial()
    actor.deliver(EarlyExitReported(1, ExitReason.USER_REQUESTED_STOP), TerminationOverdue(1))
    assert (actor.timers, desired_state(actor)) == ([], DesiredState.RUN)


# Resources that never started are no failure of the trial, and not tried for ever.


def test_failed_start_is_not_counted_and_is_retried_after_a_delay() -> None:
    actor = trial(trial_settings(max_restarts=0), container="PULLING")
    deliver_exit(actor, "start_failed", "the disk is full")
    assert (actor.state.status, actor.state.restarts) == (Status.ACTIVE, 0)
    assert actor.state.message == "the disk is full"
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]
    assert actor.timers == [SetTimer(actor.now_ms + 1_000, RestartDue(1))]
    actor.deliver(RestartDue(1))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    actor.deliver(RestartDue(1))
    assert actor.sent == []


def test_failed_starts_have_growing_delays_and_finally_end_the_trial() -> None:
    # 1 + 2 + 4 + 8 + 16 + 32 s, then 60 s each: 63 + 14 * 60 s are a quarter of an hour.
    actor = trial(trial_settings(max_restarts=0))
    for _ in range(STALLS_MAX):
        deliver_exit(actor, "start_failed", "the disk is full")
        actor.deliver(RestartDue(actor.state.epoch))
        place_trial(actor)
    pauses = [(timer.due_ms - actor.now_ms) // 1_000 for timer in actor.timers]
    assert pauses == [1, 2, 4, 8, 16, 32, *[60] * 14]
    assert sum(pauses) == 903
    deliver_exit(actor, "start_failed", "the disk is full")
    assert (actor.state.status, actor.state.restarts) == (Status.ERROR, 0)
    text = "it could not be started 21 times in a row: the disk is full"
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.ERROR, ExitReason.ERRORED, text)]


def test_trial_that_waits_for_a_restart_obeys_commands_immediately() -> None:
    actor = trial()
    deliver_exit(actor, "start_failed")
    actor.deliver(PAUSED)
    actor.deliver(RestartDue(1))
    assert actor.sent == []
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    deliver_exit(place_trial(actor), "start_failed")
    actor.deliver(PAUSED)
    # A user who activates the experiment does not want to wait.
    actor.deliver(ACTIVE)
    assert actor.state.epoch == 3
    deliver_exit(place_trial(actor), "start_failed")
    actor.deliver(TrialKillRequested())
    assert actor.state.status is Status.CANCELED
    actor.deliver(TrialContinued(1, trial_settings()))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_run_resets_the_count_of_failed_starts() -> None:
    actor = trial()
    deliver_exit(actor, "start_failed")
    actor.deliver(RestartDue(1))
    deliver_exit(place_trial(actor), "errored")
    assert (actor.state.stalls, actor.state.restarts) == (0, 1)


# Losses are no failures. Losses of machines are not limited, but processes that vanish from a
# living machine are only restarted a limited number of times.


def test_machine_may_be_lost_any_number_of_times() -> None:
    actor = trial(trial_settings(max_restarts=0))
    for _ in range(3 * STALLS_MAX):
        actor.deliver(AllocationLost(actor.state.epoch, "agent a was lost"))
        place_trial(actor)
    assert (actor.state.status, actor.state.losses) == (Status.ACTIVE, 3 * STALLS_MAX)


def test_processes_that_always_vanish_end_the_trial() -> None:
    actor = trial(trial_settings(max_restarts=0))
    for _ in range(STALLS_MAX):
        deliver_exit(actor, "lost", "they disappeared")
        place_trial(actor)
    deliver_exit(actor, "lost", "they disappeared")
    assert actor.state.status is Status.ERROR
    assert (
        actor.state.message
        == "it was lost 21 times in a row without training a batch: they disappeared"
    )


def test_processes_that_vanish_after_some_work_are_always_replaced() -> None:
    actor = trial(trial_settings(max_restarts=0))
    for n in range(1, 2 * STALLS_MAX):
        actor.deliver(checkpoint_reported(n, epoch=actor.state.epoch, number=n))
        deliver_exit(actor, "lost")
        place_trial(actor)
    assert actor.state.status is Status.ACTIVE


def test_trial_stopped_by_the_search_saves_and_completes() -> None:
    actor = trial()
    actor.deliver(WorkAssigned(None, closed=True, stopped=True))
    assert desired_state(actor) is DesiredState.PREEMPT
    assert actor.state.allocation.desired_state_reason == "the search stopped it"
    deliver_exit(actor, "preempted")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


@pytest.mark.parametrize("reason", ["errored", "lost", "killed", "completed"])
def test_trial_stopped_by_the_search_completes_after_any_exit(reason: str) -> None:
    actor = trial()
    actor.deliver(WorkAssigned(None, closed=True, stopped=True))
    deliver_exit(actor, reason)
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_waiting_or_paused_trial_stopped_by_the_search_ends_immediately() -> None:
    for before in ([], [PAUSED]):
        actor = ActorHarness("trial#1")
        actor.deliver(trial_created(length=ENDLESS, closed=False), *before)
        actor.deliver(WorkAssigned(None, closed=True, stopped=True))
        assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
        assert actor.state.allocation is None


def test_endless_training_with_a_good_exit_is_complete() -> None:
    actor = place_endless_trial()
    # The code may report an endless length as reached.
    actor.deliver(LengthReached(1, ENDLESS, 0.5))
    assert actor.messages_to(EXPERIMENT) == []
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


def test_endless_training_continues_after_a_pause() -> None:
    actor = place_endless_trial()
    actor.deliver(PAUSED)
    deliver_exit(actor, "preempted")
    actor.deliver(ACTIVE)
    assert actor.all_messages(SlotsRequested)[-1].epoch == 2


def place_endless_trial() -> ActorHarness:
    actor = ActorHarness("trial#1")
    actor.deliver(trial_created(length=ENDLESS, closed=False))
    return place_trial(actor)


def place_open_ended_trial() -> ActorHarness:
    actor = ActorHarness("trial#1")
    actor.deliver(trial_created(length=ENDLESS, closed=True))
    return place_trial(actor)


def test_open_ended_training_is_complete_after_a_good_exit() -> None:
    actor = place_open_ended_trial()
    actor.deliver(ValidationReported(1, 400, 0.5))
    [validated] = actor.messages_to(EXPERIMENT)
    # Batches do not measure the progress of open-ended training.
    assert validated == TrialValidationReported(3, 0.0, 0.5)
    deliver_exit(actor, "completed")
    assert actor.messages_to(EXPERIMENT)[-1] == TrialEnded(3, Status.COMPLETED, "")


def test_open_ended_training_restarts_after_a_failure_and_a_pause() -> None:
    actor = place_open_ended_trial()
    deliver_exit(actor, "errored")
    assert (actor.state.restarts, actor.state.status) == (1, Status.ACTIVE)
    actor.deliver(SlotsAssigned(2, (Place("a", (0, 1)),)), PAUSED)
    actor.deliver(AllocationExited(2, "preempted"), ACTIVE)
    assert actor.all_messages(SlotsRequested)[-1].epoch == 3


def test_visible_progress_is_reported_to_the_search() -> None:
    actor = place_open_ended_trial()
    for share in (0.004, 0.5, 0.505, 0.2, 0.51, 0.999, 1.0, 1.0):
        actor.deliver(ProgressReported(1, share))
    # Of an older run.
    actor.deliver(ProgressReported(0, 0.9))
    shares = [message.share for message in actor.all_messages(TrialProgressReported)]
    assert shares == [0.5, 0.51, 0.999, 1.0]
