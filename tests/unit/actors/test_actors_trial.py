"""The trial's wishes: when it asks for slots, when it gives them back, and what it answers to."""

import pytest

from control_plane.actors.experiment_messages import TrialEnded, TrialLengthReached
from control_plane.actors.lengths import Lengths
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status
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
from control_plane.actors.trial_state import AllocationState, Wish
from control_plane.searchers.method import ExitReason
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import LENGTH, checkpoint_reported, created, settings

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
) -> Desk:
    desk = Desk("trial#4")
    desk.tell(created(length=length, closed=closed, status=status))
    return desk


def running(*, closed: bool = True) -> Desk:
    desk = trial(closed=closed)
    desk.tell(ASSIGNED, ContainerStateReported(1, "RUNNING"))
    return desk


def waiting() -> Desk:
    """A trial without a word on what comes after the first length, which gave its slots back."""
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, 0.5), WorkAssigned(None, False))
    desk.tell(AllocationExited(1, "idle"))
    return desk


def test_a_trial_with_work_asks_for_slots_at_once() -> None:
    desk = trial()
    assert desk.sent_to(POOL) == [SlotsRequested(4, 1, 2, TICKET, group=1)]
    assert desk.state.allocation.state is AllocationState.PENDING


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
    desk = trial(length=length, closed=closed, status=status)
    assert desk.sent == []
    assert desk.state.status is Status.ACTIVE


def test_a_trial_created_with_nothing_to_do_at_all_is_completed() -> None:
    desk = trial(length=None, closed=True)
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]


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
    desk = trial(status=status)
    assert desk.sent_to(EXPERIMENT) == [ended]
    assert desk.sent_to(POOL) == []


def test_earlier_experiments_then_earlier_requests_come_first() -> None:
    late = trial()
    desk = Desk("trial#4")
    desk.now_ms = 999
    desk.tell(created())
    assert desk.state.allocation.ticket < late.state.allocation.ticket


def test_a_second_creation_changes_nothing() -> None:
    desk = trial()
    before = desk.state
    desk.tell(created(length=7))
    assert desk.state == before
    assert desk.sent == []


def test_only_a_creation_makes_a_trial() -> None:
    desk = Desk("trial#4")
    desk.tell(ASSIGNED, PAUSED, WorkAssigned(7, True))
    assert desk.state is None
    assert desk.sent == []


def test_the_pools_placement_is_taken_once() -> None:
    desk = trial()
    desk.tell(ASSIGNED, SlotsAssigned(1, (Place("b", (5, 6)),)))
    allocation = desk.state.allocation
    assert allocation.places == (Place("a", (0, 1)),)
    assert allocation.state is AllocationState.ASSIGNED


def test_an_allocation_never_goes_back() -> None:
    desk = trial()
    # The agent was faster than the pool.
    desk.tell(ContainerStateReported(1, "STARTING"), ASSIGNED)
    assert desk.state.allocation.state == AllocationState.STARTING
    assert desk.state.allocation.agents == ("a",)
    for state in ("PULLING", "NONSENSE"):
        desk.tell(ContainerStateReported(1, state))
        assert desk.state.allocation.state == AllocationState.STARTING
    desk.tell(ContainerStateReported(1, "RUNNING"))
    assert desk.state.allocation.state is AllocationState.RUNNING


def test_a_pause_withdraws_a_queued_trial_and_activation_queues_it_again() -> None:
    desk = trial()
    desk.tell(PAUSED)
    assert desk.sent_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert desk.state.allocation is None
    desk.now_ms = 2_000
    desk.tell(ACTIVE)
    ticket = "00000000000500.00000000002000.000000000004"
    assert desk.sent_to(POOL) == [SlotsRequested(4, 2, 2, ticket, group=1)]


def test_a_pause_asks_a_running_trial_to_checkpoint_and_keeps_its_slots_until_it_did() -> None:
    desk = running()
    revision = desk.state.revision
    desk.tell(PAUSED)
    assert desk.state.allocation.wish is Wish.PREEMPT
    assert desk.state.allocation.wish_reason == "the experiment is PAUSED"
    assert desk.state.revision == revision + 1
    assert desk.sent == []
    desk.tell(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert desk.sent_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]
    assert desk.state.status is Status.ACTIVE
    desk.tell(ACTIVE)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]
    assert desk.state.checkpoint.steps_completed == 40


