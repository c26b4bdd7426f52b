"""A pool under any interleaving of requests, releases, joins and losses, against a simple model.

The model is a dict of requests and a dict of agents. The model does not schedule, but compares the
placements in the pool's messages with the pool's state.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.messages.agent import AllocationPlaced, AllocationRemoved
from control_plane.actors.messages.pool import (
    AgentJoined,
    AgentLost,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.messages.trial import AllocationLost, PreemptionRequested, SlotsAssigned
from control_plane.actors.pool.actor import agents_of, job_queue_of
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.step import StepContext
from tests.unit.actors.actor_harness import ActorHarness

AGENTS = "abc"


@dataclass
class PoolModel:
    """A pool, and the messages from the pool to trials and agents."""

    actor: ActorHarness = field(default_factory=lambda: ActorHarness("pool#default"))
    trials: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    tickets: dict[int, str] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    placed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    desired: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.actor.deliver(PoolConfigured("default"))

    def request(self, slots: int, age: int) -> SlotsRequested:
        """Return a request of a new trial, which may be older than earlier requests.

        Trials of equal size form a job.
        """
        self.trials += 1
        self.groups[self.trials] = slots
        self.tickets[self.trials] = f"{max(0, 50 - age):04d}.{self.trials:04d}"
        return SlotsRequested(self.trials, 1, slots, self.tickets[self.trials], slots)

    def release(self, number: int, knows: bool) -> SlotsReleased:
        """Return a release of any trial, possibly repeated.

        Without `knows`, the release is sent before the trial knows its agents.
        """
        trial = 1 + number % max(1, self.trials)
        agents = self.known_agents(trial) if knows else ()
        group = self.groups.get(trial, 0)
        return SlotsReleased(trial, 1, self.tickets.get(trial, "x"), agents, group)

    def known_agents(self, trial: int) -> tuple[str, ...]:
        """Return the agents of the trial's slots, as far as the trial knows."""
        return self.placed.get(trial, ())

    def join(self, agent: str, slots: int) -> AgentJoined:
        self.epochs[agent] = self.epochs.get(agent, 0) + 1
        return AgentJoined(agent, self.epochs[agent], tuple(range(slots)))

    def deliver(self, *messages: object) -> None:
        self.actor.deliver(*messages)
        for send in self.actor.sent:
            self._hear(send.to, send.message)

    def agents(self) -> dict[str, AgentSlots]:
        return dict(agents_of(self._context()).items())

    def queue(self) -> list[str]:
        return [request.ticket for request in job_queue_of(self._context()).all_requests()]

    def _context(self) -> StepContext:
        return StepContext(self.actor.address, 0, self.actor)

    def _hear(self, to: str, message: object) -> None:
        kind, _, name = to.partition("#")
        desired = self.desired.setdefault(name, {})
        match message:
            case SlotsAssigned(_, places):
                assert int(name) not in self.placed, "a second placement"
                self.placed[int(name)] = tuple(place.agent for place in places)
            case AllocationLost() | PreemptionRequested():
                assert int(name) in self.placed, "a loss or preemption of a task without places"
            case AllocationPlaced(trial_id, _, slots):
                desired[trial_id] = slots
            case AllocationRemoved(trial_id, _):
                del desired[trial_id]
            case _:
                assert kind == "agent"


Change = tuple[str, int, int, bool]
CHANGES = st.lists(
    st.tuples(
        st.sampled_from(["request", "request", "release", "join", "lose", "stale"]),
        st.integers(0, 50),
        st.integers(0, 4),
        st.booleans(),
    ),
    max_size=40,
)


def message_of(change: Change, model: PoolModel) -> object:
    what, number, slots, flag = change
    agent = AGENTS[number % len(AGENTS)]
    match what:
        case "request":
            return model.request(slots, number)
        case "release":
            return model.release(number, flag)
        case "join":
            return model.join(agent, slots)
        case "lose":
            return AgentLost(agent, model.epochs.get(agent, 1), "silence")
        case _:
            return AgentLost(agent, model.epochs.get(agent, 1) - 1, "late")


def check_agents(model: PoolModel) -> None:
    """Check that slots are used at most once, and that the head's totals match the parts."""
    agents, state = model.agents(), model.actor.state
    for slots in agents.values():
        held = [
            slot for name in slots.slots_by_allocation for slot in slots.slots_by_allocation[name]
        ]
        assert len(held) == len(set(held))
        assert set(held) <= set(slots.slots)
        assert len(slots.free_slots) == len(slots.slots) - len(held)
    assert state.agents == len(agents)
    assert state.slots == sum(len(slots.slots) for slots in agents.values())
    assert state.free == sum(len(slots.free_slots) for slots in agents.values())
    assert state.running == sum(slots.first_rank_count for slots in agents.values())
    assert state.queued == len(model.queue())
    assert (state.wait_reason != "") == (state.queued > 0)


def check_desired(model: PoolModel) -> None:
    """Check that each agent's desired allocations equal the pool's."""
    for agent, slots in model.agents().items():
        running = {
            int(name.partition(".")[0]): held for name, held in slots.slots_by_allocation.items()
        }
        assert model.desired.get(agent, {}) == running


@settings(deadline=None, derandomize=True, max_examples=150)
@given(CHANGES)
def test_totals_agree_after_every_message(changes: list[Change]) -> None:
    model = PoolModel()
    for change in changes:
        model.deliver(message_of(change, model))
        check_agents(model)
        check_desired(model)
        assert not model.actor.state.needs_scheduling


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(CHANGES.filter(bool), max_size=6))
def test_totals_agree_after_folds_of_many_messages(folds: list[list[Change]]) -> None:
    model = PoolModel()
    for changes in folds:
        model.deliver(*(message_of(change, model) for change in changes))
        check_agents(model)
        check_desired(model)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CHANGES)
def test_all_slots_are_free_after_all_releases(changes: list[Change]) -> None:
    model = PoolModel()
    for change in changes:
        model.deliver(message_of(change, model))
    for trial in range(1, model.trials + 1):
        model.deliver(model.release(trial - 1, True))
    state = model.actor.state
    assert (state.queued, state.running, state.free, state.wait_reason) == (0, 0, state.slots, "")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CHANGES)
def test_repeated_release_changes_no_state(changes: list[Change]) -> None:
    model = PoolModel()
    for change in changes:
        message = message_of(change, model)
        model.deliver(message)
        if isinstance(message, SlotsReleased):
            before = model.actor.state
            model.deliver(message)
            assert model.actor.state == before
            assert model.actor.parts_written == []
