"""A trial under any sequence of messages: terminal is terminal, and slots balance."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.experiment_messages import TrialEnded, TrialLengthReached
from control_plane.actors.pool_messages import SlotsReleased, SlotsRequested
from control_plane.actors.records import Place, Status
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
    TerminationOverdue,
    TrialContinued,
    TrialKillRequested,
    TrialMoved,
    ValidationReported,
    WorkAssigned,
)
from control_plane.searchers.method import ExitReason
from tests.unit.actors.desk import Desk
from tests.unit.actors.samples import checkpoint_reported, created
from tests.unit.actors.samples import settings as trial_settings

OPEN = [Status.ACTIVE, Status.PAUSED]
STOPPING = [status for status in Status if status.stopping]
EXITS = ["completed", "preempted", "idle", "lost", "killed", "errored", "stop_requested", "?"]
# Half of the epochs are right at first; later they are older or from nowhere.
EPOCHS = st.integers(1, 4)
STEPS = st.sampled_from([0, 50, 100, 200, 400])
PLACES = st.sampled_from([(Place("a", (0, 1)),), (Place("b", (0, 1)),)])
METRICS = st.none() | st.sampled_from([0.1, 0.5, -2.0])

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
    st.builds(LengthReported, EPOCHS, STEPS, METRICS),
    st.builds(
        lambda steps, epoch: checkpoint_reported(steps, epoch=epoch, number=epoch), STEPS, EPOCHS
    ),
    st.builds(EarlyExitReported, EPOCHS, st.sampled_from(list(ExitReason))),
    st.builds(AllocationExited, EPOCHS, st.sampled_from(EXITS)),
)
HISTORIES = st.lists(MESSAGES, max_size=40)
FORCED = st.builds(ExperimentStatusChanged, st.sampled_from(STOPPING), st.just(True))
KILLS = st.just(TrialKillRequested())
CONTINUATIONS = st.builds(
    lambda life, restarts, length: TrialContinued(
        life, trial_settings(max_restarts=restarts), length
    ),
    st.integers(0, 4),
    st.integers(0, 2),
    st.sampled_from([None, 400]),
)
LIVES = st.lists(
    st.one_of(MESSAGES, MESSAGES, FORCED, KILLS, CONTINUATIONS, CONTINUATIONS), max_size=50
)
CREATED = st.builds(
    lambda length, closed, status, restarts: created(
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


def check_slots(desk: Desk) -> None:
    """Every allocation was asked for once, and all but the one it has were given back once."""
    asked = names(desk.ever_sent(SlotsRequested))
    given = names(desk.ever_sent(SlotsReleased))
    held = [] if desk.state.allocation is None else [desk.state.epoch]
    assert asked == list(range(1, desk.state.epoch + 1))
    assert sorted(given + held) == asked


def check_wish(desk: Desk) -> None:
    """It has an allocation if it wants slots; without one it wants none."""
    if desk.state.allocation is None:
        assert not wants_slots(desk.state)


def check_end(desk: Desk) -> None:
    """The experiment hears of the end once, in the message that brings it."""
    assert len(desk.ever_sent(TrialEnded)) == desk.state.status.final
    if desk.state.status.final:
        assert desk.state.allocation is None
        assert desk.ever_sent(TrialEnded)[0].status is desk.state.status


@FEW
@given(CREATED, HISTORIES)
def test_slots_balance_and_an_end_is_an_end(first: object, history: list[object]) -> None:
    desk = Desk("trial#4")
    for message in (first, *history):
        before = desk.state
        desk.now_ms += 1
        desk.tell(message)
        check_slots(desk)
        check_wish(desk)
        check_end(desk)
        if before is not None and before.status.final:
            assert desk.state == before
            assert desk.sent == []


@FEW
@given(CREATED, HISTORIES)
def test_counters_never_fall_and_a_length_is_told_once(
    first: object, history: list[object]
) -> None:
    desk = Desk("trial#4")
    desk.tell(first)
    for message in history:
        before = desk.state
        desk.tell(message)
        after = desk.state
        for name in ("epoch", "restarts", "losses", "reached", "answered"):
            assert getattr(after, name) >= getattr(before, name)
        assert after.epoch > before.epoch or after.revision >= before.revision
        assert not before.closed or after.closed
        assert after.restarts <= after.settings.max_restarts + 1
        assert after.checkpoint is not None or before.checkpoint is None
    told = [message.length for message in desk.ever_sent(TrialLengthReached)]
    assert told == sorted(set(told))


@FEW
@given(CREATED, HISTORIES)
def test_a_message_of_another_allocation_changes_nothing(
    first: object, history: list[object]
) -> None:
    desk = Desk("trial#4")
    desk.tell(first)
    for message in history:
        before, epoch = desk.state, getattr(message, "epoch", desk.state.epoch)
        desk.tell(message)
        if epoch != before.epoch:
            assert desk.state == before
            assert desk.sent == []


@FEW
@given(CREATED, HISTORIES, MESSAGES | CREATED)
def test_a_dead_letter_ends_an_open_trial_in_error_and_its_experiment_hears_of_it(
    first: object, history: list[object], letter: object
) -> None:
    desk = Desk("trial#4")
    desk.tell(first)
    for message in history:
        desk.tell(message)
    before = desk.state
    desk.bury(letter)
    if before.status.final:
        assert desk.state == before
        assert desk.sent == []
    else:
        assert desk.state.status is Status.ERROR
        (told,) = desk.sent_to("experiment#1")
        assert isinstance(told, TrialEnded)
        assert (told.status, told.early_exit) == (Status.ERROR, ExitReason.ERRORED)
    check_slots(desk)
    check_end(desk)


@FEW
@given(MESSAGES | CREATED)
def test_a_dead_letter_makes_a_trial_only_if_it_was_its_creation(letter: object) -> None:
    desk = Desk("trial#4")
    desk.bury(letter)
    assert (desk.state is not None) == (type(letter).__name__ == "TrialCreated")
    assert desk.state is None or desk.state.status is Status.ERROR


@FEW
@given(CREATED, LIVES)
def test_a_trial_that_goes_on_ends_once_in_each_of_its_lives(
    first: object, history: list[object]
) -> None:
    desk = Desk("trial#4")
    for message in (first, *history):
        before = desk.state
        desk.tell(message)
        after = desk.state
        check_slots(desk)
        check_wish(desk)
        if before is None:
            continue
        assert after.life >= before.life
        if after.life == before.life:
            assert not before.status.final or after == before
            assert not before.killed or after.killed
            assert after.restarts >= before.restarts
        else:
            assert before.status.final
            assert isinstance(message, TrialContinued)
        if after.killed and after.allocation is None:
            assert after.status.final
    lives = [ended.life for ended in desk.ever_sent(TrialEnded)]
    assert lives == sorted(set(lives))
    assert (desk.state.life in lives) == desk.state.status.final


@FEW
@given(CREATED, LIVES)
def test_a_doubled_word_changes_nothing_the_second_time(
    first: object, history: list[object]
) -> None:
    """A kill, a word to go on, a limit and a minute that is over: the second is late."""
    desk = Desk("trial#4")
    desk.tell(first)
    for message in history:
        desk.tell(message)
        before = desk.state
        if isinstance(
            message, TrialKillRequested | TrialContinued | TrialMoved | TerminationOverdue
        ):
            desk.tell(message)
            assert desk.state == before
            assert desk.sent == []
