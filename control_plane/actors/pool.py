"""The resource pool: who waits, the agents and their slots, who runs where.

Who waits and the agents are ordered maps in parts, so that a decision writes as much for a queue
of ten thousand as for one of ten. Messages only record what changed; the scheduler runs once at
the end of a fold.
"""

from dataclasses import dataclass, replace
from itertools import islice
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.agent_messages import (
    AgentDeclaredLost,
    AllocationPlaced,
    AllocationRemoved,
)
from control_plane.actors.ordered import Ordered
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    AuditFound,
    GroupLimited,
    PoolConfigured,
    PoolMessage,
    SchedulingContinued,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.records import Place
from control_plane.actors.slots import AGENTS_PER_PART, Agents, AgentSlots
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import (
    AllocationExited,
    AllocationLost,
    PreemptionRequested,
    SlotsAssigned,
)
from control_plane.actors.waiting import Waiting
from control_plane.evolve import evolve
from control_plane.scheduling import fifo
from control_plane.scheduling.model import Request, Start
from control_plane.scheduling.turns import in_turn

POOLS = "pools"
# Starts in one commit: each is mail to a trial, which spills over into parts of the outbox.
STARTS_MAX = 256
# Parts that starts may touch before the commit is full: the last start adds up to 8, a fold may
# have used 60 of a commit's 100 operations, and a spilled outbox takes a few.
STARTED_PARTS_MAX = 26


@dataclass(frozen=True)
class PoolState:
    """The head: sums over the parts. `unscheduled`: something changed since the last plan.

    `slots`: those that are free or held; `started` numbers the starts of allocations in groups;
    `waits`: why the first in the queue waits, or why nobody is in it.
    """

    name: str
    agents: int = 0
    slots: int = 0
    free: int = 0
    queued: int = 0
    running: int = 0
    unscheduled: bool = False
    waits: str = ""
    started: int = 0


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
        case GroupLimited():
            return _limited(state, message, turn)
        case AgentJoined() | AgentAvailabilityChanged() | AgentLost():
            return _of_agent(state, message, turn)
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


def waiting_in(turn: Turn) -> Waiting:
    """Who waits in the pool."""
    return Waiting(turn)


def agents_of(turn: Turn) -> Agents:
    """The pool's agents."""
    return Agents(Ordered(turn, "agents", AGENTS_PER_PART))


def _requested(state: PoolState, message: SlotsRequested, turn: Turn) -> PoolState:
    allocation = f"{message.trial_id}.{message.epoch}"
    waiting = waiting_in(turn)
    waiting.add(Request(allocation, message.slots, message.ticket, message.group))
    if message.group:
        over = waiting.heed(message.group, message.max_slots)
        _preempt(message.group, message.max_slots, over, turn)
    return evolve(state, queued=state.queued + 1, unscheduled=True)


def _limited(state: PoolState, message: GroupLimited, turn: Turn) -> PoolState:
    over = waiting_in(turn).limit(message.group, message.max_slots)
    _preempt(message.group, message.max_slots, over, turn)
    return evolve(state, unscheduled=True)


def _preempt(group: int, max_slots: int | None, over: int, turn: Turn) -> None:
    """Asks the group's youngest allocations to leave until it has `over` slots less. Those that
    were asked before are the youngest still, and asked again, since nobody starts meanwhile.
    """
    if over <= 0:
        return
    held = [
        (start, name, len(agent.running[name]))
        for _, agent in agents_of(turn).items()
        for name, (of, start) in agent.groups.items()
        if of == group
    ]
    for _, name, slots in sorted(held, reverse=True):
        if over <= 0:
            break
        trial_id, epoch = parse_allocation(name)
        reason = f"experiment {group} may have {max_slots} slots at most now"
        turn.send(addresses.trial(trial_id), PreemptionRequested(epoch, reason))
        turn.because(f"{name} is preempted: {reason}")
        over -= slots


def _released(state: PoolState, message: SlotsReleased, turn: Turn) -> PoolState:
    """Takes the allocation off its agent or lets it wait no longer; a repeat finds nothing.

    A trial that withdraws may not know yet that it was placed, so its release names no agent.
    """
    allocation = f"{message.trial_id}.{message.epoch}"
    agents, waiting = agents_of(turn), waiting_in(turn)
    known = {name: agents.get(name) for name in message.agents}
    holding = [name for name, agent in known.items() if agent and allocation in agent.running]
    for name in holding:
        state = _freed(state, name, allocation, turn)
    if holding:
        return state
    if waiting.remove(Request(allocation, 0, message.ticket, message.group)):
        return evolve(state, queued=state.queued - 1, unscheduled=True)
    holder = next((name for name, agent in agents.items() if allocation in agent.running), None)
    return state if holder is None else _freed(state, holder, allocation, turn)


def _freed(state: PoolState, agent: str, allocation: str, turn: Turn) -> PoolState:
    """Takes the allocation off the agent that has it."""
    agents = agents_of(turn)
    before = agents.get(agent)
    assert before is not None
    after = before.releasing(allocation)
    agents.put(agent, after)
    waiting_in(turn).free(before.group_of(allocation), len(before.running[allocation]))
    turn.send(addresses.agent(agent), AllocationRemoved(*parse_allocation(allocation)))
    return _recounted(state, before, after)


