"""A gang ends exactly once under any order and repetition of messages of nodes and agents."""

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.messages.pool import SlotsReleased, SlotsRequested
from control_plane.actors.messages.trial import (
    AllocationExited,
    AllocationLost,
    ContainerStateReported,
    ExperimentStatusChanged,
    PreemptionRequested,
    SlotsAssigned,
    ValidationReported,
)
from control_plane.actors.records import Place, Status
from control_plane.actors.trial.state import DesiredState
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.sample_messages import trial_created, trial_settings

REASONS = ("completed", "preempted", "idle", "errored", "lost", "killed", "start_failed")
STATES = ("PULLING", "STARTING", "RUNNING")
FEW = settings(deadline=None, derandomize=True, max_examples=300)


@st.composite
def node_histories(draw: st.DrawFn) -> tuple[int, list[list[object]]]:
    """Return the messages about some nodes: states in order, and then the end; and the pool's."""
    nodes = draw(st.integers(2, 4))
    lives: list[list[object]] = []
    for rank in range(nodes):
        life: list[object] = [
            ContainerStateReported(1, name, rank, nodes)
            for name in STATES[: draw(st.integers(0, 3))]
        ]
        if draw(st.booleans()):
            life.append(ValidationReported(1, draw(st.sampled_from((50, 60))), 0.5, nodes=nodes))
        reason = draw(st.sampled_from((*REASONS, *REASONS, "silence")))
        if reason == "silence":
            life.append(AllocationLost(1, f"agent {rank} was lost", str(rank)))
        else:
            notice = draw(st.sampled_from(("", "", "the machine ends")))
            gone = AllocationExited(1, reason, node_rank=rank, nodes=nodes, notice=notice)
            life += [gone] * draw(st.integers(1, 2))
            if draw(st.booleans()):
                life.append(AllocationLost(1, f"agent {rank} was lost", str(rank)))
        lives.append(life)
    orders = st.sampled_from(
        (
            ExperimentStatusChanged(Status.PAUSED),
            ExperimentStatusChanged(Status.ACTIVE),
            PreemptionRequested(1, "slots are wanted"),
        )
    )
    lives.append(draw(st.lists(orders, max_size=2)))
    return nodes, lives


def interleave(draw: st.DataObject, lives: list[list[object]]) -> list[object]:
    """Return the messages of all histories, each in order, with some repetitions."""
    left = [list(life) for life in lives if life]
    messages: list[object] = []
    while left:
        life = left[draw.draw(st.integers(0, len(left) - 1))]
        messages.append(life.pop(0))
        left = [each for each in left if each]
        if draw.draw(st.integers(0, 4)) == 0:
            messages.append(messages[draw.draw(st.integers(0, len(messages) - 1))])
    return messages


def rank_of_exit(message: object) -> int | None:
    """Return the rank of the node that the message reports as gone, or None."""
    match message:
        case AllocationExited(node_rank=rank):
            return rank
        case AllocationLost(agent=agent):
            return int(agent)
        case _:
            return None


def breaks(message: object) -> bool:
    """Return whether the rest of the gang cannot continue after the message."""
    if not isinstance(message, AllocationExited):
        return True
    return message.reason in ("errored", "start_failed", "lost")


@FEW
@given(node_histories(), st.data())
def test_gang_ends_once_after_all_nodes_and_never_runs_twice(
    drawn: tuple[int, list[list[object]]], data: st.DataObject
) -> None:
    nodes, lives = drawn
    actor = ActorHarness("trial#4")
    places = tuple(Place(str(rank), (0, 1)) for rank in range(nodes))
    actor.deliver(trial_created(of=trial_settings(slots=2 * nodes)), SlotsAssigned(1, places))
    gone: set[int] = set()
    for message in interleave(data, lives):
        actor.deliver(message)
        rank = rank_of_exit(message)
        is_news = rank is not None and rank not in gone
        gone |= {rank} if rank is not None else set()
        allocation = actor.state.allocation
        holds = actor.state.epoch == 1 and allocation is not None
        # The gang has slots exactly until the last node is gone.
        assert holds == (len(gone) < nodes)
        epochs = [one.epoch for one in actor.all_messages(SlotsRequested)]
        given_back = [one.epoch for one in actor.all_messages(SlotsReleased)]
        assert epochs == list(range(1, actor.state.epoch + 1))
        # The slots of the previous epoch are released before new slots are requested.
        assert given_back[: len(epochs) - 1] == epochs[:-1]
        if holds and is_news and breaks(message):
            assert allocation.desired_state is DesiredState.KILL
        assert actor.state.restarts + actor.state.losses <= 1
    assert len(gone) == nodes


@FEW
@given(node_histories(), st.data())
def test_gang_that_lost_an_agent_first_has_not_failed(
    drawn: tuple[int, list[list[object]]], data: st.DataObject
) -> None:
    """A lost node may be the cause of all other ends, reported before or after the loss."""
    nodes, lives = drawn
    lost = data.draw(st.integers(0, nodes - 1))
    lives[lost] = [AllocationLost(1, f"agent {lost} was lost", str(lost))]
    actor = ActorHarness("trial#4")
    places = tuple(Place(str(rank), (0, 1)) for rank in range(nodes))
    actor.deliver(trial_created(of=trial_settings(slots=2 * nodes, max_restarts=0)))
    actor.deliver(SlotsAssigned(1, places), *interleave(data, lives))
    assert actor.state.restarts == 0
    assert actor.state.status is Status.ACTIVE
    assert actor.state.losses == 1
    assert len(actor.state.recent_losses) == 1
