"""Plans of a pool while slots are held for a job that has waited too long.

The job starts as soon as it fits, before other jobs of its rank. Until then, other jobs may only
use slots that the job does not need.

A fair-share pool can preempt, so it lends the held slots. When all allocations from before the
reservation have released the held slots, the pool preempts the borrowers.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    AllocationStart,
    Job,
    Placement,
    RunningAllocation,
    SchedulerRules,
    Victim,
)
from control_plane.scheduling.reservations import Reservation
from control_plane.scheduling.scheduling_result import HeldSlots, SchedulingResult

Scheduler = Callable[[Sequence[Job], Sequence[AgentCapacity], int], SchedulingResult]
"""A scheduler of one label: jobs, agents and the maximum number of starts in, a result out."""


def plan_with_reservation(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    reservation: Reservation,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Plan the jobs of a label with `scheduler` while slots are reserved for a job.

    The reserved request starts first if free slots fit. Otherwise fair share lends the reserved
    slots to other jobs, and preempts these borrowers when nothing else blocks the reserved job.
    Other schedulers withhold the reserved slots. The result's `held` describes lent or withheld
    slots, and is otherwise None.

    In a priority pool, more important jobs are planned before the reservation's job. The plan
    ignores the reservation in each of these cases:

    - a more important job still waits, or these jobs use up the starts;
    - the reserved request no longer waits, or its job is not among `jobs`.
    """
    holder = next((job for job in jobs if job.group == reservation.group), None)
    request = None if holder is None else _reserved_request(holder, reservation)
    if holder is None or request is None:
        return scheduler(jobs, agents, starts_max)
    held = _ReservedRequest(reservation, holder, request)
    higher = [job for job in jobs if rules.kind == "priority" and job.priority < holder.priority]
    if not higher:
        return _plan_rest(jobs, agents, rules, starts_max, held, scheduler)
    first = scheduler(higher, agents, starts_max)
    if len(first.starts) == starts_max or first.policy_reason(holder, request, 0):
        # More important jobs still wait, so no job of this priority or a lower one may start.
        return scheduler(jobs, agents, starts_max)
    rest = _plan_rest(
        [job for job in jobs if job.priority >= holder.priority],
        list(_agents_after(agents, first.starts)),
        rules,
        starts_max - len(first.starts),
        held,
        scheduler,
    )
    return replace(
        rest,
        starts=[*first.starts, *rest.starts],
        victims=[*first.victims, *rest.victims],
        order=[*first.order, *rest.order],
    )


@dataclass(frozen=True, slots=True)
class _ReservedRequest:
    """A reservation together with the reserved job and request."""

    reservation: Reservation
    """The held agents."""
    job: Job
    """The job that the agents are held for."""
    request: AllocationRequest
    """The job's first pending request of the reserved size."""


def _reserved_request(job: Job, reservation: Reservation) -> AllocationRequest | None:
    """Return the job's first request of the reserved size.

    Return None if the job holds slots or has no request of that size any more.
    """
    if job.held_slots or reservation.slots not in job.pending_slots:
        return None
    return next((request for request in job.pending if request.slots == reservation.slots), None)