def test_a_trial_paused_and_activated_before_it_stopped_is_queued_when_it_has() -> None:
    desk = running()
    desk.tell(PAUSED, ACTIVE)
    assert desk.state.allocation.wish is Wish.PREEMPT
    desk.tell(AllocationExited(1, "preempted"))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert desk.state.epoch == 2


@pytest.mark.parametrize("stopping", [CANCELED, KILLED])
def test_a_queued_trial_of_a_stopping_experiment_ends_at_once(
    stopping: ExperimentStatusChanged,
) -> None:
    desk = trial()
    desk.tell(stopping)
    assert desk.sent_to(POOL) == [SlotsReleased(4, 1, TICKET, (), 1)]
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.CANCELED, ExitReason.USER_CANCELED)]


def test_a_canceled_trial_checkpoints_before_it_ends() -> None:
    desk = running()
    desk.tell(CANCELED)
    assert desk.state.allocation.wish is Wish.PREEMPT
    desk.tell(checkpoint_reported(40), AllocationExited(1, "preempted"))
    assert desk.state.status is Status.CANCELED
    assert desk.state.checkpoint.steps_completed == 40
    assert desk.sent_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


@pytest.mark.parametrize(
    ("status", "ended"),
    [(Status.STOPPING_KILLED, Status.CANCELED), (Status.STOPPING_ERROR, Status.ERROR)],
)
@pytest.mark.parametrize("reason", ["killed", "errored", "preempted", "lost", "start_failed"])
def test_a_killed_trial_ends_like_its_experiment_however_its_process_went(
    status: Status, ended: Status, reason: str
) -> None:
    desk = running()
    desk.tell(ExperimentStatusChanged(status))
    assert desk.state.allocation.wish is Wish.KILL
    desk.tell(AllocationExited(1, reason))
    assert desk.state.status is ended
    assert desk.state.restarts == 0
    assert desk.sent_to(POOL) == [SlotsReleased(4, 1, TICKET, ("a",), 1)]


def test_a_kill_upgrades_a_preemption_and_nothing_takes_it_back() -> None:
    desk = running()
    desk.tell(CANCELED)
    revision = desk.state.revision
    desk.tell(KILLED)
    assert desk.state.allocation.wish is Wish.KILL
    assert desk.state.revision == revision + 1
    desk.tell(PreemptionRequested(1, "slots are wanted"))
    assert desk.state.allocation.wish is Wish.KILL


def test_a_preemption_by_the_pool_is_passed_on() -> None:
    desk = running()
    desk.tell(PreemptionRequested(1, "slots are wanted"))
    assert desk.state.allocation.wish is Wish.PREEMPT
    assert desk.state.allocation.wish_reason == "slots are wanted"


def test_a_preempted_trial_queues_again() -> None:
    desk = running()
    desk.tell(PreemptionRequested(1, "slots are wanted"))
    desk.tell(AllocationExited(1, "preempted"))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]
    assert desk.state.allocation.wish is Wish.RUN


def test_a_trial_that_waits_for_its_peers_gives_its_slots_back() -> None:
    desk = waiting()
    assert desk.state.answered == LENGTH
    assert desk.state.allocation is None
    assert desk.state.status is Status.ACTIVE
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased]


def test_a_waiting_trial_that_is_promoted_asks_for_slots_again() -> None:
    desk = waiting()
    desk.tell(WorkAssigned(400, False))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]
    assert (desk.state.length, desk.state.epoch) == (400, 2)


def test_a_waiting_trial_that_is_closed_is_completed() -> None:
    desk = waiting()
    desk.tell(WorkAssigned(None, True))
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert desk.sent_to(POOL) == []


def test_a_waiting_trial_of_a_canceled_experiment_is_canceled() -> None:
    desk = waiting()
    desk.tell(CANCELED)
    assert desk.state.status is Status.CANCELED


def test_a_promotion_during_a_pause_waits_for_activation() -> None:
    desk = waiting()
    desk.tell(PAUSED, WorkAssigned(400, False))
    assert desk.sent == []
    desk.tell(ACTIVE)
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]


def test_a_running_trial_goes_on_to_its_next_length_without_new_slots() -> None:
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, 0.5))
    revision = desk.state.revision
    desk.tell(WorkAssigned(400, True))
    assert desk.sent == []
    assert (desk.state.length, desk.state.closed, desk.state.answered) == (400, True, LENGTH)
    assert desk.state.revision == revision + 1


