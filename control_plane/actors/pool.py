"""The resource pool: its settings, the jobs that ask for slots, the agents, who runs where.

Jobs, their requests and the agents are ordered maps in parts, so that a decision writes as much
for a queue of ten thousand as for one of ten. Messages only record what changed; the scheduler
runs once at the end of a fold.
"""

from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.pool_agents import of_agent
from control_plane.actors.pool_messages import (
    AgentAvailabilityChanged,
    AgentJoined,
    AgentLost,
    AuditFound,
    BudgetChecked,
    JobChanged,
    PoolConfigured,
    PoolMessage,
    PoolRemoved,
    PoolSettings,
    SchedulingContinued,
    SlotsReleased,
    SlotsRequested,
)
from control_plane.actors.pool_scheduling import scheduled
from control_plane.actors.pool_state import (
    POOLS,
    PoolState,
    agents_of,
    freed,
    parse_allocation,
    settings_of,
    waiting_in,
)
from control_plane.actors.step import Refused, Turn
from control_plane.actors.trial_messages import AllocationExited
from control_plane.evolve import evolve
from control_plane.scheduling.model import Request

__all__ = [
    "POOLS",
    "PoolState",
    "agents_of",
    "fallback",
    "parse_allocation",
    "settings_of",
    "settle",
    "step",
    "waiting_in",
]


def step(state: PoolState | None, message: PoolMessage, turn: Turn) -> PoolState | None:
    """Folds one message."""
    if isinstance(message, PoolConfigured):
        return _configured(state, message, turn)
    if state is None or state.removed:
        return _gone(state, message, turn)
    match message:
        case PoolRemoved():
            return _removed(state, turn)
        case SlotsRequested():
            return _requested(state, message, turn)
        case SlotsReleased():
            return _released(state, message, turn)
        case JobChanged(group):
            is_new = waiting_in(turn).read(group)
            return evolve(state, unscheduled=True, changed=True) if is_new else state
        case AgentJoined() | AgentAvailabilityChanged() | AgentLost():
            return of_agent(state, message, turn)
        case SchedulingContinued():
            return state
        case AuditFound() | BudgetChecked():
            return _looked_after(state, message, turn)
        case _:
            assert_never(message)


def settle(state: PoolState, turn: Turn) -> PoolState:
    """Runs the scheduler if anything changed that may concern somebody."""
    if not state.unscheduled:
        return state
    concerned = state.queued or (state.changed and state.running)
    state = evolve(state, unscheduled=False, changed=False, waits="")
    return scheduled(state, turn) if concerned else state


def fallback(state: PoolState | None, message: object, turn: Turn) -> PoolState | None:
    """A pool goes on without a message it cannot take; its audit repairs what that leaves. Whoever
    asked for slots learns that there are none: it may try again as often as after a failure.
    """
    text = f"{type(message).__name__} could not be processed"
    turn.because(text)
    if isinstance(message, SlotsRequested):
        _deny(message, text, turn)
    return state


def _configured(state: PoolState | None, message: PoolConfigured, turn: Turn) -> PoolState:
    turn.reply = message.name
    if state is None or state.removed:
        turn.write_row(POOLS, message.name, b"")
        turn.write_part("settings", message.settings or PoolSettings())
        return PoolState(message.name)
    if message.settings is None or message.settings == settings_of(turn):
        return state
    turn.write_part("settings", message.settings)
    return evolve(state, unscheduled=True, changed=True)


def _looked_after(state: PoolState, message: AuditFound | BudgetChecked, turn: Turn) -> PoolState:
    if isinstance(message, AuditFound):
        return _audited(state, message, turn)
    settings = settings_of(turn)
    if settings.over_budget == message.over_budget:
        return state
    turn.write_part("settings", replace(settings, over_budget=message.over_budget))
    return evolve(state, unscheduled=True, changed=True)


def _gone(state: PoolState | None, message: PoolMessage, turn: Turn) -> PoolState | None:
    """There is no such pool, or no more: whoever asks it for slots would wait for ever."""
    if state is not None and isinstance(message, SlotsRequested):
        _deny(message, f"resource pool {state.name} was removed", turn)
    if state is not None and isinstance(message, PoolRemoved):
        turn.reply = state.name
    return state


def _deny(message: SlotsRequested, text: str, turn: Turn) -> None:
    failed = AllocationExited(message.epoch, "errored", message=f"the pool: {text}")
    turn.send(addresses.trial(message.trial_id), failed)


def _removed(state: PoolState, turn: Turn) -> PoolState:
    turn.reply = state.name
    jobs = [number for number, _ in waiting_in(turn).groups()]
    if jobs or state.agents:
        text = f"resource pool {state.name} has {len(jobs)} jobs and {state.agents} agents"
        raise Refused(
            "conflict", f"{text}: drain it, move or end the jobs and stop the agents first"
        )
    turn.write_row(POOLS, state.name, None)
    turn.write_part("settings", None)
    return PoolState(state.name, removed=True)


def _requested(state: PoolState, message: SlotsRequested, turn: Turn) -> PoolState:
    """Lets a request wait; one that was heard before changes nothing."""
    allocation = f"{message.trial_id}.{message.epoch}"
    request = Request(allocation, message.slots, message.ticket, message.group)
    if agents_of(turn).holder(allocation) or not waiting_in(turn).add(request):
        return state
    return evolve(state, queued=state.queued + 1, unscheduled=True)


def _released(state: PoolState, message: SlotsReleased, turn: Turn) -> PoolState:
    """Takes the allocation off its agents or lets it wait no longer; a repeat finds nothing.

    A trial that withdraws may not know yet that it was placed, so its release names no agent.
    """
    allocation = f"{message.trial_id}.{message.epoch}"
    agents, waiting = agents_of(turn), waiting_in(turn)
    request = Request(allocation, 0, message.ticket, message.group)
    if not message.agents and waiting.remove(request):
        return evolve(state, queued=state.queued - 1, unscheduled=True)
    named = message.agents or _all_agents(allocation, turn)
    for name in named:
        found = agents.get(name)
        if found is not None and allocation in found.parts:
            state = freed(state, name, allocation, turn)
    return state


def _all_agents(allocation: str, turn: Turn) -> tuple[str, ...]:
    agents = agents_of(turn)
    holder = agents.holder(allocation)
    found = agents.get(holder) if holder else None
    if found is None:
        return ()
    return tuple(place.agent for place in found.parts[allocation].places) or (holder,)


def _audited(state: PoolState, message: AuditFound, turn: Turn) -> PoolState:
    for released in message.stale:
        turn.because(f"the audit frees {released.trial_id}.{released.epoch}")
        state = _released(state, released, turn)
    return state
