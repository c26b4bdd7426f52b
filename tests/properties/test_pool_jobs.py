"""A pool under any interleaving of job requests, settings and agents.

Settings of jobs and of the pool change. Agents join, vanish, close and open, and messages are
repeated or late.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.job_row import JobRow
from control_plane.actors.messages.pool import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    JobChanged,
    PoolConfigured,
    PoolSettings,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.messages.trial import PreemptionRequested, SlotsAssigned
from control_plane.actors.pool.agent_kinds import RefusedKinds
from control_plane.actors.pool.agent_slots import Agents, AgentSlots
from control_plane.actors.pool.groups import Group
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.pool.state import agents_of, job_queue_of
from control_plane.actors.records import OPEN, Availability
from control_plane.actors.step import StepContext
from control_plane.scheduling.agent_needs import AgentDevice, AgentKind, meets_needs
from control_plane.scheduling.model import SchedulerRules
from control_plane.scheduling.schedule import schedule_jobs
from tests.unit.actors.actor_harness import ActorHarness
from tests.unit.actors.pool_messages import ticket, write_job

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
class PoolModel:
    """A pool, the requests of trials, and the messages to trials."""

    rules: SchedulerRules
    stores_idle_jobs_apart: bool = False
    actor: ActorHarness = field(default_factory=lambda: ActorHarness("pool#default"))
    delivered: list[object] = field(default_factory=list)
    sizes: dict[int, int] = field(default_factory=dict)
    trials: dict[int, tuple[int, str]] = field(default_factory=dict)
    placed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    preempted: list[str] = field(default_factory=list)
    epochs: dict[str, int] = field(default_factory=dict)
    availability: dict[str, Availability] = field(default_factory=dict)
    kinds: dict[str, AgentKind | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        settings = PoolSettings(
            self.rules, aux_per_agent=2, stores_idle_jobs_apart=self.stores_idle_jobs_apart
        )
        self.actor.deliver(PoolConfigured("default", settings))

    def request(self, group: int, slots: int) -> SlotsRequested:
        """Return a request of a new trial, with as many slots as the job's other trials."""
        slots = self.sizes.setdefault(group, slots)
        number = len(self.trials) + 1
        self.trials[number] = (group, ticket(number, group))
        return SlotsRequested(number, 1, slots, self.trials[number][1], group)

    def release(self, number: int, knows: bool) -> SlotsReleased:
        """Return a release of any trial, possibly repeated.

        Without `knows`, the release is sent before the trial knows its agents.
        """
        trial = 1 + number % max(1, len(self.trials))
        group, place = self.trials.get(trial, (1, "x"))
        return SlotsReleased(trial, 1, place, self.placed.get(trial, ()) if knows else (), group)

    def change(self, group: int, row: JobRow | None) -> JobChanged:
        known = self.actor.row("jobs#default", f"{group:012d}").revision
        if row is not None or known:
            write_job(self.actor, group, row)
        return JobChanged(group)

    def join(self, agent: str, slots: int) -> AgentJoined:
        self.epochs[agent] = self.epochs.get(agent, 0) + 1
        known = self.availability.get(agent, OPEN)
        label = "odd" if agent == "c" else ""
        kind = KINDS[(slots + self.epochs[agent]) % len(KINDS)]
        self.kinds[agent] = kind
        return AgentJoined(agent, self.epochs[agent], tuple(range(slots)), known, label, kind)

    def close(self, agent: str, availability: Availability) -> AgentAvailabilityChanged:
        self.availability[agent] = availability
        return AgentAvailabilityChanged(agent, self.epochs.get(agent, 1), availability)

    def deliver(self, *messages: object) -> None:
        """Deliver messages to the pool, and let the pool schedule all requests."""
        self.delivered += messages
        self.actor.deliver(*messages)
        self._hear()
        while self.actor.state.needs_scheduling:
            self.actor.deliver()
            self._hear()

    def _hear(self) -> None:
        for send in self.actor.sent:
            match send.message:
                case SlotsAssigned(_, places):
                    number = int(send.to.removeprefix("trial#"))
                    self.placed[number] = tuple(place.agent for place in places)
                    # A late or repeated request is a new request to the pool.
                    self.preempted = [name for name in self.preempted if name != send.to]
                case PreemptionRequested(forced=False):
                    self.preempted.append(send.to)

    def agents(self) -> dict[str, AgentSlots]:
        return dict(self._agents().items())

    def groups(self) -> dict[int, Group]:
        return dict(self.waiting().groups())

    def waiting(self) -> JobQueue:
        return job_queue_of(self._context())

    def running(self) -> dict[str, tuple[int, int]]:
        """Return the group and the slots of each allocation."""
        found: dict[str, tuple[int, int]] = {}
        for agent in self.agents().values():
            for name, part in agent.parts.items():
                before = found.get(name, (0, 0))[1]
                found[name] = (part.group, before + len(part.slots))
        return found

    def held_slots(self) -> dict[int, int]:
        """Return the slots of each group's allocations."""
        held = dict.fromkeys(GROUPS, 0)
        for group, slots in self.running().values():
            held[group] += slots
        return held

    def plan_once_more(self) -> tuple[list[str], list[str]]:
        """Return the allocations that another scheduler run would start and preempt."""
        books = self._agents()
        refused = RefusedKinds(self._context())
        jobs = tuple(self.waiting().jobs(42, books.running_allocations, refused))
        plan = schedule_jobs(jobs, tuple(books.capacities(2)), self.rules, ALL)
        starts = [start.request.allocation_id for start in plan.starts]
        return starts, [victim.allocation.allocation_id for victim in plan.victims]

    def _agents(self) -> Agents:
        return agents_of(self._context())

    def _context(self) -> StepContext:
        return StepContext(self.actor.address, self.actor.now_ms, self.actor)


