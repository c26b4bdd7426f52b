"""A pool under any interleaving of requests, releases, joins and losses, against a simple model.

The model is a dict of requests and a dict of agents. It does not schedule: it takes the pool's
placements from the messages sent, and holds the pool to its books.
"""

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from control_plane.actors.agent_messages import AllocationPlaced, AllocationRemoved
from control_plane.actors.pool import agents_of, waiting_in
from control_plane.actors.pool_messages import (
    AgentJoined,
    AgentLost,
    PoolConfigured,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.slots import AgentSlots
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import AllocationLost, PreemptionRequested, SlotsAssigned
from tests.unit.actors.desk import Desk

AGENTS = "abc"


@dataclass
class Books:
    """A pool, and what trials and agents have heard from it."""

    desk: Desk = field(default_factory=lambda: Desk("pool#default"))
    trials: int = 0
    epochs: dict[str, int] = field(default_factory=dict)
    tickets: dict[int, str] = field(default_factory=dict)
    groups: dict[int, int] = field(default_factory=dict)
    placed: dict[int, tuple[str, ...]] = field(default_factory=dict)
    wanted: dict[str, dict[int, tuple[int, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.desk.tell(PoolConfigured("default"))

    def request(self, slots: int, age: int) -> SlotsRequested:
        """By a new trial, which may be older than those before it; trials of a size are one job."""
        self.trials += 1
        self.groups[self.trials] = slots
        self.tickets[self.trials] = f"{max(0, 50 - age):04d}.{self.trials:04d}"
        return SlotsRequested(self.trials, 1, slots, self.tickets[self.trials], slots)

    def release(self, number: int, knows: bool) -> SlotsReleased:
        """By any trial there ever was, so perhaps again, and perhaps before it knows its agent."""
        trial = 1 + number % max(1, self.trials)
        agents = self.held(trial) if knows else ()
        group = self.groups.get(trial, 0)
        return SlotsReleased(trial, 1, self.tickets.get(trial, "x"), agents, group)

    def held(self, trial: int) -> tuple[str, ...]:
        """The agents that a trial knows to hold it."""
        return self.placed.get(trial, ())

    def join(self, agent: str, slots: int) -> AgentJoined:
        self.epochs[agent] = self.epochs.get(agent, 0) + 1
        return AgentJoined(agent, self.epochs[agent], tuple(range(slots)))

    def tell(self, *messages: object) -> None:
        self.desk.tell(*messages)
        for send in self.desk.sent:
            self._hear(send.to, send.message)

    def agents(self) -> dict[str, AgentSlots]:
        return dict(agents_of(self._turn()).items())

    def queue(self) -> list[str]:
        return [request.ticket for request in waiting_in(self._turn()).items()]

    def _turn(self) -> Turn:
        return Turn(self.desk.address, 0, self.desk)

    def _hear(self, to: str, message: object) -> None:
        kind, _, name = to.partition("#")
        desired = self.wanted.setdefault(name, {})
        match message:
            case SlotsAssigned(_, places):
                assert int(name) not in self.placed, "a second placement"
                self.placed[int(name)] = tuple(place.agent for place in places)
            case AllocationLost() | PreemptionRequested():
                assert int(name) in self.placed, "a loss of what was not placed"
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


def message_of(change: Change, books: Books) -> object:
    what, number, slots, flag = change
    agent = AGENTS[number % len(AGENTS)]
    match what:
        case "request":
            return books.request(slots, number)
        case "release":
            return books.release(number, flag)
        case "join":
            return books.join(agent, slots)
        case "lose":
            return AgentLost(agent, books.epochs.get(agent, 1), "silence")
        case _:
            return AgentLost(agent, books.epochs.get(agent, 1) - 1, "late")


def check_agents(books: Books) -> None:
    """No slot is held twice or by nobody known, and the head's sums are those of the parts."""
    agents, state = books.agents(), books.desk.state
    for slots in agents.values():
        held = [slot for name in slots.running for slot in slots.running[name]]
        assert len(held) == len(set(held))
        assert set(held) <= set(slots.slots)
        assert len(slots.free) == len(slots.slots) - len(held)
    assert state.agents == len(agents)
    assert state.slots == sum(len(slots.slots) for slots in agents.values())
    assert state.free == sum(len(slots.free) for slots in agents.values())
    assert state.running == sum(slots.leads for slots in agents.values())
    assert state.queued == len(books.queue())
    assert (state.waits != "") == (state.queued > 0)


def check_word(books: Books) -> None:
    """Agents want exactly what the pool says runs there."""
    for agent, slots in books.agents().items():
        running = {int(name.partition(".")[0]): held for name, held in slots.running.items()}
        assert books.wanted.get(agent, {}) == running


@settings(deadline=None, derandomize=True, max_examples=150)
@given(CHANGES)
def test_the_books_balance_after_every_message(changes: list[Change]) -> None:
    books = Books()
    for change in changes:
        books.tell(message_of(change, books))
        check_agents(books)
        check_word(books)
        assert not books.desk.state.unscheduled


@settings(deadline=None, derandomize=True, max_examples=100)
@given(st.lists(CHANGES.filter(bool), max_size=6))
def test_the_books_balance_after_folds_of_many_messages(folds: list[list[Change]]) -> None:
    books = Books()
    for changes in folds:
        books.tell(*(message_of(change, books) for change in changes))
        check_agents(books)
        check_word(books)


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CHANGES)
def test_when_all_let_go_everything_is_free(changes: list[Change]) -> None:
    books = Books()
    for change in changes:
        books.tell(message_of(change, books))
    for trial in range(1, books.trials + 1):
        books.tell(books.release(trial - 1, True))
    state = books.desk.state
    assert (state.queued, state.running, state.free, state.waits) == (0, 0, state.slots, "")


@settings(deadline=None, derandomize=True, max_examples=100)
@given(CHANGES)
def test_a_repeated_release_changes_nothing(changes: list[Change]) -> None:
    books = Books()
    for change in changes:
        message = message_of(change, books)
        books.tell(message)
        if isinstance(message, SlotsReleased):
            before = books.desk.state
            books.tell(message)
            assert books.desk.state == before
            assert books.desk.parts_written == []
