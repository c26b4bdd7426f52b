"""A pool under any interleaving of requests of jobs, changes of their settings and of the pool's,
and agents that come, go, close and open, with messages that come twice or late.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.jobs import JobRow
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolSettings,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.pool_state import agents_of, waiting_in
from control_plane.actors.slots import OPEN, Agents, AgentSlots, Availability
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import PreemptionRequested, SlotsAssigned
from control_plane.actors.waiting import Group, Waiting
from control_plane.scheduling.model import SchedulerRules
from control_plane.scheduling.schedule import schedule
from tests.unit.actors.desk import Desk
from tests.unit.actors.pools import ticket, write_job

AGENTS = "abc"
GROUPS = (1, 2, 3)
ALL = 1_000
RULES = (
    SchedulerRules("fair_share"),
    SchedulerRules("fair_share", fitting="worst", heterogeneous=True),
    SchedulerRules("priority"),
    SchedulerRules("priority", preemption=True),
    SchedulerRules("round_robin"),
)


@dataclass
class Model:
    """A pool, the trials that asked it, and what these heard."""

    rules: SchedulerRules
    desk: Desk = field(default_factory=lambda: Desk("pool#default"))
    said: list[object] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    trials: dict[int, tuple[int, str]] = field(default_factory=dict)
    placed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    availability: dict[str, Availability] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.desk.tell(PoolConfigured("default", PoolSettings(self.rules, aux_per_agent=2)))

    def request(self, group: int, slots: int) -> SlotsRequested:
        """By a new trial, which wants as much as others of its job."""
        slots = self.sizes.setdefault(group, slots)
        number = len(self.trials) + 1
        self.trials[number] = (group, ticket(number, group))
        return SlotsRequested(number, 1, slots, self.trials[number][1], group)

    def release(self, number: int, knows: bool) -> SlotsReleased:
        """By any trial there ever was, so perhaps again, and perhaps before it knows its agents."""
        trial = 1 + number % max(1, len(self.trials))
        group, place = self.trials.get(trial, (1, "x"))
        return SlotsReleased(trial, 1, place, self.placed.get(trial, ()) if knows else (), group)

    def change(self, group: int, row: JobRow | None) -> JobChanged:
        known = self.desk.row("jobs#default", f"{group:012d}").revision
        if row is not None or known:
            write_job(self.desk, group, row)
        return JobChanged(group)

    def join(self, agent: str, slots: int) -> AgentJoined:
        self.epochs[agent] = self.epochs.get(agent, 0) + 1
        known = self.availability.get(agent, OPEN)
        label = "odd" if agent == "c" else ""
        return AgentJoined(agent, self.epochs[agent], tuple(range(slots)), known, label)

    def close(self, agent: str, availability: Availability) -> AgentAvailabilityChanged:
        self.availability[agent] = availability
        return AgentAvailabilityChanged(agent, self.epochs.get(agent, 1), availability)

    def tell(self, *messages: object) -> None:
        """Has the pool fold messages, and goes on until it has nothing to add."""
        self.said += messages
        self.desk.tell(*messages)
        self._hear()
        while self.desk.state.unscheduled:
            self.desk.tell()
            self._hear()

    def _hear(self) -> None:
        for send in self.desk.sent:
            match send.message:
                case SlotsAssigned(_, places):
                    number = int(send.to.removeprefix("trial#"))
                    self.placed[number] = tuple(place.agent for place in places)
                    # A request that came late or twice is a new one to the pool.
                    self.asked = [name for name in self.asked if name != send.to]
                case PreemptionRequested(forced=False):
                    self.asked.append(send.to)

    def agents(self) -> dict[str, AgentSlots]:
        return dict(self._books().items())

    def groups(self) -> dict[int, Group]:
        return dict(self.waiting().groups())

    def waiting(self) -> Waiting:
        return waiting_in(self._turn())

    def running(self) -> dict[str, tuple[int, int]]:
        """The group and the slots of each allocation."""
        found: dict[str, tuple[int, int]] = {}
        for agent in self.agents().values():
            for name, part in agent.parts.items():
                before = found.get(name, (0, 0))[1]
                found[name] = (part.group, before + len(part.slots))
        return found

    def held(self) -> dict[int, int]:
        """The slots of each group by what its allocations hold."""
        held = dict.fromkeys(GROUPS, 0)
        for group, slots in self.running().values():
            held[group] += slots
        return held

    def planned_again(self) -> tuple[list[str], list[str]]:
        """Whom the scheduler would start and ask to go if it were asked once more."""
        books = self._books()
        jobs = tuple(self.waiting().jobs(42, books.holdings))
        plan = schedule(jobs, tuple(books.capacities(2)), self.rules, ALL)
        starts = [start.request.allocation for start in plan.starts]
        return starts, [victim.holding.allocation for victim in plan.victims]

    def _books(self) -> Agents:
        return agents_of(self._turn())

    def _turn(self) -> Turn:
        return Turn(self.desk.address, self.desk.now_ms, self.desk)


Change = tuple[str, int, int, bool]
WHAT = ["request"] * 4 + ["release"] * 2 + ["change", "join", "join", "lose", "close", "again"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 50), st.integers(0, 5), st.booleans()),
    max_size=40,
)


def message_of(change: Change, model: Model) -> object:
    what, number, slots, flag = change
    agent, group = AGENTS[number % len(AGENTS)], 1 + number % len(GROUPS)
    match what:
        case "request":
            return model.request(group, slots)
        case "release":
            return model.release(number, flag)
        case "change":
            return model.change(group, job_of(number, slots, flag))
        case "join":
            return model.join(agent, min(4, slots))
        case "close":
            disabled = tuple(range(number % 3))
            return model.close(agent, Availability(slots > 1, flag and slots <= 1, disabled))
        case "again" if model.said:
            return model.said[number % len(model.said)]
        case _:
            return AgentLost(agent, model.epochs.get(agent, 1), "silence")


def job_of(number: int, slots: int, flag: bool) -> JobRow | None:
    if number == 0:
        return None
    return JobRow(
        weight=1.0 + slots,
        priority=40 + slots if flag else None,
        max_slots=slots if number % 4 == 0 else None,
        position=str(number * 100) if number % 5 == 0 else None,
        label="odd" if number % 7 == 0 else "",
        single_agent=flag and number % 2 == 0,
    )


def check_sums(model: Model) -> None:
    """No slot is held twice, and all sums are those of what they are sums of."""
    state, agents, groups = model.desk.state, model.agents(), model.groups()
    for agent in agents.values():
        held = [slot for part in agent.parts.values() for slot in part.slots]
        assert len(held) == len(set(held))
        assert set(held) <= set(agent.slots)
    running = model.running()
    assert state.agents == len(agents)
    assert state.slots == sum(agent.total for agent in agents.values())
    assert state.free == sum(len(agent.free) for agent in agents.values())
    assert state.running == sum(group.running for group in groups.values())
    for number in GROUPS:
        group = groups.get(number, Group())
        assert group.held == model.held()[number]
        assert group.leaving == sum(
            len(part.slots)
            for agent in agents.values()
            for part in agent.parts.values()
            if part.leaving and part.group == number
        )
        waiting = [request.slots for request in model.waiting().requests(number)]
        assert group.pending == {slots: waiting.count(slots) for slots in waiting}
    assert state.queued == sum(sum(group.pending.values()) for group in groups.values())
    assert len(running) >= state.running


def check_gangs(model: Model) -> None:
    """Each allocation is known by one first part, which knows where the others are."""
    parts: dict[str, dict[str, tuple[int, int]]] = {}
    for name, agent in model.agents().items():
        for allocation, part in agent.parts.items():
            parts.setdefault(allocation, {})[name] = (part.rank, len(part.slots))
    for name, agent in model.agents().items():
        for allocation, part in agent.parts.items():
            places = {place.agent: place.slots for place in part.places} or {name: len(part.slots)}
            there = parts[allocation]
            assert {other: slots for other, (_, slots) in there.items()} == places
            assert sorted(rank for rank, _ in there.values()) == list(range(len(there)))


def check_starts(model: Model, before: dict[str, tuple[int, int]]) -> None:
    """Whoever runs now and did not before has slots that take work, on agents of its label."""
    for agent in model.agents().values():
        for name in agent.parts.keys() - before.keys():
            part = agent.parts[name]
            assert agent.takes_work
            assert all(map(agent.availability.takes, part.slots))
            assert agent.label == model.waiting().group(part.group).row.label


def check_limits(model: Model, before: dict[int, int]) -> None:
    """A job is over its limit only as far as it was before."""
    groups = model.groups()
    for number, slots in model.held().items():
        limit = groups[number].row.max_slots if number in groups else None
        if limit is not None:
            assert slots <= max(limit, before[number])


def check_waiting(model: Model) -> None:
    """Whoever could start has started, whoever was to go was asked, and whoever waits knows why."""
    assert model.planned_again() == ([], [])
    assert (model.desk.state.waits != "") == (model.desk.state.queued > 0)
    assert len(model.asked) == len(set(model.asked)), "somebody was asked to go twice"


def tell(model: Model, *changes: Change) -> None:
    """Says it, and checks everything."""
    held, ran = model.held(), model.running()
    model.tell(*(message_of(change, model) for change in changes))
    check_sums(model)
    check_gangs(model)
    check_starts(model, ran)
    check_limits(model, held)
    check_waiting(model)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.sampled_from(RULES), CHANGES)
def test_what_must_hold_holds_after_every_message(
    rules: SchedulerRules, changes: list[Change]
) -> None:
    model = Model(rules)
    for change in changes:
        tell(model, change)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(RULES), st.lists(CHANGES.filter(bool), max_size=5))
def test_it_holds_after_folds_of_many_messages(
    rules: SchedulerRules, folds: list[list[Change]]
) -> None:
    model = Model(rules)
    for changes in folds:
        tell(model, *changes)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(RULES), CHANGES)
def test_nothing_waits_for_ever_once_there_is_room(
    rules: SchedulerRules, changes: list[Change]
) -> None:
    model = Model(rules)
    for change in changes:
        model.tell(message_of(change, model))
    # An agent for the largest request, of no label, and jobs that any agent may take.
    model.tell(*(model.close(name, OPEN) for name in AGENTS), model.join("a", 6))
    model.tell(*(model.change(group, JobRow()) for group in GROUPS))
    # All that runs goes on to its end, again and again.
    for _ in range(len(model.trials) + 1):
        check_waiting(model)
        names = sorted(model.running())
        model.tell(*(model.release(int(name.split(".")[0]) - 1, True) for name in names))
    assert (model.desk.state.queued, model.desk.state.running) == (0, 0)
    # Nothing is kept of jobs that are over.
    model.tell(*(model.change(group, None) for group in GROUPS))
    assert model.groups() == {}
