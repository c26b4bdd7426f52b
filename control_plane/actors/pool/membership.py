"""The agents of a pool: enrollment, changes of availability, and losses with all allocations."""

from collections.abc import Iterable
from dataclasses import replace
from typing import assert_never

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AgentDeclaredLost, AllocationRemoved
from control_plane.actors.messages.pool import AgentAvailabilityChanged, AgentJoined, AgentLost
from control_plane.actors.messages.trial import AllocationLost, PreemptionRequested
from control_plane.actors.pool.agent_kinds import number_of_kind
from control_plane.actors.pool.agent_slots import AgentSlots
from control_plane.actors.pool.state import (
    PoolState,
    agents_of,
    job_queue_of,
    mark_leaving,
    parse_allocation,
    release_job_slots,
    update_totals,
)
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve

_NO_SLOTS = AgentSlots(0, ())


def apply_agent_message(
    state: PoolState,
    message: AgentJoined | AgentAvailabilityChanged | AgentLost,
    context: StepContext,
) -> PoolState:
    """Apply a message about an agent's session. A message about an earlier session changes nothing.

    - AgentJoined: begin a session that is newer than the recorded session. Allocations whose slots
      still exist stay, and others are lost.
    - AgentAvailabilityChanged: change which slots accept work.
    - AgentLost: remove the agent with the allocations on the agent, and send the agent an
      AgentDeclaredLost.

    Trials get an AllocationLost for lost allocations. Allocations on closed slots get a forced
    PreemptionRequested, unless the agent is draining.
    """
    match message:
        case AgentJoined():
            return _join_agent(state, message, context)
        case AgentAvailabilityChanged():
            return _change_availability(state, message, context)
        case AgentLost():
            return _lose_agent(state, message, context)
        case _:
            assert_never(message)


def _join_agent(state: PoolState, message: AgentJoined, context: StepContext) -> PoolState:
    """Begin an agent's new session with the reported slots, and return the pool's state.

    Allocations whose slots still exist stay. For others, `_lose_part` notifies the trials and the
    agent. Allocations on closed slots are stopped. A session that is not newer than the recorded
    session changes nothing.
    """
    agents = agents_of(context)
    before = agents.get(message.agent)
    if before is not None and before.epoch >= message.epoch:
        return state
    previous = before or _NO_SLOTS
    slots = {*message.slots}
    lost = [name for name, part in previous.parts.items() if not {*part.slots} <= slots]
    after = replace(
        previous,
        epoch=message.epoch,
        slots=message.slots,
        parts={name: part for name, part in previous.parts.items() if name not in lost},
        availability=message.availability,
        label=message.label,
        kind=_kind_number(message, context),
    )
    agents.put(message.agent, after)
    state = update_totals(evolve(state, agents=state.agents + (before is None)), previous, after)
    state = _note_departures(state, after)
    slot_lost = AgentLost(message.agent, message.epoch, "it came back without the slot")
    state = _lose_parts(state, slot_lost, previous, lost, context)
    _stop_on_closed_slots(message.agent, after, context)
    return state


def _kind_number(message: AgentJoined, context: StepContext) -> int:
    """Return the number of the joining agent's kind. A new kind is stored."""
    agents = agents_of(context)
    return number_of_kind(
        message.kind,
        lambda: {agent.kind for name, agent in agents.items() if name != message.agent},
        context,
    )


def _change_availability(
    state: PoolState, message: AgentAvailabilityChanged, context: StepContext
) -> PoolState:
    """Change which slots of an agent accept work. Allocations on closed slots are stopped.

    The totals of the pool change, and the fold ends with a pass of the scheduler. An unknown agent
    or another session changes nothing.
    """
    agents = agents_of(context)
    before = agents.get(message.agent)
    if before is None or before.epoch != message.epoch:
        return state
    after = replace(before, availability=message.availability)
    agents.put(message.agent, after)
    _stop_on_closed_slots(message.agent, after, context)
    return _note_departures(update_totals(state, before, after), after)


def _note_departures(state: PoolState, agent: AgentSlots) -> PoolState:
    """Return the state in which the fold ends with a pass of the scheduler, if trials must leave
    the agent.

    The pass preempts the trials, because the job's row stores whether a trial may be preempted.
    """
    if not agent.availability.checkpoints or not agent.parts:
        return state
    return evolve(state, needs_scheduling=True, settings_changed=True)


def _stop_on_closed_slots(name: str, agent: AgentSlots, context: StepContext) -> None:
    """Send the trials on closed slots a forced PreemptionRequested, and mark the allocations as
    leaving.

    Do nothing if the agent is draining.
    """
    for allocation in agent.allocations_to_stop:
        trial_id, epoch = parse_allocation(allocation)
        is_slot = agent.availability.enabled
        reason = f"a slot of agent {name} was disabled" if is_slot else f"agent {name} was disabled"
        context.send(addresses.trial(trial_id), PreemptionRequested(epoch, reason, forced=True))
        mark_leaving(name, allocation, context)


def _lose_agent(state: PoolState, message: AgentLost, context: StepContext) -> PoolState:
    """Remove a lost agent from the pool, with all allocations on the agent.

    The trials get an AllocationLost, and the agent an AgentDeclaredLost. An unknown agent or
    another session changes nothing.
    """
    agents = agents_of(context)
    lost = agents.get(message.agent)
    if lost is None or lost.epoch != message.epoch:
        return state
    agents.remove(message.agent)
    state = update_totals(evolve(state, agents=state.agents - 1), lost, _NO_SLOTS)
    state = _lose_parts(state, message, lost, sorted(lost.parts), context)
    context.send(addresses.agent(message.agent), AgentDeclaredLost(message.epoch))
    return state


def _lose_parts(
    state: PoolState,
    message: AgentLost,
    agent: AgentSlots,
    allocations: Iterable[str],
    context: StepContext,
) -> PoolState:
    """Record the loss of the slots that allocations hold on an agent, and return the state.

    The caller removes or writes the agent.
    """
    for allocation in allocations:
        state = _lose_part(state, message, agent, allocation, context)
        agent = agent.without_allocation(allocation)
    return state


def _lose_part(
    state: PoolState,
    message: AgentLost,
    lost_agent: AgentSlots,
    allocation: str,
    context: StepContext,
) -> PoolState:
    """Record the loss of the slots that an allocation holds on an agent, and return the state.

    The trial gets an AllocationLost, and the agent an AllocationRemoved. The caller removes the
    agent. The allocation is marked as leaving on its other agents, without the lost agent among
    `places`. The other slots stay held until the trial releases them.
    """
    part = lost_agent.parts[allocation]
    trial_id, epoch = parse_allocation(allocation)
    agent, text = message.agent, f"agent {message.agent} was lost: {message.reason}"
    lost = AllocationLost(epoch, text, agent, message.last_contact_ms)
    context.send(addresses.trial(trial_id), lost)
    context.send(addresses.agent(agent), AllocationRemoved(trial_id, epoch))
    left = tuple(place for place in part.places if place.agent != agent)
    queue = job_queue_of(context)
    remaining = lost_agent.without_allocation(allocation)
    release_job_slots(part.group, lost_agent, remaining, context, ended=not left)
    agents = agents_of(context)
    for rank, place in enumerate(left):
        before = agents.get(place.agent)
        if before is None or allocation not in before.parts:
            continue
        member = before.parts[allocation]
        if not member.leaving:
            queue.add_leaving_slots(member.group, len(member.slots))
        member = replace(member, rank=rank, places=left, leaving=True)
        after = before.with_allocation(allocation, member)
        agents.put(place.agent, after)
        state = update_totals(state, before, after)
    return state
