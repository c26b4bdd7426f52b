"""The trial's wishes: when it asks for slots, when it gives them back, and what it answers to."""

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
    """A trial without a word on what comes after the first length, which gave its slots back."""
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5), WorkAssigned(None, False))
    actor.deliver(AllocationExited(1, "idle"))
    return actor


def test_a_trial_with_work_asks_for_slots_at_once() -> None:
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
def test_a_trial_without_work_or_leave_asks_for_none(
    length: int | None, closed: bool, status: Status
) -> None:
    actor = trial(length=length, closed=closed, status=status)
    assert actor.sent == []
    assert actor.state.status is Status.ACTIVE


def test_a_trial_created_with_nothing_to_do_at_all_is_completed() -> None:
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
def test_a_trial_of_a_stopping_experiment_never_begins_and_ends_like_it(
    status: Status, ended: TrialEnded
) -> None:
    actor = trial(status=status)
    assert actor.messages_to(EXPERIMENT) == [ended]
    assert actor.messages_to(POOL) == []


def test_earlier_experiments_then_earlier_requests_come_first() -> None:
    late = trial()
    actor = ActorHarness("trial#4")
    actor.now_ms = 999
    actor.deliver(trial_created())
    assert actor.state.allocation.ticket < late.state.allocation.ticket


def test_a_second_creation_changes_nothing() -> None:
    actor = trial()
    before = actor.state
    actor.deliver(trial_created(length=7))
    assert actor.state == before
    assert actor.sent == []


def test_only_a_creation_makes_a_trial() -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(ASSIGNED, PAUSED, WorkAssigned(7, True))
    assert actor.state is None
    assert actor.sent == []


def test_the_pools_placement_is_taken_once() -> None:
    actor = trial()
    actor.deliver(ASSIGNED, SlotsAssigned(1, (Place("b", (5, 6)),)))
    allocation = actor.state.allocation
    assert allocation.places == (Place("a", (0, 1)),)
    assert allocation.state is AllocationState.ASSIGNED


def test_an_allocation_never_goes_back() -> None:
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


def test_a_pause_withdraws_a_queued_trial_and_activation_queues_it_again() -> None:
    actor = trial()
    actor.deliver(PAUSED)
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert actor.state.allocation is None
    actor.now_ms = 2_000
    actor.deliver(ACTIVE)
    ticket = "00000000000500.00000000002000.000000000004"
    assert actor.messages_to(POOL) == [SlotsRequested(4, 2, 2, ticket, group=1)]


def test_a_pause_asks_a_running_trial_to_checkpoint_and_keeps_its_slots_until_it_did() -> None:
    actor = running_trial()
    revision = actor.state.revision
    actor.deliver(PAUSED)
    assert actor.state.allocation.wish is DesiredState.PREEMPT
    assert actor.state.allocation.wish_reason == "the experiment is PAUSED"
    assert actor.state.revision == revision + 1
    assert actor.sent == []
    actor.deliver(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]
    assert actor.state.status is Status.ACTIVE
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    assert actor.state.checkpoint.steps_completed == 40


def test_a_trial_paused_and_activated_before_it_stopped_is_queued_when_it_has() -> None:
    actor = running_trial()
    actor.deliver(PAUSED, ACTIVE)
    assert actor.state.allocation.wish is DesiredState.PREEMPT
    actor.deliver(AllocationExited(1, "preempted"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert actor.state.epoch == 2


@pytest.mark.parametrize("stopping", [CANCELED, KILLED])
def test_a_queued_trial_of_a_stopping_experiment_ends_at_once(
    stopping: ExperimentStatusChanged,
) -> None:
    actor = trial()
    actor.deliver(stopping)
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert actor.messages_to(EXPERIMENT) == [
        TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)
    ]


def test_a_canceled_trial_checkpoints_before_it_ends() -> None:
    actor = running_trial()
    actor.deliver(CANCELED)
    assert actor.state.allocation.wish is DesiredState.PREEMPT
    actor.deliver(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert actor.state.status is Status.CANCELED
    assert actor.state.checkpoint.steps_completed == 40
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.STOPPING_KILLED, Status.CANCELED), (Status.STOPPING_ERROR, Status.ERROR)],
)
@pytest.mark.parametrize("reason", ["killed", "errored", "preempted", "lost", "start_failed"])
def test_a_killed_trial_ends_like_its_experiment_however_its_process_went(
    status: Status, ended: Status, reason: str
) -> None:
    actor = running_trial()
    actor.deliver(ExperimentStatusChanged(status))
    assert actor.state.allocation.wish is DesiredState.KILL
    actor.deliver(AllocationExited(1, reason))
    assert actor.state.status is ended
    assert actor.state.restarts == 0
    assert actor.messages_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


