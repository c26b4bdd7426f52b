"""The fair-share scheduler: every job gets its part of the slots, by weight, and gives back any
excess.

The rules are those of Determined 0.19: pending requests count on a full cluster too, so that shares
are computed anew when a job comes. Requests that can never fit are left out.
"""

from collections.abc import Iterator, Sequence
from heapq import merge

from control_plane.scheduling.fitting import AgentSet, RequestPlacer
from control_plane.scheduling.model import AllocationRequest, Job, Victim
from control_plane.scheduling.scheduling_result import SchedulingResult
from control_plane.scheduling.shares import ShareClaim, offer_shares
from control_plane.scheduling.sizes import slots_text


def plan(jobs: Sequence[Job], agent_set: AgentSet, starts_max: int) -> SchedulingResult:
    """Start what fits into the shares and preempt what exceeds them.

    Whether a request fits is first asked of the agents as they are, whatever else is planned; one
    that then finds no place stays pending until the next plan.
    """
    placer = RequestPlacer(agent_set, starts_max)
    _start_zero_slot_requests(jobs, placer)
    by_group = {job.group: job for job in jobs}
    claims = offer_shares(list(_share_claims(jobs, agent_set)), agent_set.total_slots)
    offered = {claim.group: claim.offered for claim in claims}
    victims: list[Victim] = []
    for claim in claims:
        job = by_group[claim.group]
        if job.held_slots > claim.offered:
            reason = _share_text(claim.offered, agent_set)
            victims.extend(_preempt_excess(job, job.held_slots - claim.offered, reason))
        elif job.held_slots < claim.offered and not placer.is_full:
            _start_requests(job, claim.offered - job.held_slots, placer)

    def policy_reason(job: Job, request: AllocationRequest, started_slots: int) -> str:
        share = offered.get(job.group, 0)
        exceeds = share < job.held_slots + started_slots + request.slots
        return _share_text(share, agent_set) if exceeds and request.slots else ""

    order = [by_group[claim.group] for claim in claims]
    rest = (job for job in jobs if job.pending_slots and job.group not in offered)
    order += sorted(rest, key=lambda job: (job.submitted_ms, job.group))
    return SchedulingResult(placer.starts, victims, order, agent_set, policy_reason)


def _start_zero_slot_requests(jobs: Sequence[Job], placer: RequestPlacer) -> None:
    """Start requests without slots: first in, first out, whatever the shares."""
    asking = [_zero_slot_requests(job) for job in jobs if job.pending_slots.get(0)]
    for request in merge(*asking, key=lambda request: request.ticket):
        if placer.is_full or not placer.place_request(request):
            return


def _zero_slot_requests(job: Job) -> Iterator[AllocationRequest]:
    return (request for request in job.pending if request.slots == 0)


def _share_claims(jobs: Sequence[Job], agent_set: AgentSet) -> Iterator[ShareClaim]:
    """The claims of all jobs that have or want slots."""
    for job in jobs:
        demand, smallest, single_agent = job.held_slots, None, job.single_agent
        for slots, count in job.pending_slots.items():
            if slots and agent_set.can_ever_fit(slots, single_agent):
                demand += slots * count
                if smallest is None or slots < smallest:
                    smallest = slots
        if demand:
            registered = (job.submitted_ms, job.group)
            if job.max_slots is not None:
                demand = min(demand, job.max_slots)
            yield ShareClaim(
                job.group, registered, demand, job.weight, job.non_preemptible_slots, smallest
            )


def _preempt_excess(job: Job, excess: int, reason: str) -> Iterator[Victim]:
    """Victims for so many slots, the oldest first; slots that are being released already count."""
    excess -= job.leaving_slots
    if excess <= 0:
        return
    for running in sorted(job.allocations, key=lambda running: running.start):
        if running.slots and running.preemptible and not running.leaving:
            yield Victim(running, reason)
            excess -= running.slots
            if excess <= 0:
                return


def _start_requests(job: Job, budget: int, placer: RequestPlacer) -> None:
    for request in job.pending if placer.can_start_any(job, budget) else ():
        fits = placer.agents.could_fit_initially(request.slots, request.single_agent)
        if 0 < request.slots <= budget and fits:
            budget -= request.slots
            placer.place_request(request)
            if not budget or placer.is_full or not placer.can_start_any(job, budget):
                return


def _share_text(share: int, agent_set: AgentSet) -> str:
    return f"its share is {share} of {slots_text(agent_set.total_slots)}"
