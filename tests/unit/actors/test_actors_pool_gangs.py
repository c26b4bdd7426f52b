"""Requests over several whole agents: placed together, lost together, given back together."""

from control_plane.actors.agent_messages import AllocationPlaced, AllocationRemoved
from control_plane.actors.jobs import JobRow
from control_plane.actors.pool_messages import AgentAvailabilityChanged, AgentLost
from control_plane.actors.records import Place
from control_plane.actors.slots import Availability
from control_plane.actors.trial_messages import (
    AllocationLost,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.scheduling.sizes import AGENTS_MAX
from tests.unit.actors.desk import Desk
from tests.unit.actors.pools import (
    agents,
    asked_to_leave,
    group_of,
    joined,
    pool,
    released,
    requested,
    running,
    slots_of,
)

BOTH = (0, 1)


def gang() -> Desk:
    """Trial 1 on two agents of two slots, on the third nobody."""
    desk = pool(*(joined(name, 2) for name in "abc"))
    desk.tell(requested(1, 1, slots=4))
    return desk


def members(desk: Desk) -> list[str]:
    return [name for name, running in agents(desk).items() if running]


def test_a_request_larger_than_any_agent_takes_whole_agents_in_the_order_of_their_names() -> None:
    desk = gang()
    first, second = members(desk)
    assert first < second
    places = (Place(first, BOTH), Place(second, BOTH))
    assert desk.sent_to("trial#1") == [SlotsAssigned(1, places)]
    assert desk.sent_to(f"agent#{first}") == [AllocationPlaced(1, 1, BOTH, 0, 2)]
    assert desk.sent_to(f"agent#{second}") == [AllocationPlaced(1, 1, BOTH, 1, 2)]
    # It is one allocation.
    assert (desk.state.running, desk.state.free, desk.state.queued) == (1, 2, 0)
    assert (group_of(desk, 1).running, group_of(desk, 1).held) == (1, 4)


def test_a_gang_waits_until_enough_agents_are_unused() -> None:
    desk = pool(joined("a", 2), joined("b", 2), requested(2, 2))
    desk.tell(requested(1, 1, slots=4))
    assert running(desk) == [2]
    desk.tell(released(2, 2))
    assert running(desk) == [1]


def test_a_job_of_single_agents_is_not_spread() -> None:
    single = JobRow(single_agent=True)
    desk = pool(joined("a", 2), joined("b", 2), requested(1, 1, slots=4), job1=single)
    assert running(desk) == []
    assert desk.state.waits
    desk.tell(joined("c", 4))
    assert members(desk) == ["c"]


def test_a_gang_is_given_back_whole() -> None:
    desk = gang()
    names = members(desk)
    desk.tell(released(1, 1, *names))
    assert members(desk) == []
    for name in names:
        assert desk.sent_to(f"agent#{name}") == [AllocationRemoved(1, 1)]
    assert (desk.state.running, desk.state.free) == (0, 6)
    assert group_of(desk, 1).idle


def test_a_gang_that_does_not_know_where_it_is_is_given_back_whole_too() -> None:
    desk = gang()
    desk.tell(released(1, 1))
    assert (members(desk), desk.state.free) == ([], 6)


def test_without_one_member_the_others_stay_until_the_trial_gives_them_back() -> None:
    for lost in (0, 1):
        desk = gang()
        names = members(desk)
        gone, left = names[lost], names[1 - lost]
        desk.tell(AgentLost(gone, 1, "silence"))
        text = f"agent {gone} was lost: silence"
        assert desk.sent_to("trial#1") == [AllocationLost(1, text, gone)]
        assert desk.sent_to(f"agent#{left}") == []
        assert members(desk) == [left]
        assert (desk.state.running, desk.state.free) == (1, 2)
        known = group_of(desk, 1)
        assert (known.running, known.held, known.leaving) == (1, 2, 2)
        # Its processes there have exited: the trial asks again, and its healthy agent fits.
        desk.tell(released(1, 1, gone, left), requested(1, 1, slots=4, epoch=2))
        assert left in members(desk)
        assert gone not in members(desk)
        assert (desk.state.running, desk.state.free) == (1, 0)


def test_a_gang_that_loses_all_its_agents_is_gone() -> None:
    desk = gang()
    for name in members(desk):
        desk.tell(AgentLost(name, 1, "silence"))
    assert (desk.state.running, desk.state.slots, group_of(desk, 1).held) == (0, 2, 0)
    desk.tell(released(1, 1, "a", "b"))
    assert group_of(desk, 1).idle


def test_an_agent_that_comes_back_smaller_is_a_lost_member() -> None:
    desk = gang()
    first, second = members(desk)
    desk.tell(joined(first, 1, epoch=2))
    [lost] = desk.sent_to("trial#1")
    assert isinstance(lost, AllocationLost)
    assert members(desk) == [second]
    assert slots_of(desk, second).parts["1.1"].leaving


def test_a_gang_leaves_whole_when_one_of_its_agents_is_disabled() -> None:
    desk = gang()
    first, second = members(desk)
    desk.tell(AgentAvailabilityChanged(first, 1, Availability(enabled=False)))
    reason = f"agent {first} was disabled"
    assert desk.sent_to("trial#1") == [PreemptionRequested(1, reason, forced=True)]
    assert group_of(desk, 1).leaving == 4
    assert slots_of(desk, second).parts["1.1"].leaving


def test_a_gang_is_preempted_once_for_all_its_agents() -> None:
    # Two jobs of 4 slots on 4: the shares are 2 and 2, and neither gang fits into one. The later
    # one gives its offer up, so that the first keeps all.
    desk = pool(joined("a", 2), joined("b", 2), requested(1, 1, slots=4))
    desk.tell(requested(2, 2, slots=2), requested(3, 2, slots=2))
    assert asked_to_leave(desk) == ["trial#1"]
    desk.tell(requested(4, 2, slots=2))
    assert asked_to_leave(desk) == []
    assert group_of(desk, 1).leaving == 4


def test_a_gang_larger_than_a_commit_does_not_start_and_holds_nobody_up() -> None:
    count = AGENTS_MAX + 1
    desk = pool(*(joined(f"node-{n:02d}", 2) for n in range(count)))
    desk.tell(requested(1, 1, slots=2 * count), requested(2, 2))
    assert running(desk) == [2]
    # 1 would have taken the agents by then.
    desk.tell(requested(3, 3, slots=2 * (count - 1)))
    assert 1 not in running(desk)