def test_a_kill_upgrades_a_preemption_and_nothing_takes_it_back() -> None:
    actor = running_trial()
    actor.deliver(CANCELED)
    revision = actor.state.revision
    actor.deliver(KILLED)
    assert actor.state.allocation.wish is DesiredState.KILL
    assert actor.state.revision == revision + 1
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    assert actor.state.allocation.wish is DesiredState.KILL


def test_a_preemption_by_the_pool_is_passed_on() -> None:
    actor = running_trial()
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    assert actor.state.allocation.wish is DesiredState.PREEMPT
    assert actor.state.allocation.wish_reason == "slots are wanted"


def test_a_preempted_trial_queues_again() -> None:
    actor = running_trial()
    actor.deliver(PreemptionRequested(1, "slots are wanted"))
    actor.deliver(AllocationExited(1, "preempted"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert actor.state.allocation.wish is DesiredState.RUN


def test_a_trial_that_waits_for_its_peers_gives_its_slots_back() -> None:
    actor = waiting_trial()
    assert actor.state.answered == LENGTH
    assert actor.state.allocation is None
    assert actor.state.status is Status.ACTIVE
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased]


def test_a_waiting_trial_that_is_promoted_asks_for_slots_again() -> None:
    actor = waiting_trial()
    actor.deliver(WorkAssigned(400, False))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]
    assert (actor.state.length, actor.state.epoch) == (400, 2)


def test_a_waiting_trial_that_is_closed_is_completed() -> None:
    actor = waiting_trial()
    actor.deliver(WorkAssigned(None, True))
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert actor.messages_to(POOL) == []


def test_a_waiting_trial_of_a_canceled_experiment_is_canceled() -> None:
    actor = waiting_trial()
    actor.deliver(CANCELED)
    assert actor.state.status is Status.CANCELED


def test_a_promotion_during_a_pause_waits_for_activation() -> None:
    actor = waiting_trial()
    actor.deliver(PAUSED, WorkAssigned(400, False))
    assert actor.sent == []
    actor.deliver(ACTIVE)
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsRequested]


def test_a_running_trial_goes_on_to_its_next_length_without_new_slots() -> None:
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    revision = actor.state.revision
    actor.deliver(WorkAssigned(400, True))
    assert actor.sent == []
    assert (actor.state.length, actor.state.closed, actor.state.answered) == (400, True, LENGTH)
    assert actor.state.revision == revision + 1


def test_a_word_that_crosses_an_idle_exit_brings_the_trial_back() -> None:
    # The promotion is folded before the exit: the exit finds unfinished work.
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, 0.5), WorkAssigned(400, False))
    actor.deliver(AllocationExited(1, "idle"))
    assert [type(message) for message in actor.messages_to(POOL)] == [SlotsReleased, SlotsRequested]


def test_a_closed_trial_that_has_done_its_work_is_completed_by_its_exit() -> None:
    actor = running_trial()
    actor.deliver(LengthReached(1, LENGTH, 0.5))
    assert actor.messages_to(EXPERIMENT) == [TrialLengthReached(3, LENGTH, 0.5, True)]
    assert actor.state.status is Status.ACTIVE
    actor.now_ms = 7_000
    actor.deliver(AllocationExited(1, "completed"))
    assert actor.messages_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert actor.state.ended_ms == 7_000


def test_a_length_of_as_many_batches_as_the_one_before_is_answered_at_once() -> None:
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


def test_a_length_without_the_searchers_metric_is_not_reached() -> None:
    actor = running_trial(closed=False)
    actor.deliver(LengthReached(1, LENGTH, None, "batch 8 lacks 'loss'"))
    (told,) = actor.messages_to(EXPERIMENT)
    assert isinstance(told, TrialLengthReached)
    assert told.lack == "batch 8 lacks 'loss'"
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
def test_a_message_of_an_older_allocation_changes_nothing(message: object) -> None:
    actor = running_trial()
    actor.deliver(AllocationLost(1, "agent a was lost"))
    assert actor.state.epoch == 2
    before = actor.state
    actor.deliver(message)
    assert actor.state == before
    assert actor.sent == []
    assert actor.parts == {}


@pytest.mark.parametrize("message", STALE, ids=lambda message: type(message).__name__)
def test_a_message_of_a_released_allocation_changes_nothing(message: object) -> None:
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
def test_a_final_trial_hears_nothing(message: object) -> None:
    actor = running_trial()
    actor.deliver(AllocationExited(1, "completed"))
    before = actor.state
    actor.deliver(message)
    assert actor.state == before
    assert actor.sent == []
