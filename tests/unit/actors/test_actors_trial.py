"""The trial's requests for slots, releases of slots, and reactions to messages."""

import pytest

from control_plane.actors.lengths import Lengths
from control_plane.actors.messages.experiment import TrialEnded, TrialLengthReached
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import AllocationState, DesiredState
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import (
    LENGTH,
    checkpoint_reported,
    trial_created,
    trial_settings,
)

POOL, EXPERIMENT = "pool#default", "experiment#1"
PAUSED = ExperimentStatusChanged(Status.PAUSED)
ACTIVE = ExperimentStatusChanged(Status.ACTIVE)
CANCELED = ExperimentStatusChanged(Status.STOPPING_CANCELED)
KILLED = ExperimentStatusChanged(Status.STOPPING_KILLED)
ASSIGNED = SlotsAssigned(1, (Place("a", (0, 1)),))
# Submitted at 500, asked for at 1000, trial 4.
TICKET = "00000000000500.00000000001000.000000000004"


def trial(
    *, length: int | None = LENGTH, closed: bool = True, status: Status = Status.ACTIVE
) -> ActorHarness:
    actor = ActorHarness("trial#4")
    actor.deliver(trial_created(length=length, closed=closed, status=status))
    return actor


def running_trial(*, closed: bool = True) -> ActorHarness:
    actor = trial(closed=closed)
    actor.deliver(ASSIGNED, ContainerStateReported(1, "RUNNING"))
    return actor


def waiting_trial() -> ActorHarness:
    """Create a trial that has reached the first length and waits without slots."""
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5), WorkAssigned(None, False))
    actor.deliver(AllocationExited(1, "idle"))
    return actor


def test_trial_with_work_requests_slots_immediately() -> None:
    actor = trial()
    assert actor.messages_to(POOL) == [SlotsRequested(4, 1, 2, TICKET, group=1)]
    assert actor.state.allocation.state is AllocationState.PENDING


@pytest.mark.parametrize(
    ("length", "closed", "status"),
    [
        (None, False, Status.ACTIVE),
        (LENGTH, True, Status.PAUSED),
        (LENGTH, False, Status.PAUSED),
    ],
)
def test_trial_without_work_or_in_an_inactive_experiment_requests_no_slots(
    length: int | None, closed: bool, status: Status
) -> None:
    actor = trial(length=length, closed=closed, status=status)
    assert actor.sent == []
    assert actor.state.status is Status.ACTIVE


def test_trial_created_closed_and_without_work_is_completed() -> None:
    actor = trial(length=None, closed=True)
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


@pytest.mark.parametrize(
    ("status", "ended"),
    [
        (Status.STOPPING_COMPLETED, TrialEnded(3, Status.COMPLETED, "")),
        (Status.STOPPING_CANCELED, TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)),
        (Status.STOPPING_KILLED, TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)),
        (Status.STOPPING_ERROR, TrialEnded(3, Status.ERROR, ExitReason.ERRORED)),
    ],
)
def test_trial_of_a_stopping_experiment_ends_without_a_run(
    status: Status, ended: TrialEnded
) -> None:
    actor = trial(status=status)
    assert actor.messages_to(EXPERIMENT) == [ended]
    assert actor.messages_to(POOL) == []


def test_tickets_sort_by_submission_then_by_request() -> None:
    late = trial()
    actor = ActorHarness("trial#4")
    actor.now_ms = 999
    actor.deliver(trial_created())
    assert actor.state.allocation.ticket < late.state.allocation.ticket


def test_second_creation_changes_no_state() -> None:
    actor = trial()
    before = actor.state
    actor.deliver(trial_created(length=7))
    assert actor.state == before
    assert actor.sent == []


def test_only_a_creation_creates_a_trial() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(ASSIGNED, PAUSED, WorkAssigned(7, True))
    assert actor.state is None
    assert actor.sent == []


def test_second_assignment_of_slots_is_ignored() -> None:
    actor = trial()
    actor.deliver(ASSIGNED, SlotsAssigned(1, (Place("b", (5, 6)),)))
    allocation = actor.state.allocation
    assert allocation.places == (Place("a", (0, 1)),)
    assert allocation.state is AllocationState.ASSIGNED


def test_allocation_state_never_moves_backwards() -> None:
    actor = trial()
    # The agent was faster than the pool.
    actor.deliver(ContainerStateReported(1, "STARTING"), ASSIGNED)
    assert actor.state.allocation.state == AllocationState.STARTING
    assert actor.state.allocation.agents == ("a",)
    for state in ("PULLING", "NONSENSE"):
        actor.deliver(ContainerStateReported(1, state))
        assert actor.state.allocation.state == AllocationState.STARTING
    actor.deliver(ContainerStateReported(1, "RUNNING"))
    assert actor.state.allocation.state is AllocationState.RUNNING


