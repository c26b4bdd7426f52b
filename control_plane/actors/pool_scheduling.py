"""A pool's decisions: its scheduler's plan, as far as a commit holds it.

The plan is of the state that it is committed with. What does not fit into the commit is planned
again from what that leaves.
"""

from collections.abc import Iterator
from itertools import chain

from control_plane.actors import addresses
from control_plane.actors.agent_messages import AllocationPlaced
from control_plane.actors.pool_messages import PoolSettings, SchedulingContinued
from control_plane.actors.pool_state import (
    PoolState,
    agents_of,
    asked_to_go,
    parse_allocation,
    recounted,
    settings_of,
    waiting_in,
)
from control_plane.actors.records import Place
from control_plane.actors.slots import AgentSlots, Part
from control_plane.actors.step import Turn
from control_plane.actors.trial_messages import PreemptionRequested, SlotsAssigned
from control_plane.evolve import evolve
from control_plane.scheduling.model import SchedulePlan, Start, Victim
from control_plane.scheduling.schedule import schedule
from control_plane.scheduling.sizes import AGENTS_MAX

# Starts in one commit: each is mail to a trial, which spills over into parts of the outbox.
STARTS_MAX = 256
# Parts beside those of agents that one start or victim touches, with nodes of a directory.
PARTS_OF_ONE = 5
# Parts that a plan may touch before the commit is full, each agent of a gang being in a part of its
# own: a fold may have used 60 of a commit's 100 operations, and a spilled outbox takes a few.
PARTS_MAX = AGENTS_MAX + PARTS_OF_ONE


def scheduled(state: PoolState, turn: Turn) -> PoolState:
    """Decides who starts and who is asked to go, given what is known now."""
    settings = settings_of(turn)
    closed = _closed(state.name, settings) if state.queued else ""
    if closed:
        turn.because(closed)
        return evolve(state, waits=closed)
    plan = _planned(settings, turn)
    done = 0
    decisions: Iterator[Start | Victim] = chain(plan.starts, plan.victims)
    for decision in decisions:
        if len(turn.parts) + PARTS_OF_ONE + _places(decision) > PARTS_MAX and done:
            break
        state = _carried_out(state, decision, turn)
        done += 1
    more = done < len(plan.starts) + len(plan.victims) or len(plan.starts) == STARTS_MAX
    if more:
        turn.send(turn.address, SchedulingContinued())
    if plan.waits:
        turn.because(plan.waits)
    return evolve(state, unscheduled=more, waits=plan.waits if state.queued else "")


def _planned(settings: PoolSettings, turn: Turn) -> SchedulePlan:
    agents, waiting = agents_of(turn), waiting_in(turn)
    jobs = tuple(waiting.jobs(settings.default_priority, agents.holdings))
    capacities = tuple(agents.capacities(settings.aux_per_agent))
    return schedule(jobs, capacities, settings.scheduler, STARTS_MAX)


def _closed(name: str, settings: PoolSettings) -> str:
    """Why nothing starts whatever is free, "" if it may."""
    if settings.draining:
        return f"waits: pool {name} is draining, so nothing starts in it"
    if settings.over_budget:
        return f"waits: the budget of pool {name} is used up, so nothing starts in it"
    return ""


def _places(decision: Start | Victim) -> int:
    return len(decision.places if isinstance(decision, Start) else decision.holding.places)


def _carried_out(state: PoolState, decision: Start | Victim, turn: Turn) -> PoolState:
    if isinstance(decision, Start):
        return _started(state, decision, turn)
    _preempted(decision, turn)
    return state


def _preempted(victim: Victim, turn: Turn) -> None:
    """Asks an allocation to save its work and go, once."""
    holding = victim.holding
    if not asked_to_go(holding.places[0].agent, holding.allocation, turn):
        return
    trial_id, epoch = parse_allocation(holding.allocation)
    turn.send(addresses.trial(trial_id), PreemptionRequested(epoch, victim.reason))
    turn.because(f"{holding.allocation} is preempted: {victim.reason}")


def _started(state: PoolState, start: Start, turn: Turn) -> PoolState:
    """Gives a request its slots, if these are free as the plan takes for granted."""
    request, agents = start.request, agents_of(turn)
    allocation = request.allocation
    found = [(place, agents.get(place.agent)) for place in start.places]
    if not all(_has_room(a, place.slots) for place, a in found):
        turn.because(f"{allocation} does not start on {', '.join(p.agent for p, _ in found)}")
        return state
    trial_id, epoch = parse_allocation(allocation)
    number = state.started + 1
    places: list[Place] = []
    for rank, (place, before) in enumerate(found):
        assert before is not None
        slots = before.free[: place.slots]
        spread = start.places if len(found) > 1 else ()
        part = Part(slots, request.group, number, rank=rank, places=spread)
        after = before.having(allocation, part)
        agents.put(place.agent, after)
        state = recounted(state, before, after)
        places.append(Place(place.agent, slots))
        placed = AllocationPlaced(trial_id, epoch, slots, rank, len(found))
        turn.send(addresses.agent(place.agent), placed)
    waiting_in(turn).start(request)
    turn.send(addresses.trial(trial_id), SlotsAssigned(epoch, tuple(places)))
    return evolve(state, queued=state.queued - 1, started=number)


def _has_room(agent: AgentSlots | None, slots: int) -> bool:
    return agent is not None and agent.availability.enabled and agent.free_count >= slots
