"""The pool's scheduling pass: run the scheduler, and apply as much of the plan as fits into a
commit.

The plan is based on the state that the same commit changes. Decisions that do not fit into the
commit are planned again from the next state.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AllocationPlaced
from control_plane.actors.messages.pool import PoolSettings, SchedulingContinued
from control_plane.actors.messages.trial import PreemptionRequested, SlotsAssigned
from control_plane.actors.pool.agent_kinds import RefusedKinds
from control_plane.actors.pool.agent_slots import AgentSlots, AllocationPart
from control_plane.actors.pool.slot_sharing import plan_shared_starts
from control_plane.actors.pool.state import (
    PoolState,
    ProtectedAllocation,
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
    Placement,
    SchedulePlan,
    Victim,
)
from control_plane.scheduling.occupied_agents import add_departures, occupied_agents
from control_plane.scheduling.quiet_hours import (
    QuietPeriod,
    add_quiet_hours,
    period_at,
    quiet_text,
    startable_jobs,
)
from control_plane.scheduling.reservations import (
    Reservation,
    keep_allocations,
    renew_reservation,
)
from control_plane.scheduling.schedule import schedule_jobs
from control_plane.scheduling.sizes import AGENTS_MAX
from detcloud.shared.plurals import count_text

# The most starts in a commit. Each start is a message to a trial. Many messages spill into parts.
STARTS_MAX = 256
# The most protected allocations. They are stored in the pool's head.
PROTECTED_MAX = 32
# The parts that a start or preemption touches besides the parts of agents, nodes included.
PARTS_OF_ONE = 5
# The parts that a plan may touch before the commit is full, if each agent of a gang is in another
# part. A fold may have used 60 of a commit's 100 operations, and a spilled outbox uses a few.
PARTS_MAX = AGENTS_MAX + PARTS_OF_ONE


def run_scheduler(state: PoolState, context: StepContext, *, is_changed: bool = False) -> PoolState:
    """Schedule the pool: start allocations and preempt others.

    Return the state with `wait_reason`, `needs_scheduling`, `protected` and `reservation` updated.
    Each start sends a SlotsAssigned to the trial and an AllocationPlaced to the agents. Each
    preemption sends a PreemptionRequested.

    If requests are queued and the pool is draining or over its budget, nothing starts. Without
    queued requests, allocations beyond `max_slots` are preempted even then. In quiet hours, only
    urgent jobs start, and running work of other jobs is preempted if the rules say so. Trials on
    machines that people use are preempted if the agents ask for it. If the plan exceeds a commit or
    STARTS_MAX, the pool sends itself a SchedulingContinued. Requests first start on slots that jobs
    share, and the scheduler plans the rest.

    `is_changed` is whether settings or agents changed, which may concern running allocations.
    """
    settings = settings_of(context)
    period = period_at(settings.quiet_periods, context.now_ms)
    closed = _closed_reason(state.name, settings) if state.queued else ""
    if closed and not _may_have_victims(period, settings, context, is_changed=is_changed):
        context.add_reason(closed)
        return evolve(state, wait_reason=closed)
    state = _remove_expired(state, context)
    job_queue_of(context).restart_future_waits()
    view = pool_view(state, settings, context, context.now_ms)
    startable = () if closed else view.startable
    before, (state, is_full) = state, _start_sharers(state, startable, context)
    if is_full:
        return _continue_later(state, context)
    if state is not before:
        view = pool_view(state, settings, context, context.now_ms)
    state = _record_reservation(state, view.reservation, context)
    plan = SchedulePlan((), (), closed)
    if not closed:
        plan = schedule_jobs(
            view.startable,
            view.agents,
            settings.scheduler,
            STARTS_MAX,
            can_grow=bool(settings.provider),
            reservation=view.reservation,
        )
    if period is not None:
        quiet = quiet_text(state.name, settings.quiet_periods, context.now_ms)
        plan = add_quiet_hours(plan, view.jobs, period, quiet)
    plan = add_departures(plan, view.jobs, occupied_agents(view.agents))
    applied = 0
    decisions: Iterator[AllocationStart | Victim] = chain(plan.starts, plan.victims)
    for decision in decisions:
        if len(context.parts) + PARTS_OF_ONE + _place_count(decision) > PARTS_MAX and applied:
            break
        state = _apply_decision(state, decision, context)
        applied += 1
    more = applied < len(plan.starts) + len(plan.victims) or len(plan.starts) == STARTS_MAX
    state, is_full = _start_sharers(state, startable if plan.starts else (), context)
    if plan.wait_reason:
        context.add_reason(plan.wait_reason)
    wait_reason = plan.wait_reason if state.queued else ""
    state = evolve(state, needs_scheduling=False, settings_changed=False, wait_reason=wait_reason)
    return _continue_later(state, context) if more or is_full else state


def _continue_later(state: PoolState, context: StepContext) -> PoolState:
    """Send the pool a SchedulingContinued, and return the head for the next pass.

    The next pass continues with victims, too, even if no request is queued.
    """
    context.send(context.address, SchedulingContinued())
    return evolve(state, needs_scheduling=True, settings_changed=True)


def _may_have_victims(
    period: QuietPeriod | None, settings: PoolSettings, context: StepContext, *, is_changed: bool
) -> bool:
    """Return whether a pool that starts nothing may preempt work.

    The causes are quiet hours, and machines that people use. The agents are read only if settings
    or agents changed.
    """
    if period is not None and period.checkpoints:
        return True
    capacities = agents_of(context).capacities(settings.aux_per_agent) if is_changed else ()
    return bool(occupied_agents(capacities))


@dataclass(frozen=True, slots=True)
class PoolContents:
    """A pool's jobs and agents, read from the stored parts of the pool's state.

    The contents are valid until a part changes.
    """

    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]


@dataclass(frozen=True, slots=True)
class PoolView:
    """The input of a scheduling pass: a pool's jobs, the agents, and the reservation for a waiting
    job.
    """

    jobs: tuple[Job, ...]
    agents: tuple[AgentCapacity, ...]
    startable: tuple[Job, ...]
    """The jobs as the scheduler sees them. In quiet hours, jobs that may not start are without
    requests.
    """
    reservation: Reservation | None
    """The agents that are reserved for a waiting job. None: no job has a reservation."""


def pool_view(
    state: PoolState, settings: PoolSettings, context: StepContext, now_ms: int
) -> PoolView:
    """Read the pool, and return the input of a scheduling pass at the time `now_ms`.

    The ordered maps `groups`, `requests` and `agents` of the pool are read, and nothing is changed.
    """
    return view_at(read_contents(settings, context), state, settings, now_ms)


def read_contents(settings: PoolSettings, context: StepContext) -> PoolContents:
    """Read the pool's jobs and agents from the stored parts of the pool's state.

    Idle jobs and closed agents are left out.
    """
    agents, queue = agents_of(context), job_queue_of(context)
    return PoolContents(
        tuple(
            queue.jobs(settings.default_priority, agents.running_allocations, RefusedKinds(context))
        ),
        tuple(agents.capacities(settings.aux_per_agent)),
    )


def view_at(
    contents: PoolContents, state: PoolState, settings: PoolSettings, now_ms: int
) -> PoolView:
    """Return the input of a scheduling pass at the time `now_ms`, from contents that were read
    before.

    In quiet hours, the reservation is for a job that may start. The reservation is renewed for that
    time, and protected allocations are kept out of preemption. Neither changes `state`.
    """
    kept = {
        allocation.allocation_id: allocation.group
        for allocation in state.protected
        if now_ms < allocation.until_ms
    }
    jobs = tuple(keep_allocations(contents.jobs, kept)) if kept else contents.jobs
    period = period_at(settings.quiet_periods, now_ms)
    startable = jobs if period is None else tuple(startable_jobs(jobs, period))
    reservation = renew_reservation(
        startable,
        contents.agents,
        settings.scheduler,
        state.reservation,
        after_ms=settings.reserve_after_ms,
        now_ms=now_ms,
        started=state.started,
        last_slots=state.reserved_slots,
    )
    return PoolView(jobs, contents.agents, startable, reservation)


def expire_protections(state: PoolState, context: StepContext) -> PoolState:
    """Remove expired protections from preemption. Shorten protections that last too long.

    If a protection was removed or shortened, the fold ends with a pass of the scheduler. Otherwise
    return `state` itself.
    """
    after = _remove_expired(state, context)
    return state if after is state else evolve(after, needs_scheduling=True, settings_changed=True)


def _remove_expired(state: PoolState, context: StepContext) -> PoolState:
    """Remove expired protections from preemption. Shorten protections that last too long.

    A protection too far in the future was written by a host with a wrong clock. After the
    shortening, a timer is set for the new end. Return `state` itself if nothing changes.
    """
    now_ms = context.now_ms
    kept = tuple(allocation for allocation in state.protected if now_ms < allocation.until_ms)
    longest_ms = settings_of(context).reserve_after_ms or 0
    if any(is_from_future(allocation.until_ms, now_ms, longest_ms) for allocation in kept):
        until_ms = now_ms + longest_ms
        context.set_timer(until_ms, SchedulingContinued())
        kept = tuple(
            replace(allocation, until_ms=min(allocation.until_ms, until_ms)) for allocation in kept
        )
    return state if kept == state.protected else evolve(state, protected=kept)


def _record_reservation(
    state: PoolState, reservation: Reservation | None, context: StepContext
) -> PoolState:
    """Return the head with the reservation. A new reservation becomes a reason of the journal."""
    if reservation is not None and reservation != state.reservation:
        context.add_reason(_reservation_text(reservation))
    reserved_slots = reservation.slots if reservation else state.reserved_slots
    return evolve(state, reservation=reservation, reserved_slots=reserved_slots)


def _reservation_text(reservation: Reservation) -> str:
    """Return the sentence for the journal about a new reservation: slots, agents and job."""
    slots, agents = count_text(reservation.slots, "slot"), ", ".join(reservation.agents)
    return f"{slots} of {agents} are held for job {reservation.group}, which has waited too long"


def _closed_reason(name: str, settings: PoolSettings) -> str:
    """Return why nothing may start in the pool: the pool is draining, or the budget is used up.

    Return "" if allocations may start.
    """
    if settings.draining:
        return f"waits: pool {name} is draining, so nothing starts in it"
    if settings.over_budget:
        return f"waits: the budget of pool {name} is used up, so nothing starts in it"
    return ""


def _place_count(decision: AllocationStart | Victim) -> int:
    """Return the number of agents that a start or preemption concerns."""
    return len(
        decision.placements
        if isinstance(decision, AllocationStart)
        else decision.allocation.placements
    )


def _apply_decision(
    state: PoolState, decision: AllocationStart | Victim, context: StepContext
) -> PoolState:
    """Apply a start or a preemption of the plan, and return the state."""
    if isinstance(decision, AllocationStart):
        return _start_allocation(state, decision, context)
    _preempt_allocation(decision, context)
    return state


def _preempt_allocation(victim: Victim, context: StepContext) -> None:
    """Send the trial of an allocation a PreemptionRequested, and mark the allocation as leaving.

    So are the other allocations on a shared slot. An allocation that was asked before is skipped.
    """
    name, holding = victim.allocation.placements[0].agent, victim.allocation
    agent = agents_of(context).get(name)
    if agent is None or holding.allocation_id not in agent.parts:
        return
    for allocation in agent.sharers(holding.allocation_id):
        if mark_leaving(name, allocation, context):
            trial_id, epoch = parse_allocation(allocation)
            context.send(addresses.trial(trial_id), PreemptionRequested(epoch, victim.reason))
            context.add_reason(f"{allocation} is preempted: {victim.reason}")


def _start_allocation(state: PoolState, start: AllocationStart, context: StepContext) -> PoolState:
    """Start an allocation on the agents of the plan, and return the updated head.

    The trial gets a SlotsAssigned, and each agent an AllocationPlaced. If the job had the
    reservation for such a request, the reservation ends. If a slot is no longer free, only a reason
    is recorded.
    """
    request, agents = start.request, agents_of(context)
    chosen = [(place, agents.get(place.agent)) for place in start.placements]
    if not all(_has_room(agent, place.slots) for place, agent in chosen):
        names = ", ".join(place.agent for place, _ in chosen)
        context.add_reason(f"{request.allocation_id} does not start on {names}")
        return state
    places = tuple(
        Place(place.agent, agent.free_slots[: place.slots]) for place, agent in chosen if agent
    )
    state = _assign_slots(state, request, places, request.slots, context)
    reservation = state.reservation
    if reservation is None:
        return state
    if (reservation.group, reservation.slots) != (request.group, request.slots):
        return state
    return _protect_allocation(state, request, context)


def _start_sharers(
    state: PoolState, jobs: Sequence[Job], context: StepContext
) -> tuple[PoolState, bool]:
    """Start requests on slots that jobs hold already.

    Return the updated head, and whether the commit was full before all these requests started.

    Args:
        jobs: the jobs that may start requests.
    """
    for number, start in enumerate(plan_shared_starts(context, jobs)):
        if len(context.parts) + PARTS_OF_ONE + 1 > PARTS_MAX or number == STARTS_MAX:
            return state, True
        place = Place(start.agent, (start.slot,))
        state = _assign_slots(state, start.request, (place,), 0, context)
    return state, False


def _assign_slots(
    state: PoolState,
    request: AllocationRequest,
    places: Sequence[Place],
    held_slots: int,
    context: StepContext,
) -> PoolState:
    """Start the allocation of a request on slots, and return the updated head.

    The agents of the places must exist. The trial gets a SlotsAssigned, and each agent an
    AllocationPlaced.

    Args:
        places: the slots on each agent, in the order of ranks.
        held_slots: the slots that no other allocation of the job holds.
    """
    agents, allocation = agents_of(context), request.allocation_id
    trial_id, epoch = parse_allocation(allocation)
    number = state.started + 1
    spread = tuple(Placement(place.agent, len(place.slots)) for place in places)
    for rank, place in enumerate(places):
        before = agents.get(place.agent)
        assert before is not None
        others = spread if len(places) > 1 else ()
        part = AllocationPart(place.slots, request.group, number, rank=rank, places=others)
        after = before.with_allocation(allocation, part)
        agents.put(place.agent, after)
        state = update_totals(state, before, after)
        placed = AllocationPlaced(trial_id, epoch, place.slots, rank, len(places))
        context.send(addresses.agent(place.agent), placed)
    job_queue_of(context).start_request(request, held_slots)
    context.send(addresses.trial(trial_id), SlotsAssigned(epoch, tuple(places)))
    return evolve(state, queued=state.queued - 1, started=number)


def _protect_allocation(
    state: PoolState, request: AllocationRequest, context: StepContext
) -> PoolState:
    """End the reservation of a started allocation, and return the updated head.

    In a fair share with reservations, the allocation is protected from preemption for
    `reserve_after_ms`, because such an allocation usually exceeds its job's share. A
    SchedulingContinued timer ends the protection. Only the last PROTECTED_MAX protections are kept.
    """
    settings = settings_of(context)
    state = evolve(state, reservation=None)
    if settings.scheduler.kind != "fair_share" or not settings.reserve_after_ms:
        return state
    until_ms = context.now_ms + settings.reserve_after_ms
    context.set_timer(until_ms, SchedulingContinued())
    protected = ProtectedAllocation(request.allocation_id, request.group, until_ms)
    return evolve(state, protected=(*state.protected, protected)[-PROTECTED_MAX:])


def _has_room(agent: AgentSlots | None, slots: int) -> bool:
    """Return whether the agent accepts work and has at least `slots` free slots. Return False for
    None.
    """
    return agent is not None and agent.availability.enabled and agent.free_count >= slots