def test_pause_withdraws_a_queued_trial_and_activation_requests_slots_again() -> None:
    actor = trial()
    actor.deliver(PAUSED)
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert actor.state.allocation is None
    actor.now_ms = 2_000
    actor.deliver(ACTIVE)
    ticket = "00000000000500.00000000002000.000000000004"
    assert actor.messages_to(POOL) == [SlotsRequested(4, 2, 2, ticket, group=1)]


def test_paused_running_trial_keeps_the_slots_until_the_exit() -> None:
    actor = running_trial()
    revision = actor.state.revision
    actor.deliver(PAUSED)
    assert actor.state.allocation.desired_state is DesiredState.PREEMPT
    assert actor.state.allocation.desired_state_reason == "the experiment is PAUSED"
    assert actor.state.revision == revision + 1
    assert actor.sent == []
    actor.deliver(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]
    assert actor.state.status is Status.ACTIVE
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    assert actor.state.checkpoint.steps_completed == 40


def test_trial_activated_before_the_exit_requests_slots_afterwards() -> None:
    actor = running_trial()
    actor.deliver(PAUSED, ACTIVE)
    assert actor.state.allocation.desired_state is DesiredState.PREEMPT
    actor.deliver(AllocationExited(1, "preempted"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert actor.state.epoch == 2


@pytest.mark.parametrize("stopping", [CANCELED, KILLED])
def test_queued_trial_of_a_stopping_experiment_ends_immediately(
    stopping: ExperimentStatusChanged,
) -> None:
    actor = trial()
    actor.deliver(stopping)
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)
    ]


def test_canceled_trial_is_preempted_before_the_end() -> None:
    actor = running_trial()
    actor.deliver(CANCELED)
    assert actor.state.allocation.desired_state is DesiredState.PREEMPT
    actor.deliver(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert actor.state.status is Status.CANCELED
    assert actor.state.checkpoint.steps_completed == 40
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.STOPPING_KILLED, Status.CANCELED), (Status.STOPPING_ERROR, Status.ERROR)],
)
@pytest.mark.parametrize("reason", ["killed", "errored", "preempted", "lost", "start_failed"])
def test_killed_trial_ends_like_the_experiment_after_any_exit(
    status: Status, ended: Status, reason: str
) -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(status))
    assert actor.state.allocation.desired_state is DesiredState.KILL
    actor.deliver(AllocationExited(1, reason))
    assert actor.state.status is ended
    assert actor.state.restarts == 0
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


def test_kill_replaces_a_preemption_and_stays() -> None:
    actor = running_trial()
    actor.deliver(CANCELED)
    revision = actor.state.revision
    actor.deliver(KILLED)
    assert actor.state.allocation.desired_state is DesiredState.KILL
    assert actor.state.revision == revision + 1
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    assert actor.state.allocation.desired_state is DesiredState.KILL


def test_preemption_by_the_pool_is_passed_on() -> None:
    actor = running_trial()
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    assert actor.state.allocation.desired_state is DesiredState.PREEMPT
    assert actor.state.allocation.desired_state_reason == "slots are wanted"