def test_a_word_that_crosses_an_idle_exit_brings_the_trial_back() -> None:
    # The promotion is folded before the exit: the exit finds unfinished work.
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, 0.5), WorkAssigned(400, False))
    desk.tell(AllocationExited(1, "idle"))
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsReleased, SlotsRequested]


def test_a_closed_trial_that_has_done_its_work_is_completed_by_its_exit() -> None:
    desk = running()
    desk.tell(LengthReported(1, LENGTH, 0.5))
    assert desk.sent_to(EXPERIMENT) == [TrialLengthReached(3, LENGTH, 0.5, True)]
    assert desk.state.status is Status.ACTIVE
    desk.now_ms = 7_000
    desk.tell(AllocationExited(1, "completed"))
    assert desk.sent_to(EXPERIMENT) == [TrialEnded(3, Status.COMPLETED, "")]
    assert desk.state.ended_ms == 7_000


def test_a_length_of_as_many_batches_as_the_one_before_is_answered_at_once() -> None:
    # Batches of 64 records: 15 and 62 records are 1 batch each, 250 are 3.
    in_records = settings(lengths=Lengths("records"))
    desk = Desk("trial#4")
    hparams: dict[str, object] = {"global_batch_size": 64}
    desk.tell(created(length=15, closed=False, hparams=hparams, of=in_records))
    desk.tell(SlotsAssigned(1, (Place("a", (0,)),)), ContainerStateReported(1, "RUNNING"))
    desk.tell(ValidationReported(1, 1, 0.5), LengthReported(1, 1, 0.5))
    desk.tell(WorkAssigned(None, False), AllocationExited(1, "idle"))
    desk.tell(WorkAssigned(62, False))
    assert desk.sent_to(EXPERIMENT) == [TrialLengthReached(3, 62, 0.5, False)]
    assert desk.sent_to(POOL) == []
    desk.tell(WorkAssigned(250, False))
    assert desk.sent_to(EXPERIMENT) == []
    assert [type(message) for message in desk.sent_to(POOL)] == [SlotsRequested]


def test_a_length_without_the_searchers_metric_is_not_reached() -> None:
    desk = running(closed=False)
    desk.tell(LengthReported(1, LENGTH, None, "batch 8 lacks 'loss'"))
    (told,) = desk.sent_to(EXPERIMENT)
    assert isinstance(told, TrialLengthReached)
    assert told.lack == "batch 8 lacks 'loss'"
    assert desk.state.reached < LENGTH


STALE = [
    SlotsAssigned(1, (Place("b", (7, 8)),)),
    PreemptionRequested(1, "late"),
    AllocationLost(1, "late"),
    ContainerStateReported(1, "RUNNING"),
    ValidationReported(1, 90, 0.1),
    LengthReported(1, LENGTH, 0.1),
    checkpoint_reported(90),
    EarlyExitReported(1, ExitReason.INVALID_HP),
    *(AllocationExited(1, reason) for reason in ("completed", "errored", "stop_requested")),
]


@pytest.mark.parametrize("message", STALE, ids=lambda message: type(message).__name__)
def test_a_message_of_an_older_allocation_changes_nothing(message: object) -> None:
    desk = running()
    desk.tell(AllocationLost(1, "agent a was lost"))
    assert desk.state.epoch == 2
    before = desk.state
    desk.tell(message)
    assert desk.state == before
    assert desk.sent == []
    assert desk.parts == {}


@pytest.mark.parametrize("message", STALE, ids=lambda message: type(message).__name__)
def test_a_message_of_a_released_allocation_changes_nothing(message: object) -> None:
    desk = running()
    desk.tell(PAUSED)
    desk.tell(AllocationExited(1, "preempted"))
    before = desk.state
    desk.tell(message)
    assert desk.state == before
    assert desk.sent == []


@pytest.mark.parametrize(
    "message", [*STALE, PAUSED, KILLED, WorkAssigned(400, True)], ids=lambda m: type(m).__name__
)
def test_a_final_trial_hears_nothing(message: object) -> None:
    desk = running()
    desk.tell(AllocationExited(1, "completed"))
    before = desk.state
    desk.tell(message)
    assert desk.state == before
    assert desk.sent == []
