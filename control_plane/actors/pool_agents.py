"""Agents of a pool that come, change, and are lost with what runs on them."""

from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.agent_messages import AgentDeclaredLost, AllocationRemoved
from control_plane.actors.pool_messages import AgentAvailabilityChanged, AgentJoined, AgentLost
from control_plane.actors.pool_state import (
    PoolState,
    agents_of,
    asked_to_go,
    parse_allocation,
    recounted,
    waiting_in,
)
from control_plane.actors.slots import AgentSlots, Part
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import AllocationLost, PreemptionRequested
from control_plane.evolve import evolve

_GONE = AgentSlots(0, ())


def of_agent(
    state: PoolState, message: AgentJoined | AgentAvailabilityChanged | AgentLost, turn: Turn
) -> PoolState:
    """Takes a word about an agent; one of another session changes nothing."""
    match message:
        case AgentJoined():
            return _joined(state, message, turn)
        case AgentAvailabilityChanged():
            return _reopened(state, message, turn)
        case AgentLost():
            return _lost(state, message, turn)
        case _:
            assert_never(message)


def _joined(state: PoolState, message: AgentJoined, turn: Turn) -> PoolState:
    """An agent's new session: its slots, with what runs on those that remain."""
    agents = agents_of(turn)
    before = agents.get(message.agent)
    if before is not None and before.epoch >= message.epoch:
        return state
    known = before or _GONE
    has = {*message.slots}
    gone = [name for name, part in known.parts.items() if not {*part.slots} <= has]
    after = replace(
        known,
        epoch=message.epoch,
        slots=message.slots,
        parts={name: part for name, part in known.parts.items() if name not in gone},
        availability=message.availability,
        label=message.label,
    )
    agents.put(message.agent, after)
    state = recounted(evolve(state, agents=state.agents + (before is None)), known, after)
    for name in gone:
        without = AgentLost(message.agent, message.epoch, "it came back without the slot")
        state = _lose(state, without, name, known.parts[name], turn)
    _send_away(message.agent, after, turn)
    return state


def _reopened(state: PoolState, message: AgentAvailabilityChanged, turn: Turn) -> PoolState:
    """Other slots of an agent take work than before."""
    agents = agents_of(turn)
    before = agents.get(message.agent)
    if before is None or before.epoch != message.epoch:
        return state
    after = replace(before, availability=message.availability)
    agents.put(message.agent, after)
    _send_away(message.agent, after, turn)
    return recounted(state, before, after)


def _send_away(name: str, agent: AgentSlots, turn: Turn) -> None:
    """Stops what runs on slots that are to be left: nobody waits for the end of a workload."""
    for allocation in agent.unwelcome:
        trial_id, epoch = parse_allocation(allocation)
        whole = not agent.availability.enabled
        reason = f"agent {name} was disabled" if whole else f"a slot of agent {name} was disabled"
        turn.send(addresses.trial(trial_id), PreemptionRequested(epoch, reason, forced=True))
        asked_to_go(name, allocation, turn)


def _lost(state: PoolState, message: AgentLost, turn: Turn) -> PoolState:
    agents = agents_of(turn)
    known = agents.get(message.agent)
    if known is None or known.epoch != message.epoch:
        return state
    agents.remove(message.agent)
    state = recounted(evolve(state, agents=state.agents - 1), known, _GONE)
    for allocation in sorted(known.parts):
        part = known.parts[allocation]
        state = _lose(state, message, allocation, part, turn)
    turn.send(addresses.agent(message.agent), AgentDeclaredLost(message.epoch))
    return state


def _lose(
    state: PoolState, message: AgentLost, allocation: str, part: Part, turn: Turn
) -> PoolState:
    """Takes note that the allocation's part on an agent is gone; what it has elsewhere stays
    until the trial gives it back, which it does once that has ended.
    """
    trial_id, epoch = parse_allocation(allocation)
    agent, text = message.agent, f"agent {message.agent} was lost: {message.reason}"
    lost = AllocationLost(epoch, text, agent, message.heard_ms)
    turn.send(addresses.trial(trial_id), lost)
    turn.send(addresses.agent(agent), AllocationRemoved(trial_id, epoch))
    left = tuple(place for place in part.places if place.agent != agent)
    waiting = waiting_in(turn)
    waiting.free(part.group, len(part.slots), ended=not left, leaving=part.leaving)
    agents = agents_of(turn)
    for rank, place in enumerate(left):
        before = agents.get(place.agent)
        if before is None or allocation not in before.parts:
            continue
        there = before.parts[allocation]
        if not there.leaving:
            waiting.leave(there.group, len(there.slots))
        there = replace(there, rank=rank, places=left, leaving=True)
        after = before.having(allocation, there)
        agents.put(place.agent, after)
        state = recounted(state, before, after)
    return state