def _recounted(state: PoolState, before: AgentSlots, after: AgentSlots) -> PoolState:
    """The sums after a change of one agent."""
    return evolve(
        state,
        slots=state.slots + after.total - before.total,
        free=state.free + after.free_count - before.free_count,
        running=state.running + len(after.running) - len(before.running),
        unscheduled=True,
    )


def _audited(state: PoolState, message: AuditFound, turn: Turn) -> PoolState:
    for released in message.stale:
        turn.because(f"the audit frees {released.trial_id}.{released.epoch}")
        state = _released(state, released, turn)
    return state


def _of_agent(
    state: PoolState, message: AgentJoined | AgentAvailabilityChanged | AgentLost, turn: Turn
) -> PoolState:
    match message:
        case AgentJoined():
            return _joined(state, message, turn)
        case AgentAvailabilityChanged():
            return _reopened(state, message, turn)
        case AgentLost():
            return _lost(state, message, turn)


def _joined(state: PoolState, message: AgentJoined, turn: Turn) -> PoolState:
    """An agent's new session: its slots, with what runs on those that remain."""
    agents = agents_of(turn)
    before = agents.get(message.agent)
    if before is not None and before.epoch >= message.epoch:
        return state
    is_new = before is None
    before = before or AgentSlots(0, ())
    gone = [name for name, held in before.running.items() if not set(held) <= {*message.slots}]
    after = before
    for allocation in gone:
        _lose(before, allocation, message.agent, "it came back without the slot", turn)
        after = after.releasing(allocation)
    after = replace(
        after, epoch=message.epoch, slots=message.slots, availability=message.availability
    )
    agents.put(message.agent, after)
    _send_away(message.agent, after, turn)
    return _recounted(evolve(state, agents=state.agents + is_new), before, after)


def _reopened(state: PoolState, message: AgentAvailabilityChanged, turn: Turn) -> PoolState:
    """Other slots of an agent take work than before."""
    agents = agents_of(turn)
    before = agents.get(message.agent)
    if before is None or before.epoch != message.epoch:
        return state
    after = replace(before, availability=message.availability)
    agents.put(message.agent, after)
    _send_away(message.agent, after, turn)
    return _recounted(state, before, after)


def _send_away(name: str, agent: AgentSlots, turn: Turn) -> None:
    """Stops what runs on slots that are to be left: nobody waits for the end of a workload."""
    for allocation in agent.unwelcome:
        trial_id, epoch = parse_allocation(allocation)
        reason = (
            f"agent {name} was disabled"
            if not agent.availability.enabled
            else (f"a slot of agent {name} was disabled")
        )
        turn.send(addresses.trial(trial_id), PreemptionRequested(epoch, reason, forced=True))


def _lost(state: PoolState, message: AgentLost, turn: Turn) -> PoolState:
    agents = agents_of(turn)
    known = agents.get(message.agent)
    if known is None or known.epoch != message.epoch:
        return state
    for allocation in sorted(known.running):
        _lose(known, allocation, message.agent, message.reason, turn)
    turn.send(addresses.agent(message.agent), AgentDeclaredLost(message.epoch))
    agents.remove(message.agent)
    return _recounted(evolve(state, agents=state.agents - 1), known, AgentSlots(0, ()))


def _lose(slots: AgentSlots, allocation: str, agent: str, reason: str, turn: Turn) -> None:
    trial_id, epoch = parse_allocation(allocation)
    waiting_in(turn).free(slots.group_of(allocation), len(slots.running[allocation]))
    lost = AllocationLost(epoch, f"agent {agent} was lost: {reason}", agent)
    turn.send(addresses.trial(trial_id), lost)
    turn.send(addresses.agent(agent), AllocationRemoved(trial_id, epoch))


def _scheduled(state: PoolState, turn: Turn) -> PoolState:
    waiting = waiting_in(turn)
    queue = islice(in_turn(waiting.lines()), STARTS_MAX)
    plan = fifo.plan(queue, agents_of(turn).capacities())
    done = 0
    for start in plan.starts:
        if len(turn.parts) > STARTED_PARTS_MAX:
            break
        state = _started(state, start, turn)
        done += 1
    more = done == STARTS_MAX or done < len(plan.starts)
    if more:
        turn.send(turn.address, SchedulingContinued())
    waits = plan.waits
    if not (waits or more) and state.queued:
        waits = waiting.first_held_back()
    if waits:
        turn.because(waits)
    return evolve(state, unscheduled=more, waits=waits)


def _started(state: PoolState, start: Start, turn: Turn) -> PoolState:
    """Gives a request its slots."""
    request = start.request
    trial_id, epoch = parse_allocation(request.allocation)
    number = state.started + (request.group > 0)
    agents = agents_of(turn)
    before = agents.get(start.agent)
    assert before is not None
    after = before.placing(request.allocation, request.slots, request.group, number)
    agents.put(start.agent, after)
    waiting_in(turn).start(request)
    held = after.running[request.allocation]
    turn.send(addresses.trial(trial_id), SlotsAssigned(epoch, (Place(start.agent, held),)))
    turn.send(addresses.agent(start.agent), AllocationPlaced(trial_id, epoch, held))
    counted = _recounted(state, before, after)
    return evolve(counted, queued=state.queued - 1, started=number)


def parse_allocation(allocation: str) -> tuple[int, int]:
    """Trial id and epoch of an allocation's name."""
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
