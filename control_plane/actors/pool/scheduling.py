"""Running a pool's scheduler and applying as much of its plan as fits into one commit.

The plan is based on the state that it is committed with. What does not fit into the commit is
planned again from the state after it.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AllocationPlaced
from control_plane.actors.messages.pool import PoolSettings, SchedulingContinued
from control_plane.actors.messages.trial import PreemptionRequested, SlotsAssigned
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.pool.state import (
    KeptAllocation,
    PoolState,
    agents_of,
    job_queue_of,
    mark_leaving,
    parse_allocation,
    settings_of,
    update_totals,
)
from control_plane.actors.records import Place
from control_plane.actors.step import StepContext
from control_plane.clock_skew import is_from_future
from control_plane.evolve import evolve
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    AllocationStart,
    Job,
    Victim,
)
from control_plane.scheduling.reservations import (
    Reservation,
    keep_allocations,
    renew_reservation,
)
from control_plane.scheduling.schedule import schedule_jobs
from control_plane.scheduling.sizes import AGENTS_MAX, slots_text

# The most starts in one commit: each is mail to a trial, which spills into parts of the outbox.
STARTS_MAX = 256
# The most allocations that are kept at once: they are part of the pool's head.
KEPT_MAX = 32
# Parts that one start or victim touches besides those of agents, with nodes of a directory.
PARTS_OF_ONE = 5
# Parts that a plan may touch before the commit is full, where each agent of a gang is in a separate
# part: a fold may have used 60 of a commit's 100 operations, and a spilled outbox takes a few.
PARTS_MAX = AGENTS_MAX + PARTS_OF_ONE


def run_scheduler(state: PoolState, context: StepContext) -> PoolState:
    """Run the scheduler on the present state, start allocations and preempt others."""
    settings = settings_of(context)
    closed = _closed_reason(state.name, settings) if state.queued else ""
    if closed:
        context.add_reason(closed)
        return evolve(state, waits=closed)
    state = _remove_expired(state, context)
    job_queue_of(context).restart_future_waits()
    seen = pool_view(state, settings, context, context.now_ms)
    held = seen.reservation
    if held is not None and held != state.reservation:
        context.add_reason(_reservation_text(held))
    reserved_slots = held.slots if held else state.reserved_slots
    state = evolve(state, reservation=held, reserved_slots=reserved_slots)
    plan = schedule_jobs(
        seen.jobs,
        seen.agents,
        settings.scheduler,
        STARTS_MAX,
        can_grow=bool(settings.provider),
        reservation=held,
    )
    done = 0
    decisions: Iterator[AllocationStart | Victim] = chain(plan.starts, plan.victims)
    for decision in decisions:
        if len(context.parts) + PARTS_OF_ONE + _place_count(decision) > PARTS_MAX and done:
            break
        state = _apply_decision(state, decision, context)
        done += 1
    more = done < len(plan.starts) + len(plan.victims) or len(plan.starts) == STARTS_MAX
    if more:
        context.send(context.address, SchedulingContinued())
    if plan.wait_reason:
        context.add_reason(plan.wait_reason)
    return evolve(state, unscheduled=more, waits=plan.wait_reason if state.queued else "")


@dataclass(frozen=True, slots=True)
class PoolContents:
    """A pool's jobs and agents as its parts have them, at any time until these change."""

    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]


@dataclass(frozen=True, slots=True)
class PoolView:
    """A pool as its scheduler sees it: its jobs and agents, and the agents held for a job."""

    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]
    reservation: Reservation | None


def pool_view(
    state: PoolState, settings: PoolSettings, context: StepContext, now_ms: int
) -> PoolView:
    """The pool as a pass at that time sees it."""
    return view_at(read_contents(settings, context), state, settings, now_ms)


def read_contents(settings: PoolSettings, context: StepContext) -> PoolContents:
    """Read the pool's jobs and agents."""
    agents, queue = agents_of(context), job_queue_of(context)
    return PoolContents(
        tuple(queue.jobs(settings.default_priority, agents.running_allocations)),
        tuple(agents.capacities(settings.aux_per_agent)),
    )


def view_at(
    contents: PoolContents, state: PoolState, settings: PoolSettings, now_ms: int
) -> PoolView:
    """The pool of these contents as a pass at that time sees it."""
    kept = {one.allocation_id: one.group for one in state.kept if now_ms < one.until_ms}
    jobs = tuple(keep_allocations(contents.jobs, kept)) if kept else contents.jobs
    reservation = renew_reservation(
        jobs,
        contents.agents,
        settings.scheduler,
        state.reservation,
        after_ms=settings.reserve_after_ms,
        now_ms=now_ms,
        started=state.started,
        last_slots=state.reserved_slots,
    )
    return PoolView(jobs, contents.agents, reservation)


