"""The resource pool: the queue, the agents and their slots, who runs where.

The queue and the agents are ordered maps in parts, so that a decision writes as much for a queue
of ten thousand as for one of ten. Messages only record what changed; the scheduler runs once at
the end of a fold.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages import (
    AgentDeclaredLost,
    AgentJoined,
    AgentLost,
    AllocationExited,
    AllocationLost,
    AllocationPlaced,
    AllocationRemoved,
    AuditFound,
    PoolConfigured,
    PoolMessage,
    SchedulingContinued,
    SlotsAssigned,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.ordered import Ordered
from control_plane.actors.slots import AGENTS_PER_PART, Agents, AgentSlots
from control_plane.actors.step import Turn
from control_plane.evolve import evolve
from control_plane.scheduling import fifo
from control_plane.scheduling.model import Capacity, Request

POOLS = "pools"
# Starts in one commit: each is mail to a trial, which spills over into parts of the outbox.
STARTS_MAX = 256


@dataclass(frozen=True)
class PoolState:
    """The head: sums over the parts. `unscheduled`: something changed since the last plan."""

    name: str
    agents: int = 0
    slots: int = 0
    free: int = 0
    queued: int = 0
    running: int = 0
    unscheduled: bool = False
    waits: str = ""


def step(state: PoolState | None, message: PoolMessage, turn: Turn) -> PoolState | None:
    """Folds one message."""
    if isinstance(message, PoolConfigured):
        if state is None:
            turn.write_row(POOLS, message.name, b"")
        return state or PoolState(message.name)
    if state is None:
        return None
    match message:
        case SlotsRequested():
            return _requested(state, message, turn)
        case SlotsReleased():
            return _released(state, message, turn)
        case AgentJoined():
            return _joined(state, message, turn)
        case AgentLost():
            return _lost(state, message, turn)
        case SchedulingContinued():
            return state
        case AuditFound():
            return _audited(state, message, turn)
        case _:
            assert_never(message)


def settle(state: PoolState, turn: Turn) -> PoolState:
    """Runs the scheduler if anything changed."""
    if not state.unscheduled:
        return state
    state = evolve(state, unscheduled=False, waits="")
    return _scheduled(state, turn) if state.queued else state


def fallback(state: PoolState | None, message: object, turn: Turn) -> PoolState | None:
    """A pool goes on without a message it cannot take; its audit repairs what that leaves. Whoever
    asked for slots learns that there are none: it may try again as often as after a failure.
    """
    text = f"{type(message).__name__} could not be processed"
    turn.because(text)
    if isinstance(message, SlotsRequested):
        failed = AllocationExited(message.epoch, "errored", message=f"the pool: {text}")
        turn.send(addresses.trial(message.trial_id), failed)
    return state


def queue_of(turn: Turn) -> Ordered:
    """Queued allocations by ticket: (allocation, slots)."""
    return Ordered(turn, "queue")


def agents_of(turn: Turn) -> Agents:
    """The pool's agents."""
    return Agents(Ordered(turn, "agents", AGENTS_PER_PART))


def _requested(state: PoolState, message: SlotsRequested, turn: Turn) -> PoolState:
    allocation = f"{message.trial_id}.{message.epoch}"
    queue_of(turn).put(message.ticket, (allocation, message.slots))
    return evolve(state, queued=state.queued + 1, unscheduled=True)


def _released(state: PoolState, message: SlotsReleased, turn: Turn) -> PoolState:
    """Takes the allocation out of the queue or off its agent; a repeat finds nothing.

    A trial that withdraws may not know yet that it was placed, so its release names no agent.
    """
    allocation = f"{message.trial_id}.{message.epoch}"
    queue = queue_of(turn)
    queued = queue.get(message.ticket)
    if isinstance(queued, list | tuple) and queued[0] == allocation:
        queue.remove(message.ticket)
        return evolve(state, queued=state.queued - 1, unscheduled=True)
    agents = agents_of(turn)
    known = agents.get(message.agent) if message.agent else None
    candidates = [(message.agent, known)] if known else agents.items()
    for name, slots in candidates:
        if allocation in slots.running:
            agents.put(name, slots.releasing(allocation))
            removed = AllocationRemoved(message.trial_id, message.epoch)
            turn.send(addresses.agent(name), removed)
            freed = len(slots.running[allocation])
            return evolve(
                state, free=state.free + freed, running=state.running - 1, unscheduled=True
            )
    return state


