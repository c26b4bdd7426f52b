"""A pool under any interleaving of requests of limited groups, changes of their limits, and agents
that come, go, close and open: against a model that asks everybody each time.
"""

from dataclasses import dataclass, field

from control_plane.scheduling.turns import has_room
from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.pool import agents_of, waiting_in
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    GroupLimited,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.slots import OPEN, AgentSlots, Availability
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import PreemptionRequested
from control_plane.actors.waiting import LIMIT_KEPT_MS, Waiting
from control_plane.scheduling.model import Request
from tests.unit.actors.desk import Desk

AGENTS = "abc"
GROUPS = (0, 1, 2, 3)


@dataclass
class Model:
    """A pool, the limits as they were said, and who was asked to leave."""

    desk: Desk = field(default_factory=lambda: Desk("pool#default"))
    requests: dict[int, Request] = field(default_factory=dict)
    limits: dict[int, int | None] = field(default_factory=dict)
    leaving: set[str] = field(default_factory=set)
    epochs: dict[str, int] = field(default_factory=dict)
    availability: dict[str, Availability] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.desk.tell(PoolConfigured("default"))

    def request(self, group: int, slots: int, age: int) -> SlotsRequested:
        """By a new trial, which knows its group's limit."""
        number = len(self.requests) + 1
        ticket = f"{max(0, 50 - age):04d}.{number:04d}"
        self.requests[number] = Request(f"{number}.1", slots, ticket, group)
        return SlotsRequested(number, 1, slots, ticket, group, self.limits.get(group))

    def release(self, number: int, knows: bool) -> SlotsReleased:
        trial = 1 + number % max(1, len(self.requests))
        request = self.requests.get(trial, Request("0.1", 0, "x"))
        agent = self.holder(request.allocation) if knows else ""
        return SlotsReleased(trial, 1, request.ticket, (agent,) if agent else (), request.group)

    def limit(self, group: int, max_slots: int | None) -> GroupLimited:
        self.limits[group] = max_slots
        return GroupLimited(group, max_slots)

    def join(self, agent: str, slots: int) -> AgentJoined:
        self.epochs[agent] = self.epochs.get(agent, 0) + 1
        known = self.availability.get(agent, OPEN)
        return AgentJoined(agent, self.epochs[agent], tuple(range(slots)), known)

    def close(self, agent: str, availability: Availability) -> AgentAvailabilityChanged:
        self.availability[agent] = availability
        return AgentAvailabilityChanged(agent, self.epochs.get(agent, 1), availability)

    def tell(self, *messages: object) -> None:
        self.desk.tell(*messages)
        for send in self.desk.sent:
            if isinstance(send.message, PreemptionRequested):
                self.leaving.add(f"{send.to.removeprefix('trial#')}.1")

    def agents(self) -> dict[str, AgentSlots]:
        return dict(agents_of(self._turn()).items())

    def waiting(self) -> Waiting:
        return waiting_in(self._turn())

    def holder(self, allocation: str) -> str:
        return next((name for name, a in self.agents().items() if allocation in a.running), "")

    def running(self) -> set[str]:
        return {name for agent in self.agents().values() for name in agent.running}

    def used(self, *, staying: bool = False) -> dict[int, int]:
        """The slots of each group by what its allocations hold."""
        used = dict.fromkeys(GROUPS, 0)
        for agent in self.agents().values():
            for name, held in agent.running.items():
                group = self.requests[int(name.split(".")[0])].group
                used[group] += 0 if staying and name in self.leaving else len(held)
        return used

    def _turn(self) -> Turn:
        return Turn(self.desk.address, self.desk.now_ms, self.desk)


Change = tuple[str, int, int, bool]
WHAT = ["request", "request", "request", "release", "release", "limit", "join", "lose", "close"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 50), st.integers(0, 4), st.booleans()),
    max_size=40,
)


def message_of(change: Change, model: Model) -> object:
    what, number, slots, flag = change
    agent = AGENTS[number % len(AGENTS)]
    match what:
        case "request":
            return model.request(GROUPS[number % len(GROUPS)], slots, number)
        case "release":
            return model.release(number, flag)
        case "limit":
            return model.limit(1 + number % 3, None if slots == 4 and flag else slots)
        case "join":
            return model.join(agent, slots)
        case "close":
            disabled = tuple(range(number % 3))
            return model.close(agent, Availability(slots > 1, flag, disabled))
        case _:
            return AgentLost(agent, model.epochs.get(agent, 1), "silence")