def _plan_rest(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    held: _ReservedRequest,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Plan the reservation's job and the jobs that are not more important.

    Start the reserved request if it fits and `starts_max` allows a start; then plan the rest after
    this start. Otherwise lend the held slots (fair share) or withhold them.
    """
    places = _find_places(agents, rules, held)
    if places and starts_max > 0:
        start = AllocationStart(held.request, places)
        started = _job_once_started(held.job, held.request)
        others = [started if job is held.job else job for job in jobs]
        rest = scheduler(others, list(_agents_after(agents, [start])), starts_max - 1)
        order = [held.job if job is started else job for job in rest.order]
        return replace(rest, starts=[start, *rest.starts], order=order)
    return (
        _plan_lending(jobs, agents, starts_max, held, scheduler)
        if rules.kind == "fair_share"
        else _plan_holding(jobs, agents, starts_max, held, scheduler, held.reservation.started)
    )


def _find_places(
    agents: Sequence[AgentCapacity], rules: SchedulerRules, held: _ReservedRequest
) -> tuple[Placement, ...]:
    """Return placements of the reserved request on free slots. Return () if the request does not
    fit.

    Try all agents first. Then try the reservation's agents alone. A gang may fit those agents even
    if the sizes of all agents lead to a combination that does not add up. No slots are taken.
    """
    reserved = [agent for agent in agents if agent.agent in held.reservation.agents]
    for among in (agents, reserved):
        agent_set = AgentSet(among, rules.fitting, rules.heterogeneous)
        if places := agent_set.find_placements(held.request):
            return places
    return ()


def _plan_holding(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    starts_max: int,
    held: _ReservedRequest,
    scheduler: Scheduler,
    first: int,
) -> SchedulingResult:
    """Plan with the free slots of the held agents withheld from other jobs.

    Slots that the reserved job does not need of a held agent stay available. Allocations with a
    start number above `first` count against them. Earlier allocations do not count, because they
    end before the reserved job starts. The result's `held` has the numbers of ready and withheld
    slots.

    Args:
        first: a start number. -1 counts all allocations.
    """
    reservation, ready, hidden = held.reservation, 0, 0
    later = [running for running in _occupants(jobs, reservation) if running.start > first]
    visible_agents = []
    for agent in agents:
        if agent.agent in reservation.agents:
            wanted = reservation.wanted_slots(agent)
            used_later = sum(_slots_on(agent.agent, running) for running in later)
            visible = max(0, min(agent.free, agent.total - wanted - used_later))
            ready += min(agent.free - visible, wanted)
            hidden += agent.free - visible
            agent = replace(agent, free=visible)
        visible_agents.append(agent)
    outcome = scheduler(jobs, visible_agents, starts_max)
    return replace(outcome, held=HeldSlots(reservation.group, reservation.slots, ready, hidden))


def _plan_lending(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    starts_max: int,
    held: _ReservedRequest,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Lend the held slots while other allocations block the reserved job, then take the slots back.

    An allocation on the held agents blocks the job if the allocation started before the reservation
    or cannot be preempted. The other allocations on the held agents are borrowers.

    - While allocations block the job, plan all jobs on all agents, as if no slots were held.
    - Otherwise add as many borrowers as the reserved job needs to the victims. Plan the other jobs
      without the free slots of the held agents; see `_plan_holding`.

    In both cases the result's `held` is set.
    """
    reservation = held.reservation
    borrowers: list[RunningAllocation] = []
    blockers: list[RunningAllocation] = []
    for running in _occupants(jobs, reservation):
        borrows = running.start > reservation.started and running.preemptible
        (borrowers if borrows else blockers).append(running)
    lacking = {
        agent.agent: _slots_lacking(agent, reservation, blockers)
        for agent in agents
        if agent.agent in reservation.agents
    }
    ready = reservation.slots - sum(lacking.values())
    if ready < reservation.slots:
        outcome = scheduler(jobs, agents, starts_max)
        return replace(outcome, held=HeldSlots(reservation.group, reservation.slots, ready, 0))
    chosen = _choose_borrowers(agents, reservation, borrowers)
    names = {running.allocation_id for running in chosen}
    jobs_after = [_job_with_leaving(job, names) for job in jobs]
    outcome = _plan_holding(jobs_after, agents, starts_max, held, scheduler, -1)
    reason = f"to make room for {held.request.allocation_id} of job {held.request.group}"
    original = {job.group: job for job in jobs}
    return replace(
        outcome,
        victims=[*outcome.victims, *(Victim(running, reason) for running in chosen)],
        order=[original[job.group] for job in outcome.order],
    )


def _occupants(jobs: Iterable[Job], reservation: Reservation) -> Iterator[RunningAllocation]:
    """Yield the running allocations that use slots of the held agents. Zero-slot allocations do not
    count.
    """
    agents = {*reservation.agents}
    for job in jobs:
        for running in job.allocations if job.held_slots else ():
            if any(place.slots and place.agent in agents for place in running.placements):
                yield running


def _slots_lacking(
    agent: AgentCapacity, reservation: Reservation, blockers: Iterable[RunningAllocation]
) -> int:
    """Return the slots of an agent that the reserved job needs and that blockers use. 0 if enough
    are left.
    """
    used = sum(_slots_on(agent.agent, running) for running in blockers)
    return max(0, reservation.wanted_slots(agent) - (agent.total - used))


def _choose_borrowers(
    agents: Iterable[AgentCapacity],
    reservation: Reservation,
    borrowers: Sequence[RunningAllocation],
) -> list[RunningAllocation]:
    """Choose the borrowers to preempt, the youngest first, until the reserved job has enough slots.

    Borrowers that are already stopping count as stopped and are not chosen. If the borrowers do not
    suffice, choose every borrower that holds a missing slot. Return an empty list if the free slots
    suffice.

    Args:
        agents: the agents of the label, before the plan.
    """
    missing = {
        agent.agent: reservation.wanted_slots(agent)
        - agent.free
        - sum(_slots_on(agent.agent, running) for running in borrowers if running.leaving)
        for agent in agents
        if agent.agent in reservation.agents
    }
    chosen = []
    for running in sorted(borrowers, key=lambda running: running.start, reverse=True):
        places = [place for place in running.placements if missing.get(place.agent, 0) > 0]
        if places and not running.leaving:
            chosen.append(running)
            for place in places:
                missing[place.agent] -= place.slots
    return chosen


def _slots_on(agent: str, running: RunningAllocation) -> int:
    """Return the slots that an allocation uses on an agent."""
    return sum(place.slots for place in running.placements if place.agent == agent)


def _job_once_started(job: Job, request: AllocationRequest) -> Job:
    """Return the job as after the start of the request, with changed totals.

    The new slots count as non-preemptible, so that this plan does not take them back. The request
    is no longer pending. The allocations stay unchanged.
    """
    waiting = dict(job.pending_slots)
    waiting[request.slots] -= 1
    return replace(
        job,
        pending=_PendingWithout(job, request.allocation_id),
        pending_slots={slots: count for slots, count in waiting.items() if count},
        held_slots=job.held_slots + request.slots,
        non_preemptible_slots=job.non_preemptible_slots + request.slots,
    )


@dataclass(frozen=True, slots=True)
class _PendingWithout:
    """The pending requests of a job except a single request, read lazily."""

    job: Job
    """The job with the requests."""
    allocation_id: str
    """The allocation id of the request that is left out."""

    def __iter__(self) -> Iterator[AllocationRequest]:
        return (
            request for request in self.job.pending if request.allocation_id != self.allocation_id
        )


def _job_with_leaving(job: Job, names: set[str]) -> Job:
    """Return the job with the named allocations marked as leaving, and `leaving_slots` recomputed.

    Return the job itself if no allocation of the job is named.

    Args:
        names: allocation ids.
    """
    current = job.allocations if job.held_slots else ()
    if not any(running.allocation_id in names for running in current):
        return job
    allocations = tuple(
        replace(running, leaving=running.leaving or running.allocation_id in names)
        for running in job.allocations
    )
    leaving_slots = sum(running.slots for running in allocations if running.leaving)
    return replace(job, allocations=allocations, leaving_slots=leaving_slots)


def _agents_after(
    agents: Iterable[AgentCapacity], starts: Sequence[AllocationStart]
) -> Iterator[AgentCapacity]:
    """Yield copies of the agents without the slots and auxiliary places that the starts take.

    An auxiliary place is room for an allocation without slots. Agents without starts are yielded
    unchanged, and starts on other agents are ignored.
    """
    taken: dict[str, list[int]] = {}
    for start in starts:
        for place in start.placements:
            taken.setdefault(place.agent, []).append(place.slots)
    for agent in agents:
        slots = taken.get(agent.agent, ())
        yield (
            replace(agent, free=agent.free - sum(slots), aux_free=agent.aux_free - slots.count(0))
            if slots
            else agent
        )
