"""A trial under any sequence of messages: final states are final, and slots balance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.messages.experiment import TrialEnded, TrialLengthReached
from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    CheckpointDamageReported,
    CheckpointVerified,
    ContainerStateReported,
    EarlyExitReported,
    ExperimentStatusChanged,
    LengthReached,
    PreemptionRequested,
    SlotsAssigned,
    TerminationOverdue,
    TrialContinued,
    TrialCreated,
    TrialKillRequested,
    TrialMoved,
    ValidationReported,
    WorkAssigned,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.lifecycle import wants_slots
from control_plane.searchers.method import ExitReason
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import checkpoint_reported, trial_created, trial_settings

OPEN = [Status.ACTIVE, Status.PAUSED]
STOPPING = [status for status in Status if status.is_stopping]
EXITS = ["completed", "preempted", "idle", "lost", "killed", "errored", "stop_requested", "?"]
# Half of the epochs are right at first; later most are older or unknown.
EPOCHS = st.integers(1, 4)
STEPS = st.sampled_from([0, 50, 100, 200, 400])
PLACES = st.sampled_from([(Place("a", (0, 1)),), (Place("b", (0, 1)),)])
METRICS = st.none() | st.sampled_from([0.1, 0.5, -2.0])


def uuid_of(steps: int, epoch: int) -> str:
    return checkpoint_reported(steps, epoch=epoch, number=epoch).checkpoint.uuid


MESSAGES = st.one_of(
    st.builds(WorkAssigned, st.sampled_from([None, 100, 200, 400]), st.booleans()),
    st.builds(ExperimentStatusChanged, st.sampled_from([*OPEN, *OPEN, *STOPPING]), st.just(False)),
    st.builds(TerminationOverdue, EPOCHS),
    st.builds(TrialMoved, st.sampled_from(["default", "spot"])),
    st.builds(SlotsAssigned, EPOCHS, PLACES),
    st.builds(PreemptionRequested, EPOCHS, st.just("slots are wanted")),
    st.builds(AllocationLost, EPOCHS, st.just("silence")),
    st.builds(ContainerStateReported, EPOCHS, st.sampled_from(["PULLING", "RUNNING", "?"])),
    st.builds(ValidationReported, EPOCHS, STEPS, METRICS),
    st.builds(LengthReached, EPOCHS, STEPS, METRICS),
    st.builds(
        lambda steps, epoch: checkpoint_reported(steps, epoch=epoch, number=epoch), STEPS, EPOCHS
    ),
    st.builds(
        # A checkpoint of an earlier allocation, or an unknown checkpoint.
        lambda epoch, writer, steps, older: CheckpointDamageReported(
            epoch,
            uuid_of(steps, writer),
            "a file is missing",
            tuple(uuid_of(step, number) for step in older for number in range(1, 5)),
        ),
        EPOCHS,
        EPOCHS,
        STEPS,
        st.lists(STEPS, max_size=3, unique=True),
    ),
    st.builds(EarlyExitReported, EPOCHS, st.sampled_from(list(ExitReason))),
    st.builds(AllocationExited, EPOCHS, st.sampled_from(EXITS)),
)
HISTORIES = st.lists(MESSAGES, max_size=40)
VERIFIED = st.builds(
    lambda steps, writer: CheckpointVerified(uuid_of(steps, writer)), STEPS, EPOCHS
)
FORCED = st.builds(ExperimentStatusChanged, st.sampled_from(STOPPING), st.just(True))
KILLS = st.just(TrialKillRequested())
CONTINUATIONS = st.builds(
    lambda run_generation, restarts, length: TrialContinued(
        run_generation, trial_settings(max_restarts=restarts), length
    ),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([None, 400]),
)
LIVES = st.lists(
    st.one_of(MESSAGES, MESSAGES, FORCED, KILLS, CONTINUATIONS, CONTINUATIONS), max_size=50
)
CREATED = st.builds(
    lambda length, closed, status, restarts: trial_created(
        length=length, closed=closed, status=status, of=trial_settings(max_restarts=restarts)
    ),
    st.sampled_from([None, 100]),
    st.booleans(),
    st.sampled_from([Status.ACTIVE, Status.ACTIVE, Status.PAUSED, Status.STOPPING_CANCELED]),
    st.integers(0, 2),
)
FEW = settings(deadline=None, derandomize=True, max_examples=150)


def names(messages: list[SlotsRequested] | list[SlotsReleased]) -> list[int]:
    return [message.epoch for message in messages]


def check_slots(actor: ActorHarness) -> None:
    """Check that every allocation was requested once, and released once unless present."""
    asked = names(actor.all_messages(SlotsRequested))
    given = names(actor.all_messages(SlotsReleased))
    held = [] if actor.state.allocation is None else [actor.state.epoch]
    assert asked == list(range(1, actor.state.epoch + 1))
    assert sorted(given + held) == asked


def check_wants_slots(actor: ActorHarness) -> None:
    """Check that a trial that wants slots has an allocation."""
    if actor.state.allocation is None:
        assert not wants_slots(actor.state)


def check_end(actor: ActorHarness) -> None:
    """Check that the experiment got a single message about the end of the trial."""
    assert len(actor.all_messages(TrialEnded)) == actor.state.status.is_final
    if actor.state.status.is_final:
        assert actor.state.allocation is None
        assert actor.all_messages(TrialEnded)[0].status is actor.state.status


@FEW
@given(CREATED, HISTORIES)
def test_slots_balance_and_final_states_are_final(first: object, history: list[object]) -> None:
    actor = ActorHarness("trial#4")
    for message in (first, *history):
        before = actor.state
        actor.now_ms += 1
        actor.deliver(message)
        check_slots(actor)
        check_wants_slots(actor)
        check_end(actor)
        if before is not None and before.status.is_final:
            assert actor.state == before
            assert actor.sent == []


@FEW
@given(CREATED, st.lists(st.one_of(MESSAGES, VERIFIED), max_size=40))
def test_verified_checkpoint_changes_no_running_trial(first: object, history: list[object]) -> None:
    actor = ActorHarness("trial#4")
    for message in (first, *history):
        before = actor.state
        actor.deliver(message)
        check_slots(actor)
        check_wants_slots(actor)
        check_end(actor)
        if not isinstance(message, CheckpointVerified):
            continue
        assert actor.sent == []
        after = actor.state
        runs = before.allocation is not None and bool(before.allocation.places)
        if runs or before.checkpoint == after.checkpoint:
            assert after == before
        else:
            assert after.checkpoint.uuid == message.uuid
            steps = before.checkpoint.steps_completed if before.checkpoint else 0
            assert after.checkpoint.steps_completed >= steps
            assert after.steps >= after.checkpoint.steps_completed


@FEW
@given(CREATED, HISTORIES)
def test_counters_never_fall_and_a_length_is_reported_once(
    first: object, history: list[object]
) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(first)
    for message in history:
        before = actor.state
        actor.deliver(message)
        after = actor.state
        for name in ("epoch", "restarts", "losses", "reached", "decided_length"):
            assert getattr(after, name) >= getattr(before, name)
        assert after.epoch > before.epoch or after.revision >= before.revision
        assert not before.closed or after.closed
        assert after.restarts <= after.settings.max_restarts + 1
        is_damage = isinstance(message, CheckpointDamageReported)
        assert is_damage or after.checkpoint is not None or before.checkpoint is None
    lengths = [message.length for message in actor.all_messages(TrialLengthReached)]
    assert lengths == sorted(set(lengths))


@FEW
@given(CREATED, HISTORIES)
def test_message_of_a_different_allocation_changes_no_state(
    first: object, history: list[object]
) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(first)
    for message in history:
        before, epoch = actor.state, getattr(message, "epoch", actor.state.epoch)
        actor.deliver(message)
        if epoch != before.epoch:
            assert actor.state == before
            assert actor.sent == []


@FEW
@given(CREATED, HISTORIES, MESSAGES | CREATED)
def test_dead_letter_ends_an_open_trial_in_error_and_informs_the_experiment(
    first: object, history: list[object], letter: object
) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver(first)
    for message in history:
        actor.deliver(message)
    before = actor.state
    actor.deliver_dead_letter(letter)
    if before.status.is_final:
        assert actor.state == before
        assert actor.sent == []
    else:
        assert actor.state.status is Status.ERROR
        (ended,) = actor.messages_to("experiment#1")
        assert isinstance(ended, TrialEnded)
        assert (ended.status, ended.early_exit) == (Status.ERROR, ExitReason.ERRORED)
    check_slots(actor)
    check_end(actor)


@FEW
@given(MESSAGES | CREATED)
def test_dead_letter_creates_a_trial_only_from_the_creation_message(letter: object) -> None:
    actor = ActorHarness("trial#4")
    actor.deliver_dead_letter(letter)
    assert (actor.state is not None) == (isinstance(letter, TrialCreated))
    assert actor.state is None or actor.state.status is Status.ERROR


@FEW
@given(CREATED, LIVES)
def test_continued_trial_ends_once_in_each_generation(first: object, history: list[object]) -> None:
    actor = ActorHarness("trial#4")
    for message in (first, *history):
        before = actor.state
        actor.deliver(message)
        after = actor.state
        check_slots(actor)
        check_wants_slots(actor)
        if before is None:
            continue
        assert after.run_generation >= before.run_generation
        if after.run_generation == before.run_generation:
            assert not before.status.is_final or after == before
            assert not before.killed or after.killed
            assert after.restarts >= before.restarts
        else:
            assert before.status.is_final
            assert isinstance(message, TrialContinued)
        if after.killed and after.allocation is None:
            assert after.status.is_final
    lives = [ended.run_generation for ended in actor.all_messages(TrialEnded)]
    assert lives == sorted(set(lives))
    assert (actor.state.run_generation in lives) == actor.state.status.is_final


@FEW
@given(CREATED, LIVES)
def test_repeated_command_changes_no_state(first: object, history: list[object]) -> None:
    """A kill, a continuation, a move or an overdue termination: the repetition is late."""
    actor = ActorHarness("trial#4")
    actor.deliver(first)
    for message in history:
        actor.deliver(message)
        before = actor.state
        if isinstance(
            message, TrialKillRequested | TrialContinued | TrialMoved | TerminationOverdue
        ):
            actor.deliver(message)
            assert actor.state == before
            assert actor.sent == []