def test_preempted_trial_requests_slots_again() -> None:
    actor = running_trial()
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    actor.deliver(AllocationExited(1, "preempted"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert actor.state.allocation.desired_state is DesiredState.RUN


def test_trial_that_waits_for_peers_releases_all_slots() -> None:
    actor = waiting_trial()
    assert actor.state.decided_length == LENGTH
    assert actor.state.allocation is None
    assert actor.state.status is Status.ACTIVE
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_promoted_trial_requests_slots_again() -> None:
    actor = waiting_trial()
    actor.deliver(WorkAssigned(400, False))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    assert (actor.state.length, actor.state.epoch) == (400, 2)


def test_promoted_trial_without_a_checkpoint_starts_over_with_a_note() -> None:
    actor = running_trial(closed=False)
    actor.deliver(ValidationReported(1, LENGTH, 0.5), LengthReached(1, LENGTH, 0.5))
    actor.deliver(WorkAssigned(None, False), AllocationExited(1, "idle"))
    actor.deliver(WorkAssigned(400, False))
    text = f"no checkpoint of {LENGTH} trained batches: it starts again from batch 0"
    assert text in actor.reasons


def test_waiting_closed_trial_is_completed() -> None:
    actor = waiting_trial()
    actor.deliver(WorkAssigned(None, True))
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert actor.messages_to(POOL) == []


def test_waiting_trial_of_a_canceled_experiment_is_canceled() -> None:
    actor = waiting_trial()
    actor.deliver(CANCELED)
    assert actor.state.status is Status.CANCELED


def test_promotion_during_a_pause_waits_for_activation() -> None:
    actor = waiting_trial()
    actor.deliver(PAUSED, WorkAssigned(400, False))
    assert actor.sent == []
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_running_trial_gets_the_next_length_without_new_slots() -> None:
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    revision = actor.state.revision
    actor.deliver(WorkAssigned(400, True))
    assert actor.sent == []
    assert (actor.state.length, actor.state.closed, actor.state.decided_length) == (
        400,
        True,
        LENGTH,
    )
    assert actor.state.revision == revision + 1


def test_work_assigned_during_an_idle_exit_requests_slots_again() -> None:
    # The promotion is folded before the exit: the exit finds unfinished work.
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5), WorkAssigned(400, False))
    actor.deliver(AllocationExited(1, "idle"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]


def test_closed_trial_is_completed_by_the_exit() -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    assert actor.messages_to(EXPERIMENT) == [TrialLengthReached(3, LENGTH, 0.5, True)]
    assert actor.state.status is Status.ACTIVE
    actor.now_ms = 7_000
    actor.deliver(AllocationExited(1, "completed"))
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert actor.state.ended_ms == 7_000


def test_length_of_equally_many_batches_is_answered_immediately() -> None:
    # Batches of 64 records: 15 and 62 records are 1 batch each, 250 are 3.
    in_records = trial_settings(lengths=Lengths("records"))
    actor = ActorHarness("trial#4")
    hparams: dict[str, object] = {"global_batch_size": 64}
    actor.deliver(trial_created(length=15, closed=False, hparams=hparams, of=in_records))
    actor.deliver(SlotsAssigned(1, (Place("a", (0,)),)), ContainerStateReported(1, "RUNNING"))
    actor.deliver(ValidationReported(1, 1, 0.5), LengthReached(1, 1, 0.5))
    actor.deliver(WorkAssigned(None, False), AllocationExited(1, "idle"))
    actor.deliver(WorkAssigned(62, False))
    assert actor.messages_to(EXPERIMENT) == [TrialLengthReached(3, 62, 0.5, False)]
    assert actor.messages_to(POOL) == []
    actor.deliver(WorkAssigned(250, False))
    assert actor.messages_to(EXPERIMENT) == []
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_length_without_the_searcher_metric_is_not_reached() -> None:
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, None, "batch 8 lacks 'loss'"))
    (reached,) = actor.messages_to(EXPERIMENT)
    assert isinstance(reached, TrialLengthReached)
    assert reached.missing_metric_reason == "batch 8 lacks 'loss'"
    assert actor.state.reached < LENGTH


STALE = [
    SlotsAssigned(1, (Place("b", (7, 8)),)),
    PreemptionRequested(1, "late"),
    AllocationLost(1, "late"),
    ContainerStateReported(1, "RUNNING"),
    ValidationReported(1, 90, 0.1),
    LengthReached(1, LENGTH, 0.1),
    checkpoint_reported(90),
    EarlyExitReported(1, ExitReason.INVALID_HP),
    *(AllocationExited(1, reason) for reason in ("completed", "errored", "stop_requested")),
]


@pytest.mark.parametrize("message", STALE, ids=lambda message: type(message).__name__)
def test_message_of_an_older_allocation_changes_no_state(message: object) -> None:
    actor = running_trial()
    actor.deliver(AllocationLost(1, "agent a was lost"))
    assert actor.state.epoch == 2
    before = actor.state
    actor.deliver(message)
    assert actor.state == before
    assert actor.sent == []
    assert actor.parts == {}


@pytest.mark.parametrize("message", STALE, ids=lambda message: type(message).__name__)
def test_message_of_a_released_allocation_changes_no_state(message: object) -> None:
    actor = running_trial()
    actor.deliver(PAUSED)
    actor.deliver(AllocationExited(1, "preempted"))
    before = actor.state
    actor.deliver(message)
    assert actor.state == before
    assert actor.sent == []


@pytest.mark.parametrize(
    "message", [*STALE, PAUSED, KILLED, WorkAssigned(400, True)], ids=lambda m: type(m).__name__
)
def test_ended_trial_ignores_messages(message: object) -> None:
    actor = running_trial()
    actor.deliver(AllocationExited(1, "completed"))
    before = actor.state
    actor.deliver(message)
    assert actor.state == before
    assert actor.sent == []