T4 = AgentDevice("cuda", "Tesla T4")
KINDS = (
    None,
    AgentKind((T4,)),
    AgentKind((AgentDevice("cuda", "NVIDIA H100"),)),
    AgentKind((T4,), "1001:1001"),
    AgentKind((T4,), "1002:1002"),
)
Change = tuple[str, int, int, bool]
WHAT = ["request"] * 4 + ["release"] * 2 + ["change", "join", "join", "lose", "close", "again"]
CHANGES = st.lists(
    st.tuples(st.sampled_from(WHAT), st.integers(0, 50), st.integers(0, 5), st.booleans()),
    max_size=40,
)


def message_of(change: Change, model: PoolModel) -> object:
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
        case "again" if model.delivered:
            return model.delivered[number % len(model.delivered)]
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
        slot_type=("", "", "T4", "cuda")[number % 4],
        agent_user="1001:1001" if number % 9 == 0 else "",
    )


def check_totals(model: PoolModel) -> None:
    """Check that no slot is used twice, and that all totals are right."""
    state, agents, groups = model.actor.state, model.agents(), model.groups()
    for agent in agents.values():
        held = [slot for part in agent.parts.values() for slot in part.slots]
        assert len(held) == len(set(held))
        assert set(held) <= set(agent.slots)
    running = model.running()
    assert state.agents == len(agents)
    assert state.slots == sum(agent.usable_count for agent in agents.values())
    assert state.free == sum(len(agent.free_slots) for agent in agents.values())
    assert state.running == sum(group.running for group in groups.values())
    for number in GROUPS:
        group = groups.get(number, Group())
        assert group.held == model.held_slots()[number]
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


def check_gangs(model: PoolModel) -> None:
    """Check that each allocation has a single rank 0, and that all parts agree on the places."""
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


def check_starts(model: PoolModel, before: dict[str, tuple[int, int]]) -> None:
    """Check that a started allocation has open slots, on agents with the group's label that meet
    the group's needs.
    """
    for agent_name, agent in model.agents().items():
        for name in agent.parts.keys() - before.keys():
            part = agent.parts[name]
            assert agent.can_take_work
            assert all(map(agent.availability.is_slot_open, part.slots))
            row = model.waiting().group(part.group).row
            assert agent.label == row.label
            assert meets_needs(model.kinds[agent_name], row.needs)


def check_limits(model: PoolModel, before: dict[int, int]) -> None:
    """Check that a job exceeds the limit only by slots from before."""
    groups = model.groups()
    for number, slots in model.held_slots().items():
        limit = groups[number].row.max_slots if number in groups else None
        if limit is not None:
            assert slots <= max(limit, before[number])


def check_waiting(model: PoolModel) -> None:
    """Check that no start or preemption is left to do, and that waiting jobs have a reason."""
    assert model.plan_once_more() == ([], [])
    assert (model.actor.state.wait_reason != "") == (model.actor.state.queued > 0)
    assert len(model.preempted) == len(set(model.preempted)), "a task was preempted twice"


def deliver_and_check(model: PoolModel, *changes: Change) -> None:
    """Deliver messages and check all invariants."""
    held, ran = model.held_slots(), model.running()
    model.deliver(*(message_of(change, model) for change in changes))
    check_totals(model)
    check_gangs(model)
    check_starts(model, ran)
    check_limits(model, held)
    check_waiting(model)


@settings(deadline=None, derandomize=True, max_examples=300)
@given(st.sampled_from(RULES), st.booleans(), CHANGES)
def test_pool_invariants_are_kept_after_every_message(
    rules: SchedulerRules, idle_apart: bool, changes: list[Change]
) -> None:
    model = PoolModel(rules, idle_apart)
    for change in changes:
        deliver_and_check(model, change)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(RULES), st.lists(CHANGES.filter(bool), max_size=5))
def test_pool_invariants_are_kept_after_folds_of_many_messages(
    rules: SchedulerRules, folds: list[list[Change]]
) -> None:
    model = PoolModel(rules)
    for changes in folds:
        deliver_and_check(model, *changes)


@settings(deadline=None, derandomize=True, max_examples=60)
@given(st.sampled_from(RULES), CHANGES)
def test_pool_behaves_equally_with_idle_jobs_stored_apart(
    rules: SchedulerRules, changes: list[Change]
) -> None:
    one, other = PoolModel(rules), PoolModel(rules, stores_idle_jobs_apart=True)
    for change in changes:
        one.deliver(message_of(change, one))
        other.deliver(message_of(change, other))
        assert one.actor.sent == other.actor.sent
        assert one.groups() == other.groups()
        assert one.actor.state == other.actor.state
        at_work = dict(other.waiting().groups_at_work())
        assert not any(group.is_idle for group in at_work.values())


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.sampled_from(RULES), st.booleans(), CHANGES)
def test_every_request_starts_when_slots_are_available(
    rules: SchedulerRules, idle_apart: bool, changes: list[Change]
) -> None:
    model = PoolModel(rules, idle_apart)
    for change in changes:
        model.deliver(message_of(change, model))
    # An agent for the largest request, without a label, and jobs for any agent.
    model.deliver(*(model.close(name, OPEN) for name in AGENTS), model.join("a", 6))
    model.deliver(*(model.change(group, JobRow()) for group in GROUPS))
    # All running trials complete, repeatedly.
    for _ in range(len(model.trials) + 1):
        check_waiting(model)
        names = sorted(model.running())
        model.deliver(*(model.release(int(name.split(".")[0]) - 1, True) for name in names))
    assert (model.actor.state.queued, model.actor.state.running) == (0, 0)
    # No data of ended jobs remain.
    model.deliver(*(model.change(group, None) for group in GROUPS))
    assert model.groups() == {}
