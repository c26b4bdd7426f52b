"""Limits on the slots of a group: who waits, who is asked to leave, what a change costs."""

import pytest

from control_plane.actors.ordered import Directory, Leaf
from control_plane.actors.pool import PoolState, agents_of, settle, step, waiting_in
from control_plane.actors.pool_messages import (
    AgentJoined,
    AgentLost,
    GroupLimited,
    PoolConfigured,
    PoolMessage,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.records import Place
from control_plane.actors.step import RowSeen, Turn
from control_plane.actors.trial_messages import PreemptionRequested, SlotsAssigned
from control_plane.actors.waiting import LIMIT_KEPT_MS, Group
from tests.unit.actors.desk import START_MS, Desk


def pool(*messages: object) -> Desk:
    desk = Desk("pool#default")
    desk.tell(PoolConfigured("default"), *messages)
    return desk


def joined(agent: str, slots: int, epoch: int = 1) -> AgentJoined:
    return AgentJoined(agent, epoch, tuple(range(slots)))


def requested(
    trial_id: int, group: int, max_slots: int | None = None, slots: int = 1
) -> SlotsRequested:
    return SlotsRequested(trial_id, 1, slots, f"{trial_id:06d}", group, max_slots)


def released(trial_id: int, group: int, agent: str = "a") -> SlotsReleased:
    return SlotsReleased(trial_id, 1, f"{trial_id:06d}", (agent,), group)


def running(desk: Desk) -> list[int]:
    agents = agents_of(Turn(desk.address, 0, desk)).items()
    return sorted(int(name.split(".")[0]) for _, agent in agents for name in agent.running)


def group(desk: Desk, number: int) -> Group:
    return waiting_in(Turn(desk.address, desk.now_ms, desk)).group(number)


def asked_to_leave(desk: Desk) -> list[str]:
    """Trials that the last messages preempted, in the order of asking."""
    return [send.to for send in desk.sent if isinstance(send.message, PreemptionRequested)]


def test_a_group_has_no_more_slots_than_its_limit() -> None:
    desk = pool(joined("a", 4), *(requested(n, group=1, max_slots=2) for n in range(1, 5)))
    assert running(desk) == [1, 2]
    assert (desk.state.queued, desk.state.free) == (2, 2)
    assert desk.state.waits == "3.1 needs 1 slots; experiment 1 has 2 of its max_slots 2"


def test_a_group_at_its_limit_holds_nobody_up() -> None:
    limited = [requested(n, group=1, max_slots=1) for n in range(1, 4)]
    desk = pool(joined("a", 3), *limited, requested(8, group=2), requested(9, group=0))
    assert running(desk) == [1, 8, 9]
    assert desk.state.waits.startswith("2.1 needs 1 slots; experiment 1 has 1")


def test_a_release_lets_the_next_of_the_group_start_in_order() -> None:
    desk = pool(joined("a", 4), *(requested(n, group=1, max_slots=1) for n in (3, 1, 2)))
    assert running(desk) == [1]
    desk.tell(released(1, group=1))
    assert running(desk) == [2]
    desk.tell(released(2, group=1), released(3, group=1, agent=""))
    assert running(desk) == []
    assert desk.state.queued == 0
    assert desk.state.waits == ""


def test_requests_of_a_group_keep_their_place_among_others() -> None:
    # One slot, so all wait behind 1; then they start by ticket, not group by group.
    desk = pool(joined("a", 1), *(requested(n, group=1 + n % 2, max_slots=3) for n in range(1, 6)))
    for number in range(1, 5):
        assert running(desk) == [number]
        desk.tell(released(number, group=1 + number % 2))
    assert running(desk) == [5]


def test_a_limit_counts_slots_not_requests() -> None:
    # 5 slots hold two requests of 2 slots: 2 + 2 + 2 = 6 > 5.
    desk = pool(joined("a", 8), *(requested(n, 1, 5, slots=2) for n in range(1, 4)))
    assert running(desk) == [1, 2]


def test_zero_slot_requests_have_no_limit() -> None:
    desk = pool(joined("a", 1), *(requested(n, 1, 0, slots=0) for n in range(1, 4)))
    assert running(desk) == [1, 2, 3]


def test_a_lower_limit_asks_the_youngest_to_leave_until_it_holds() -> None:
    desk = pool(joined("a", 4), *(requested(n, 1, 4) for n in range(1, 5)))
    desk.tell(GroupLimited(1, 2))
    assert asked_to_leave(desk) == ["trial#4", "trial#3"]
    reason = "experiment 1 may have 2 slots at most now"
    assert desk.sent_to("trial#4") == [PreemptionRequested(1, reason)]
    assert running(desk) == [1, 2, 3, 4]
    # They come back at once to wait, and do not start before two are left.
    again = [SlotsRequested(n, 2, 1, f"1{n:05d}", 1, 2) for n in (3, 4)]
    desk.tell(released(4, 1), again[1])
    assert running(desk) == [1, 2, 3]
    desk.tell(released(3, 1), again[0])
    assert running(desk) == [1, 2]
    desk.tell(released(1, 1))
    assert running(desk) == [2, 3]


def test_the_youngest_is_who_started_last_not_who_asked_last() -> None:
    desk = pool(joined("a", 2), requested(5, 1, 2))
    desk.tell(requested(4, 1, 2))
    desk.tell(GroupLimited(1, 1))
    assert asked_to_leave(desk) == ["trial#4"]


def test_no_more_are_asked_to_leave_than_the_limit_needs() -> None:
    # 3 x 2 = 6 slots; without the youngest 4 > 3, without the second 2 <= 3.
    desk = pool(joined("a", 6), *(requested(n, 1, None, slots=2) for n in range(1, 4)))
    desk.tell(GroupLimited(1, 3))
    assert asked_to_leave(desk) == ["trial#3", "trial#2"]
    desk.tell(GroupLimited(1, 3))
    assert asked_to_leave(desk) == ["trial#3", "trial#2"]


def test_nobody_of_another_group_is_asked_to_leave() -> None:
    desk = pool(joined("a", 4), *(requested(n, 1 + n % 2, None) for n in range(1, 5)))
    desk.tell(GroupLimited(2, 0))
    assert sorted(asked_to_leave(desk)) == ["trial#1", "trial#3"]


@pytest.mark.parametrize("limit", [5, None])
def test_a_higher_limit_or_none_lets_more_start_at_once(limit: int | None) -> None:
    desk = pool(joined("a", 8), *(requested(n, 1, 1) for n in range(1, 6)))
    desk.tell(GroupLimited(1, limit))
    assert running(desk) == [1, 2, 3, 4, 5]


def test_a_lower_limit_stops_those_that_wait_for_a_free_slot() -> None:
    desk = pool(joined("a", 1), *(requested(n, 1, 3) for n in range(1, 4)), requested(9, 2))
    desk.tell(GroupLimited(1, 1))
    desk.tell(joined("b", 4))
    assert running(desk) == [1, 9]


def test_a_request_that_was_on_its_way_does_not_undo_a_change() -> None:
    desk = pool(joined("a", 4), GroupLimited(1, 1))
    desk.tell(*(requested(n, 1, 4) for n in range(1, 4)))
    assert running(desk) == [1]
    # Long after, what requests say is what the experiment says.
    desk.now_ms = START_MS + LIMIT_KEPT_MS
    desk.tell(requested(4, 1, 2))
    assert running(desk) == [1, 2]


def test_a_group_that_has_nothing_and_wants_nothing_is_forgotten() -> None:
    desk = pool(joined("a", 1), requested(1, 1, 1), requested(2, 2))
    desk.tell(released(1, 1), released(2, 2))
    kept = {name for name in desk.parts if name.startswith(("queue", "groups", "requests"))}
    assert kept == {"queue", "groups", "requests"}  # the directories, of nothing
    desk.tell(GroupLimited(1, 3))
    assert group(desk, 1) == Group(3, 0, START_MS)
    desk.now_ms += LIMIT_KEPT_MS
    desk.tell(requested(4, 1, 3), released(4, 1, ""))
    assert group(desk, 1) == Group()


def test_a_lost_agent_gives_the_group_its_room_back() -> None:
    desk = pool(joined("a", 2), requested(1, 1, 2), requested(2, 1, 2), requested(3, 1, 2))
    desk.tell(joined("b", 2))
    assert running(desk) == [1, 2]
    desk.tell(AgentLost("a", 1, "silence"))
    assert running(desk) == [3]
    assert group(desk, 1).running == 1


def test_an_agent_that_comes_back_smaller_gives_the_group_its_room_back() -> None:
    desk = pool(joined("a", 2), joined("b", 1), requested(1, 1, 1, slots=1))
    holder, other = ("a", "b") if "1.1" in _running_on(desk, "a") else ("b", "a")
    desk.tell(requested(2, 1, 1))
    desk.tell(AgentJoined(holder, 2, (7,)))
    assert list(_running_on(desk, holder)) + list(_running_on(desk, other)) == ["2.1"]


def test_a_trial_that_does_not_know_its_group_is_found_all_the_same() -> None:
    desk = pool(joined("a", 1), *(requested(n, 3, 1) for n in range(1, 4)))
    desk.tell(SlotsReleased(2, 1, "000002", ()), SlotsReleased(1, 1, "000001", ()))
    assert running(desk) == [3]
    assert desk.state.queued == 0


def test_a_pool_from_before_there_were_groups_goes_on() -> None:
    desk = pool()
    desk.parts["queue"] = b'{"leaves":[["000001",0]],"next_leaf":1}'
    desk.parts["queue/0"] = b'{"entries":[["000001",["1.1",1]],["000002",["2.1",1]]]}'
    desk.parts["agents"] = b'{"leaves":[["a",0]],"next_leaf":1}'
    desk.parts["agents/0"] = b'{"entries":[["a",[1,[0,1],{"9.1":[1]}]]]}'
    counts = b'{"name":"default","agents":1,"slots":2,"free":1,"queued":2,"running":1}'
    desk.state = desk._kind.decode_state(counts)
    # Trial 9 started then, and its release says today what group it is in; so does that of 2.
    desk.tell(released(2, group=4, agent=""), requested(5, group=4, max_slots=1))
    assert running(desk) == [1, 9]
    desk.tell(released(9, group=4))
    assert running(desk) == [1, 5]
    assert desk.sent_to("trial#5") == [SlotsAssigned(1, (Place("a", (1,)),))]
    assert desk.state.free == 0


def test_many_starts_of_one_group_are_one_commit() -> None:
    ledger = Ledger()
    ledger.tell(*(requested(number, 1) for number in range(1, 201)))
    ledger.tell(joined("a", 200))
    # 200 requests lie in 200 / 17 leaves at most, beside them a directory, the group, its place in
    # the queue and the agent.
    assert ledger.state is not None
    assert ledger.state.running == 200
    assert len(ledger.planned) < 20


# How much a decision reads and writes ------------------------------------------------------------


class Ledger:
    """A pool's parts as values, and what each fold reads, writes and writes to start somebody."""

    def __init__(self) -> None:
        self.parts: dict[str, object] = {}
        self.state: PoolState | None = None
        self.read: set[str] = set()
        self.wrote: set[str] = set()
        self.planned: set[str] = set()
        self.tell(PoolConfigured("default"))

    def part(self, name: str) -> object | None:
        self.read.add(name)
        return self.parts.get(name)

    def row(self, partition: str, sort: str) -> RowSeen:
        return RowSeen(0, b"")

    def tell(self, *messages: PoolMessage) -> None:
        self.read, self.wrote = set(), set()
        for message in messages:
            turn = self._turn()
            self._keep(step(self.state, message, turn), turn)
        assert self.state is not None
        turn = self._turn()
        self._keep(settle(self.state, turn), turn)
        self.planned = set(turn.parts)

    def _turn(self) -> Turn:
        return Turn("pool#default", START_MS, self)

    def _keep(self, state: PoolState | None, turn: Turn) -> None:
        self.state = state
        self.wrote |= set(turn.parts)
        for name, value in turn.parts.items():
            assert value is None or isinstance(value, Directory | Leaf)
            self.parts[name] = value


def crowded(groups: int, requests: int) -> Ledger:
    """A full agent, `groups` of two requests at a limit of one slot, and one group at its limit
    with `requests`.
    """
    ledger = Ledger()
    ledger.tell(joined("a", 2), requested(1, 1, 1), requested(2, 2, 1))
    waiting: list[PoolMessage] = [requested(10 + n, 1, 1) for n in range(requests)]
    waiting += [requested(100_000 + n, 10 + n // 2, 1) for n in range(2 * groups)]
    for first in range(0, len(waiting), 500):
        ledger.tell(*waiting[first : first + 500])
    return ledger


@pytest.fixture(scope="module")
def sizes() -> tuple[Ledger, Ledger]:
    return crowded(20, 100), crowded(3_000, 10_000)


def test_a_decision_reads_and_writes_as_much_for_ten_thousand_requests_of_thousands_of_groups(
    sizes: tuple[Ledger, Ledger],
) -> None:
    costs = []
    for ledger in sizes:
        cost = []
        messages: list[PoolMessage] = [
            released(1, 1),  # the next of the long group starts
            released(2, 2),  # the first of the many groups starts
            requested(9, 1, 1),  # one more at the limit
            GroupLimited(1, 0),
            GroupLimited(1, 3),
            released(12, 1, ""),
        ]
        for message in messages:
            ledger.tell(message)
            cost.append((len(ledger.read), len(ledger.wrote)))
        costs.append(cost)
    for small, large in zip(*costs, strict=True):
        # A leaf or a directory more where an entry stands at an edge; nothing grows with size.
        assert large[0] <= small[0] + 3
        assert large[1] <= small[1] + 2
        assert large[0] <= 16


def test_many_starts_at_once_stay_within_a_commit() -> None:
    # 80 groups whose requests lie in leaves of their own, in turn by ticket, on agents of 20
    # leaves: each start changes other parts than the one before.
    ledger = Ledger()
    groups, each = 80, 20
    numbers = [(n * groups + group, 1 + group) for group in range(groups) for n in range(each)]
    ledger.tell(*(requested(number, group, 4) for number, group in numbers))
    ledger.tell(*(joined(f"node-{n:03d}", 1) for n in range(320)))
    rounds = 1
    while ledger.state and ledger.state.unscheduled:
        # 60 that the fold may have used, and a few for the outbox: a commit holds 100.
        assert len(ledger.planned) <= 100 - 60 - 4
        ledger.tell()
        rounds += 1
    assert ledger.state is not None
    assert ledger.state.running == 320
    assert rounds > 10


def _running_on(desk: Desk, agent: str) -> dict[str, tuple[int, ...]]:
    found = agents_of(Turn(desk.address, 0, desk)).get(agent)
    assert found is not None
    return dict(found.running)
