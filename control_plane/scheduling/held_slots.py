"""Plans of a pool in which slots are held for a job that has waited too long.

That job starts as soon as it fits, before those of its rank. Until then others get only the slots
that it does not need. Fair share, which may take slots back, lends the held ones until all that ran
before the reservation has left them; then the borrowers are preempted.
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

# A scheduler of the jobs and agents of one label that starts so many requests at most.
Scheduler = Callable[[Sequence[Job], Sequence[AgentCapacity], int], SchedulingResult]


def plan_with_reservation(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    reservation: Reservation,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Plan the jobs of one label with `scheduler` while slots are held."""
    holder = next((job for job in jobs if job.group == reservation.group), None)
    request = None if holder is None else _reserved_request(holder, reservation)
    if holder is None or request is None:
        return scheduler(jobs, agents, starts_max)
    held = _ReservedRequest(reservation, holder, request)
    higher = [job for job in jobs if rules.kind == "priority" and job.priority < holder.priority]
    if not higher:
        return _plan_rest(jobs, agents, rules, starts_max, held, scheduler)
    before = scheduler(higher, agents, starts_max)
    if len(before.starts) == starts_max or before.policy_reason(holder, request, 0):
        # More important jobs wait, so that nothing else starts.
        return scheduler(jobs, agents, starts_max)
    rest = _plan_rest(
        [job for job in jobs if job.priority >= holder.priority],
        list(_agents_after(agents, before.starts)),
        rules,
        starts_max - len(before.starts),
        held,
        scheduler,
    )
    return replace(
        rest,
        starts=[*before.starts, *rest.starts],
        victims=[*before.victims, *rest.victims],
        order=[*before.order, *rest.order],
    )


@dataclass(frozen=True, slots=True)
class _ReservedRequest:
    """A reservation, its job, and the request that it is for."""

    reservation: Reservation
    job: Job
    request: AllocationRequest


def _reserved_request(job: Job, reservation: Reservation) -> AllocationRequest | None:
    """The request that the slots are held for; None if it has gone, or has slots by now."""
    if job.held_slots or reservation.slots not in job.pending_slots:
        return None
    return next((one for one in job.pending if one.slots == reservation.slots), None)


def _plan_rest(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    rules: SchedulerRules,
    starts_max: int,
    held: _ReservedRequest,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Plan the job that slots are held for, and those that do not come before it."""
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
    """Places for the request that it may have now: any, else the held ones if those are free."""
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
    """Plan without the free slots that are held. Those of an agent that the job does not need are
    for what started after number `first`: all else is to leave before the job starts.
    """
    reservation, ready, hidden = held.reservation, 0, 0
    later = [one for one in _occupants(jobs, reservation) if one.start > first]
    shown = []
    for agent in agents:
        if agent.agent in reservation.agents:
            wanted = reservation.wanted_slots(agent)
            spare = agent.total - wanted - sum(_slots_on(agent.agent, one) for one in later)
            left = max(0, min(agent.free, spare))
            ready += min(agent.free - left, wanted)
            hidden += agent.free - left
            agent = replace(agent, free=left)
        shown.append(agent)
    outcome = scheduler(jobs, shown, starts_max)
    return replace(outcome, held=HeldSlots(reservation.group, reservation.slots, ready, hidden))


def _plan_lending(
    jobs: Sequence[Job],
    agents: Sequence[AgentCapacity],
    starts_max: int,
    held: _ReservedRequest,
    scheduler: Scheduler,
) -> SchedulingResult:
    """Lend the held slots until nothing else keeps the job from them; then take them back."""
    reservation = held.reservation
    lent: list[RunningAllocation] = []
    in_the_way: list[RunningAllocation] = []
    for one in _occupants(jobs, reservation):
        borrows = one.start > reservation.started and one.preemptible
        (lent if borrows else in_the_way).append(one)
    lacking = {
        agent.agent: _slots_lacking(agent, reservation, in_the_way)
        for agent in agents
        if agent.agent in reservation.agents
    }
    ready = reservation.slots - sum(lacking.values())
    if ready < reservation.slots:
        outcome = scheduler(jobs, agents, starts_max)
        return replace(outcome, held=HeldSlots(reservation.group, reservation.slots, ready, 0))
    going = _choose_borrowers(agents, reservation, lent)
    names = {one.allocation_id for one in going}
    leaving = [_job_with_leaving(job, names) for job in jobs]
    outcome = _plan_holding(leaving, agents, starts_max, held, scheduler, -1)
    reason = f"to make room for {held.request.allocation_id} of job {held.request.group}"
    original = {job.group: job for job in jobs}
    return replace(
        outcome,
        victims=[*outcome.victims, *(Victim(one, reason) for one in going)],
        order=[original[job.group] for job in outcome.order],
    )


def _occupants(jobs: Iterable[Job], reservation: Reservation) -> Iterator[RunningAllocation]:
    """The running allocations with slots of the held agents."""
    agents = {*reservation.agents}
    for job in jobs:
        for running in job.allocations if job.held_slots else ():
            if any(place.slots and place.agent in agents for place in running.placements):
                yield running


def _slots_lacking(
    agent: AgentCapacity, reservation: Reservation, in_the_way: Iterable[RunningAllocation]
) -> int:
    """The slots of an agent that the job needs and others do not give up for it."""
    used = sum(_slots_on(agent.agent, running) for running in in_the_way)
    return max(0, reservation.wanted_slots(agent) - (agent.total - used))


def _choose_borrowers(
    agents: Iterable[AgentCapacity], reservation: Reservation, lent: Sequence[RunningAllocation]
) -> list[RunningAllocation]:
    """The borrowers to ask to leave, the youngest first: as many as there have to."""
    missing = {
        agent.agent: reservation.wanted_slots(agent)
        - agent.free
        - sum(_slots_on(agent.agent, one) for one in lent if one.leaving)
        for agent in agents
        if agent.agent in reservation.agents
    }
    going = []
    for running in sorted(lent, key=lambda one: one.start, reverse=True):
        places = [place for place in running.placements if missing.get(place.agent, 0) > 0]
        if places and not running.leaving:
            going.append(running)
            for place in places:
                missing[place.agent] -= place.slots
    return going


def _slots_on(agent: str, running: RunningAllocation) -> int:
    return sum(place.slots for place in running.placements if place.agent == agent)


def _job_once_started(job: Job, request: AllocationRequest) -> Job:
    """The job once the request has its slots, which nobody may take back immediately."""
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
    """The requests of a job but one, read while they are iterated."""

    job: Job
    allocation_id: str

    def __iter__(self) -> Iterator[AllocationRequest]:
        return (one for one in self.job.pending if one.allocation_id != self.allocation_id)


def _job_with_leaving(job: Job, names: set[str]) -> Job:
    """The job once those allocations have been asked to leave."""
    if not any(one.allocation_id in names for one in (job.allocations if job.held_slots else ())):
        return job
    allocations = tuple(
        replace(one, leaving=one.leaving or one.allocation_id in names) for one in job.allocations
    )
    leaving = sum(one.slots for one in allocations if one.leaving)
    return replace(job, allocations=allocations, leaving_slots=leaving)


def _agents_after(
    agents: Iterable[AgentCapacity], starts: Sequence[AllocationStart]
) -> Iterator[AgentCapacity]:
    """The agents once these have started."""
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
