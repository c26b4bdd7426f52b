"""Requests for several whole agents, which are placed, lost and released together."""

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.agent import AllocationPlaced, AllocationRemoved
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentLost
from control_plane.actors.messages.trial import (
    AllocationLost,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.actors.records import Availability, Place
from control_plane.scheduling.sizes import AGENTS_MAX
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import (
    agent_joined,
    agents,
    group_of,
    pool,
    preempted_trials,
    running,
    slots_of,
    slots_released,
    slots_requested,
)

BOTH = (0, 1)


def gang() -> ActorHarness:
    """Create a pool of three agents of two slots, with trial 1 on two of the agents."""
    actor = pool(*(agent_joined(name, 2) for name in "abc"))
    actor.deliver(slots_requested(1, 1, slots=4))
    return actor


def members(actor: ActorHarness) -> list[str]:
    return [name for name, running in agents(actor).items() if running]


def test_large_request_starts_on_whole_agents_in_order_of_names() -> None:
    actor = gang()
    first, second = members(actor)
    assert first < second
    places = (Place(first, BOTH), Place(second, BOTH))
    assert actor.messages_to("trial#1") == [SlotsAssigned(1, places)]
    assert actor.messages_to(f"agent#{first}") == [AllocationPlaced(1, 1, BOTH, 0, 2)]
    assert actor.messages_to(f"agent#{second}") == [AllocationPlaced(1, 1, BOTH, 1, 2)]
    # The gang is a single allocation.
    assert (actor.state.running, actor.state.free, actor.state.queued) == (1, 2, 0)
    assert (group_of(actor, 1).running, group_of(actor, 1).held) == (1, 4)


def test_gang_waits_for_enough_unused_agents() -> None:
    actor = pool(agent_joined("a", 2), agent_joined("b", 2), slots_requested(2, 2))
    actor.deliver(slots_requested(1, 1, slots=4))
    assert running(actor) == [2]
    actor.deliver(slots_released(2, 2))
    assert running(actor) == [1]


def test_single_agent_job_is_not_spread() -> None:
    single = JobRow(single_agent=True)
    actor = pool(
        agent_joined("a", 2), agent_joined("b", 2), slots_requested(1, 1, slots=4), job1=single
    )
    assert running(actor) == []
    assert actor.state.wait_reason
    actor.deliver(agent_joined("c", 4))
    assert members(actor) == ["c"]


def test_release_frees_all_agents_of_a_gang() -> None:
    actor = gang()
    names = members(actor)
    actor.deliver(slots_released(1, 1, *names))
    assert members(actor) == []
    for name in names:
        assert actor.messages_to(f"agent#{name}") == [AllocationRemoved(1, 1)]
    assert (actor.state.running, actor.state.free) == (0, 6)
    assert group_of(actor, 1).is_idle


def test_release_without_agents_frees_all_agents_of_a_gang() -> None:
    actor = gang()
    actor.deliver(slots_released(1, 1))
    assert (members(actor), actor.state.free) == ([], 6)


def test_members_of_a_gang_stay_after_a_loss_until_the_release() -> None:
    for lost in (0, 1):
        actor = gang()
        names = members(actor)
        gone, left = names[lost], names[1 - lost]
        actor.deliver(AgentLost(gone, 1, "silence"))
        text = f"agent {gone} was lost: silence"
        assert actor.messages_to("trial#1") == [AllocationLost(1, text, gone)]
        assert actor.messages_to(f"agent#{left}") == []
        assert members(actor) == [left]
        assert (actor.state.running, actor.state.free) == (1, 2)
        known = group_of(actor, 1)
        assert (known.running, known.held, known.leaving) == (1, 2, 2)
        # The processes of the other node have exited, so the trial requests slots again.
        actor.deliver(slots_released(1, 1, gone, left), slots_requested(1, 1, slots=4, epoch=2))
        assert left in members(actor)
        assert gone not in members(actor)
        assert (actor.state.running, actor.state.free) == (1, 0)


def test_gang_ends_with_the_loss_of_all_agents() -> None:
    actor = gang()
    for name in members(actor):
        actor.deliver(AgentLost(name, 1, "silence"))
    assert (actor.state.running, actor.state.slots, group_of(actor, 1).held) == (0, 2, 0)
    actor.deliver(slots_released(1, 1, "a", "b"))
    assert group_of(actor, 1).is_idle


def test_agent_that_comes_back_smaller_is_a_lost_member() -> None:
    actor = gang()
    first, second = members(actor)
    actor.deliver(agent_joined(first, 1, epoch=2))
    [lost] = actor.messages_to("trial#1")
    assert isinstance(lost, AllocationLost)
    assert members(actor) == [second]
    assert slots_of(actor, second).parts["1.1"].leaving


def test_gang_leaves_all_agents_after_an_agent_is_disabled() -> None:
    actor = gang()
    first, second = members(actor)
    actor.deliver(AgentAvailabilityChanged(first, 1, Availability(enabled=False)))
    reason = f"agent {first} was disabled"
    assert actor.messages_to("trial#1") == [PreemptionRequested(1, reason, forced=True)]
    assert group_of(actor, 1).leaving == 4
    assert slots_of(actor, second).parts["1.1"].leaving


def test_gang_is_preempted_once_for_all_agents() -> None:
    # Two jobs share 4 slots, so each gets 2. The allocation of job 1 needs 4 slots, so it is
    # preempted as a whole.
    actor = pool(agent_joined("a", 2), agent_joined("b", 2), slots_requested(1, 1, slots=4))
    actor.deliver(slots_requested(2, 2, slots=2), slots_requested(3, 2, slots=2))
    assert preempted_trials(actor) == ["trial#1"]
    actor.deliver(slots_requested(4, 2, slots=2))
    assert preempted_trials(actor) == []
    assert group_of(actor, 1).leaving == 4


def test_gang_larger_than_a_commit_neither_starts_nor_blocks_later_requests() -> None:
    count = AGENTS_MAX + 1
    actor = pool(*(agent_joined(f"node-{n:02d}", 2) for n in range(count)))
    actor.deliver(slots_requested(1, 1, slots=2 * count), slots_requested(2, 2))
    assert running(actor) == [2]
    # 1 would have occupied the agents by now.
    actor.deliver(slots_requested(3, 3, slots=2 * (count - 1)))
    assert 1 not in running(actor)