def expire_kept_allocations(state: PoolState, context: StepContext) -> PoolState:
    """Run the scheduler again if it may now preempt allocations that it had to keep."""
    after = _remove_expired(state, context)
    return state if after is state else evolve(after, unscheduled=True, changed=True)


def _remove_expired(state: PoolState, context: StepContext) -> PoolState:
    now_ms = context.now_ms
    kept = tuple(one for one in state.kept if now_ms < one.until_ms)
    longest_ms = settings_of(context).reserve_after_ms or 0
    if any(is_from_future(one.until_ms, now_ms, longest_ms) for one in kept):
        until_ms = now_ms + longest_ms
        context.set_timer(until_ms, SchedulingContinued())
        kept = tuple(replace(one, until_ms=min(one.until_ms, until_ms)) for one in kept)
    return state if kept == state.kept else evolve(state, kept=kept)


def _reservation_text(held: Reservation) -> str:
    slots, agents = slots_text(held.slots), ", ".join(held.agents)
    return f"{slots} of {agents} are held for job {held.group}, which has waited too long"


def _closed_reason(name: str, settings: PoolSettings) -> str:
    """Why nothing may start in the pool, "" if it may."""
    if settings.draining:
        return f"waits: pool {name} is draining, so nothing starts in it"
    if settings.over_budget:
        return f"waits: the budget of pool {name} is used up, so nothing starts in it"
    return ""


def _place_count(decision: AllocationStart | Victim) -> int:
    return len(
        decision.placements
        if isinstance(decision, AllocationStart)
        else decision.allocation.placements
    )


def _apply_decision(
    state: PoolState, decision: AllocationStart | Victim, context: StepContext
) -> PoolState:
    if isinstance(decision, AllocationStart):
        return _start_allocation(state, decision, context)
    _preempt_allocation(decision, context)
    return state


def _preempt_allocation(victim: Victim, context: StepContext) -> None:
    """Ask an allocation to save its work and release its slots, once."""
    holding = victim.allocation
    if not mark_leaving(holding.placements[0].agent, holding.allocation_id, context):
        return
    trial_id, epoch = parse_allocation(holding.allocation_id)
    context.send(addresses.trial(trial_id), PreemptionRequested(epoch, victim.reason))
    context.add_reason(f"{holding.allocation_id} is preempted: {victim.reason}")


def _start_allocation(state: PoolState, start: AllocationStart, context: StepContext) -> PoolState:
    """Give a request its slots, if these are free as the plan assumes."""
    request, agents = start.request, agents_of(context)
    allocation = request.allocation_id
    found = [(place, agents.get(place.agent)) for place in start.placements]
    if not all(_has_room(a, place.slots) for place, a in found):
        context.add_reason(f"{allocation} does not start on {', '.join(p.agent for p, _ in found)}")
        return state
    trial_id, epoch = parse_allocation(allocation)
    number = state.started + 1
    places: list[Place] = []
    for rank, (place, before) in enumerate(found):
        assert before is not None
        slots = before.free_slots[: place.slots]
        spread = start.placements if len(found) > 1 else ()
        part = AllocationPart(slots, request.group, number, rank=rank, places=spread)
        after = before.with_allocation(allocation, part)
        agents.put(place.agent, after)
        state = update_totals(state, before, after)
        places.append(Place(place.agent, slots))
        placed = AllocationPlaced(trial_id, epoch, slots, rank, len(found))
        context.send(addresses.agent(place.agent), placed)
    job_queue_of(context).start_request(request)
    context.send(addresses.trial(trial_id), SlotsAssigned(epoch, tuple(places)))
    state = evolve(state, queued=state.queued - 1, started=number)
    held = state.reservation
    if held is None or (held.group, held.slots) != (request.group, request.slots):
        return state
    return _keep_allocation(state, request, context)


def _keep_allocation(
    state: PoolState, request: AllocationRequest, context: StepContext
) -> PoolState:
    """End the reservation that a start was for. In a fair share the allocation exceeds what its job
    is offered as a rule, so that it may run for as long as the job would have to wait again.
    """
    settings = settings_of(context)
    state = evolve(state, reservation=None)
    if settings.scheduler.kind != "fair_share" or not settings.reserve_after_ms:
        return state
    until_ms = context.now_ms + settings.reserve_after_ms
    context.set_timer(until_ms, SchedulingContinued())
    kept = KeptAllocation(request.allocation_id, request.group, until_ms)
    return evolve(state, kept=(*state.kept, kept)[-KEPT_MAX:])


def _has_room(agent: AgentSlots | None, slots: int) -> bool:
    return agent is not None and agent.availability.enabled and agent.free_count >= slots