def check_sums(model: Model) -> None:
    """No slot is held twice, and the head's sums are those of the parts."""
    state, agents = model.desk.state, model.agents().values()
    for agent in agents:
        held = [slot for slots in agent.running.values() for slot in slots]
        assert len(held) == len(set(held))
        assert set(held) <= set(agent.slots)
    assert state.slots == sum(agent.total for agent in agents)
    assert state.free == sum(len(agent.free) for agent in agents)
    assert state.slots - state.free == sum(model.used().values())
    assert state.running == sum(len(agent.running) for agent in agents)
    assert state.queued == len(list(model.waiting().items()))
    assert (state.waits != "") == (state.queued > 0)


def check_limits(model: Model, before: dict[int, int]) -> None:
    """A group is over its limit only as far as it was before, and then enough were asked to go."""
    used, staying = model.used(), model.used(staying=True)
    for group in GROUPS[1:]:
        assert model.waiting().group(group).running == used[group]
        limit = model.limits.get(group)
        if limit is not None:
            assert used[group] <= max(limit, before[group])
            assert staying[group] <= limit


def check_starts(model: Model, before: set[str]) -> None:
    """Whoever runs now and did not before has slots that take work."""
    for agent in model.agents().values():
        for name in agent.running.keys() - before:
            assert agent.takes_work
            assert all(map(agent.availability.takes, agent.running[name]))


def check_waiting(model: Model) -> None:
    """The first who may start finds no room on any agent; nobody is asked behind it."""
    waiting, agents = model.waiting(), model.agents().values()
    first: dict[object, Request] = {}
    for request in sorted(waiting.items(), key=lambda request: request.ticket):
        first.setdefault(request.group or request.ticket, request)
    may = [
        request
        for request in first.values()
        if not request.group or has_room(request.slots, waiting.group(request.group).room)
    ]
    assert [line.ticket for line in waiting.lines()] == [request.ticket for request in may]
    if may:
        takers = [agent for agent in agents if agent.takes_work]
        assert all(len(agent.free) < may[0].slots for agent in takers)


@settings(deadline=None, derandomize=True, max_examples=150)
@given(CHANGES)
def test_limits_hold_and_nothing_waits_that_could_start(changes: list[Change]) -> None:
    model = Model()
    for change in changes:
        before, ran = model.used(), model.running()
        model.tell(message_of(change, model))
        check_starts(model, ran)
        check_sums(model)
        check_limits(model, before)
        check_waiting(model)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.lists(CHANGES.filter(bool), max_size=5))
def test_they_hold_after_folds_of_many_messages(folds: list[list[Change]]) -> None:
    model = Model()
    for changes in folds:
        before, ran = model.used(), model.running()
        model.tell(*(message_of(change, model) for change in changes))
        check_starts(model, ran)
        check_sums(model)
        check_limits(model, before)
        check_waiting(model)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(CHANGES)
def test_nothing_waits_for_ever_once_slots_are_free(changes: list[Change]) -> None:
    model = Model()
    for change in changes:
        model.tell(message_of(change, model))
    # An agent for the largest request, and limits that allow it.
    model.tell(*(model.close(name, OPEN) for name in AGENTS), model.join("a", 4))
    model.tell(*(model.limit(group, 4) for group in GROUPS[1:]))
    for _ in range(len(model.requests) + 1):
        check_waiting(model)
        names = sorted(model.running())
        model.tell(*(model.release(int(name.split(".")[0]) - 1, True) for name in names))
    assert (model.desk.state.queued, model.desk.state.running) == (0, 0)
    # A while later nothing is known of groups that have nothing.
    model.desk.now_ms += LIMIT_KEPT_MS
    for group in GROUPS[1:]:
        model.tell(model.request(group, 1, 0), model.release(len(model.requests) - 1, False))
        assert model.waiting().group(group).limited_ms == 0