def _audited(state: PoolState, message: AuditFound, turn: Turn) -> PoolState:
    for released in message.stale:
        turn.because(f"the audit frees {released.trial_id}.{released.epoch}")
        state = _released(state, released, turn)
    return state


def _joined(state: PoolState, message: AgentJoined, turn: Turn) -> PoolState:
    """An agent's new session: its slots, with what runs on those that remain."""
    agents = agents_of(turn)
    before = agents.get(message.agent)
    if before is not None and before.epoch >= message.epoch:
        return state
    running = dict(before.running) if before else {}
    for allocation, held in list(running.items()):
        if not set(held) <= set(message.slots):
            _lose(allocation, message.agent, "it came back without the slot", turn)
            del running[allocation]
    after = AgentSlots(message.epoch, message.slots, running)
    agents.put(message.agent, after)
    before = before or AgentSlots(0, ())
    return evolve(
        state,
        agents=state.agents + (before.epoch == 0),
        slots=state.slots + len(after.slots) - len(before.slots),
        free=state.free + len(after.free) - len(before.free),
        running=state.running + len(after.running) - len(before.running),
        unscheduled=True,
    )


def _lost(state: PoolState, message: AgentLost, turn: Turn) -> PoolState:
    agents = agents_of(turn)
    known = agents.get(message.agent)
    if known is None or known.epoch != message.epoch:
        return state
    for allocation in sorted(known.running):
        _lose(allocation, message.agent, message.reason, turn)
    turn.send(addresses.agent(message.agent), AgentDeclaredLost(message.epoch))
    agents.remove(message.agent)
    return evolve(
        state,
        agents=state.agents - 1,
        slots=state.slots - len(known.slots),
        free=state.free - len(known.free),
        running=state.running - len(known.running),
        unscheduled=True,
    )


def _lose(allocation: str, agent: str, reason: str, turn: Turn) -> None:
    trial_id, epoch = parse_allocation(allocation)
    turn.send(addresses.trial(trial_id), AllocationLost(epoch, f"agent {agent} was lost: {reason}"))
    turn.send(addresses.agent(agent), AllocationRemoved(trial_id, epoch))


def _scheduled(state: PoolState, turn: Turn) -> PoolState:
    queue, agents = queue_of(turn), agents_of(turn)
    tickets: dict[str, str] = {}
    capacities = [
        Capacity(name, len(slots.slots), len(slots.free)) for name, slots in agents.items()
    ]
    requests = islice(_requests(queue, tickets), STARTS_MAX)
    plan = fifo.plan(requests, capacities)
    free = state.free
    for start in plan.starts:
        allocation = start.request.allocation
        before = agents.get(start.agent)
        assert before is not None
        after = before.placing(allocation, start.request.slots)
        agents.put(start.agent, after)
        queue.remove(tickets[allocation])
        trial_id, epoch = parse_allocation(allocation)
        held = after.running[allocation]
        turn.send(addresses.trial(trial_id), SlotsAssigned(epoch, start.agent, held))
        turn.send(addresses.agent(start.agent), AllocationPlaced(trial_id, epoch, held))
        free -= len(held)
    if plan.waits:
        turn.because(plan.waits)
    more = len(plan.starts) == STARTS_MAX
    if more:
        turn.send(turn.address, SchedulingContinued())
    return evolve(
        state,
        unscheduled=more,
        free=free,
        queued=state.queued - len(plan.starts),
        running=state.running + len(plan.starts),
        waits=plan.waits,
    )


def _requests(queue: Ordered, tickets: dict[str, str]) -> Iterator[Request]:
    for ticket, value in queue.items():
        assert isinstance(value, list | tuple)
        allocation, slots = value
        tickets[allocation] = ticket
        yield Request(allocation, slots)


def parse_allocation(allocation: str) -> tuple[int, int]:
    """Trial id and epoch of an allocation's name."""
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
