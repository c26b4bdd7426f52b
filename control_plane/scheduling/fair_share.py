"""Fair share: every job gets its part of the slots, by weight, and gives back what is more.

The rules are those of the original's version 0.19: pending requests count on a full cluster too,
so that it is shared anew when a job comes. Left out is only what can never fit.
"""

from collections.abc import Iterator, Sequence
from heapq import merge

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request, Victim
from control_plane.scheduling.outcome import Outcome
from control_plane.scheduling.placing import Placing
from control_plane.scheduling.shares import Claim, offer
from control_plane.scheduling.sizes import counted


def plan(jobs: Sequence[Job], fleet: Fleet, starts_max: int) -> Outcome:
    """Starts what fits into the shares and takes back what exceeds them.

    Whether a request fits is first asked of the agents as they are, whatever is chosen beside it;
    what then finds no place stays behind for the next plan.
    """
    placing = Placing(fleet, starts_max)
    _start_beside_slots(jobs, placing)
    by_group = {job.group: job for job in jobs}
    claims = offer(list(_claims(jobs, fleet)), fleet.capacity)
    offered = {claim.group: claim.offered for claim in claims}
    victims: list[Victim] = []
    for claim in claims:
        job = by_group[claim.group]
        if job.held_slots > claim.offered:
            reason = _share(claim.offered, fleet)
            victims.extend(_released(job, job.held_slots - claim.offered, reason))
        elif job.held_slots < claim.offered and not placing.is_full:
            _start(job, claim.offered - job.held_slots, placing)

    def why(job: Job, request: Request, started_slots: int) -> str:
        share = offered.get(job.group, 0)
        exceeds = share < job.held_slots + started_slots + request.slots
        return _share(share, fleet) if exceeds and request.slots else ""

    order = [by_group[claim.group] for claim in claims]
    rest = (job for job in jobs if job.pending_slots and job.group not in offered)
    order += sorted(rest, key=lambda job: (job.submitted_ms, job.group))
    return Outcome(placing.starts, victims, order, fleet, why)


def _start_beside_slots(jobs: Sequence[Job], placing: Placing) -> None:
    """First in, first out, whatever the shares."""
    asking = [_without_slots(job) for job in jobs if job.pending_slots.get(0)]
    for request in merge(*asking, key=lambda request: request.ticket):
        if placing.is_full or not placing.place(request):
            return


def _without_slots(job: Job) -> Iterator[Request]:
    return (request for request in job.pending if request.slots == 0)


def _claims(jobs: Sequence[Job], fleet: Fleet) -> Iterator[Claim]:
    """What each job that has or wants slots may ask for."""
    for job in jobs:
        demand, smallest, single_agent = job.held_slots, None, job.single_agent
        for slots, count in job.pending_slots.items():
            if slots and fleet.is_possible(slots, single_agent):
                demand += slots * count
                if smallest is None or slots < smallest:
                    smallest = slots
        if demand:
            registered = (job.submitted_ms, job.group)
            if job.max_slots is not None:
                demand = min(demand, job.max_slots)
            yield Claim(job.group, registered, demand, job.weight, job.fixed_slots, smallest)


def _released(job: Job, excess: int, reason: str) -> Iterator[Victim]:
    """The oldest of what can be taken back, beside what leaves already."""
    excess -= job.leaving_slots
    if excess <= 0:
        return
    for holding in sorted(job.holdings, key=lambda holding: holding.start):
        if holding.slots and holding.preemptible and not holding.leaving:
            yield Victim(holding, reason)
            excess -= holding.slots
            if excess <= 0:
                return


def _start(job: Job, budget: int, placing: Placing) -> None:
    for request in job.pending if placing.may_start(job, budget) else ():
        fits = placing.fleet.fitted(request.slots, request.single_agent)
        if 0 < request.slots <= budget and fits:
            budget -= request.slots
            placing.place(request)
            if not budget or placing.is_full or not placing.may_start(job, budget):
                return


def _share(share: int, fleet: Fleet) -> str:
    return f"its share is {share} of {counted(fleet.capacity)}"
