"""The fair-share scheduler: every job gets its part of the slots, by weight, and gives back any
excess.

The rules are those of Determined 0.19: pending requests count on a full cluster too, so that shares
are computed again when a job comes. Requests that can never fit are left out.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from heapq import merge
from sys import maxsize
from typing import Any

from control_plane.scheduling.fitting import AgentSet, RequestPlacer
from control_plane.scheduling.model import AllocationRequest, Job, RunningAllocation, Victim
from control_plane.scheduling.scheduling_result import SchedulingResult, remaining_slots
from control_plane.scheduling.shares import ShareClaim, offer_shares
from control_plane.scheduling.sizes import slots_text


def plan(jobs: Sequence[Job], agent_set: AgentSet, starts_max: int) -> SchedulingResult:
    """Start what fits into the shares and preempt what exceeds them.

    Whether a request fits is first asked of the agents as they are, whatever else is planned; one
    that then finds no place stays pending until the next plan. Slots that would stay idle, since
    the trials that they are offered to are larger than what is left, are lent to smaller trials.
    """
    placer = RequestPlacer(agent_set, starts_max)
    _start_zero_slot_requests(jobs, placer)
    by_group = {job.group: job for job in jobs}
    claims = offer_shares(list(_share_claims(jobs, agent_set)), agent_set.total_slots)
    offered = {claim.group: claim.offered for claim in claims}
    for claim in claims:
        job = by_group[claim.group]
        if job.held_slots < claim.offered and not placer.is_full:
            _start_requests(job, claim.offered - job.held_slots, placer)
    sharing = [by_group[claim.group] for claim in claims]
    victims = _choose_victims(sharing, offered, placer)
    if not victims and not any(job.leaving_slots for job in sharing):
        _lend_idle_slots(sharing, placer)

    def policy_reason(job: Job, request: AllocationRequest, started_slots: int) -> str:
        share = offered.get(job.group, 0)
        exceeds = share < job.held_slots + started_slots + request.slots
        return _share_text(share, agent_set) if exceeds and request.slots else ""

    order = [by_group[claim.group] for claim in claims]
    rest = (job for job in jobs if job.pending_slots and job.group not in offered)
    order += sorted(rest, key=lambda job: (job.submitted_ms, job.group))
    return SchedulingResult(placer.starts, victims, order, agent_set, policy_reason)


def _start_zero_slot_requests(jobs: Sequence[Job], placer: RequestPlacer) -> None:
    """Start requests without slots in the order of submission, regardless of shares."""
    asking = [_zero_slot_requests(job) for job in jobs if job.pending_slots.get(0)]
    for request in merge(*asking, key=lambda request: request.ticket):
        if placer.is_full or not placer.place_request(request):
            return


def _zero_slot_requests(job: Job) -> Iterator[AllocationRequest]:
    return (request for request in job.pending if request.slots == 0)


def _share_claims(jobs: Iterable[Job], agent_set: AgentSet) -> Iterator[ShareClaim]:
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


def _choose_victims(
    jobs: Sequence[Job], offered: Mapping[int, int], placer: RequestPlacer
) -> list[Victim]:
    """Preempt what exceeds a share: the oldest, or what makes room on fewer agents where they make
    none. What nobody could use stays, or it would be idle and lent to the same job again.
    """
    exceeding = [job for job in jobs if job.held_slots - job.leaving_slots > offered[job.group]]
    if not exceeding:
        return []
    need = _UnmetShares(jobs, offered, placer)
    for order_key in (_start_number, _agents_with_most_slots(exceeding)):
        victims = [
            victim
            for job in exceeding
            for victim in _preempt_excess(
                job, offered, placer, _start_number if _is_over_limit(job) else order_key
            )
        ]
        if need.can_use(victims) and _starts_other_trials(jobs, victims, placer):
            return victims
    return [
        victim
        for job in exceeding
        if _is_over_limit(job)
        for victim in _preempt_excess(job, offered, placer, _start_number)
    ]


def _starts_other_trials(
    jobs: Sequence[Job], victims: Sequence[Victim], placer: RequestPlacer
) -> bool:
    """Whether the shares would start other trials than the victims, once these have left and wait
    again.

    Offers depend on which trials run and which wait. If only the victims would start again, they
    would be preempted and started for ever.
    """
    going = [victim.allocation for victim in victims]
    for job in jobs if any(job.leaving_slots for job in jobs) else ():
        going += [running for running in job.allocations if running.leaving and running.slots]
    agents = placer.agents.copy()
    for running in going:
        if not agents.release_placements(running.placements):
            # The slots of an agent that drains go with it, so that the shares change.
            return True
    agents = agents.as_found()
    later = {job.group: _job_without(job, going, placer) for job in jobs}
    after = RequestPlacer(agents, maxsize)
    for claim in offer_shares(list(_share_claims(later.values(), agents)), agents.total_slots):
        job = later[claim.group]
        if job.held_slots < claim.offered:
            _start_requests(job, claim.offered - job.held_slots, after)
    came = Counter((start.request.group, start.request.slots) for start in after.starts)
    return bool(came - Counter((running.group, running.slots) for running in going))


def _job_without(job: Job, going: Iterable[RunningAllocation], placer: RequestPlacer) -> Job:
    """The job once what starts now runs, and what goes waits again behind the others."""
    gone = [running for running in going if running.group == job.group]
    starts = [start.request for start in placer.starts if start.request.group == job.group]
    started = {request.allocation_id: request.slots for request in starts}
    fixed = sum(request.slots for request in starts if not request.preemptible)
    fixed -= sum(running.slots for running in gone if not running.preemptible)
    waiting = Counter(job.pending_slots)
    waiting.subtract(started.values())
    waiting.update(running.slots for running in gone)
    return replace(
        job,
        pending=_PendingLater(job, started, gone),
        allocations=(),
        pending_slots={slots: count for slots, count in waiting.items() if count > 0},
        held_slots=job.held_slots + sum(started.values()) - sum(running.slots for running in gone),
        non_preemptible_slots=job.non_preemptible_slots + fixed,
        leaving_slots=0,
    )


class _PendingLater:
    """The requests of a job that do not start now, then those of its victims; read lazily."""

    def __init__(
        self, job: Job, started: Container[str], gone: Sequence[RunningAllocation]
    ) -> None:
        self._job, self._started, self._gone = job, started, gone

    def __iter__(self) -> Iterator[AllocationRequest]:
        yield from (one for one in self._job.pending if one.allocation_id not in self._started)
        for running in self._gone:
            yield AllocationRequest(
                running.allocation_id,
                running.slots,
                group=running.group,
                label=self._job.label,
                single_agent=self._job.single_agent,
            )


def _is_over_limit(job: Job) -> bool:
    """Whether the job has more than its max_slots, so that it gives back in any case."""
    return job.max_slots is not None and job.held_slots - job.leaving_slots > job.max_slots


def _preempt_excess(
    job: Job,
    offered: Mapping[int, int],
    placer: RequestPlacer,
    order_key: Callable[[RunningAllocation], Any],
) -> Iterator[Victim]:
    """Victims for the slots beyond a share; slots that are being released already count."""
    share = offered[job.group]
    excess = job.held_slots - job.leaving_slots - share
    for running in sorted(job.allocations, key=order_key):
        if excess <= 0:
            return
        if running.slots and running.preemptible and not running.leaving:
            yield Victim(running, _share_text(share, placer.agents))
            excess -= running.slots


def _start_number(running: RunningAllocation) -> int:
    return running.start


def _agents_with_most_slots(
    jobs: Iterable[Job],
) -> Callable[[RunningAllocation], tuple[int, str, int]]:
    """A sort key of allocations: those on the agents where the jobs hold most come first."""
    held: Counter[str] = Counter()
    for job in jobs:
        for running in job.allocations:
            for place in running.placements:
                held[place.agent] += place.slots
    return lambda running: min(
        (-held[place.agent], place.agent, running.start) for place in running.placements
    )


class _UnmetShares:
    """The requests within shares that find no place, even once what leaves already is gone."""

    def __init__(
        self, jobs: Sequence[Job], offered: Mapping[int, int], placer: RequestPlacer
    ) -> None:
        self._agents = placer.agents.copy()
        self._sizes: set[tuple[int, bool]] = set()
        for job in jobs:
            for running in job.allocations if job.leaving_slots else ():
                if running.leaving:
                    self._agents.release_placements(running.placements)
        self._started_of: dict[int, list[AllocationRequest]] = defaultdict(list)
        for start in placer.starts:
            self._started_of[start.request.group].append(start.request)
        started = {start.request.allocation_id for start in placer.starts}
        given = _started_slots(placer)
        for job in jobs:
            staying = job.held_slots - job.leaving_slots + given[job.group]
            budget = offered[job.group] - staying
            if any(0 < slots <= budget for slots in job.pending_slots):
                self._serve_within(job, budget, started)

    def can_use(self, victims: Iterable[Victim]) -> bool:
        """Whether any of them would start once the victims are gone. The slots of an agent that
        drains go with it, so that the shares change.
        """
        after = self._agents.copy()
        drains = False
        for victim in victims:
            drains |= not after.release_placements(victim.allocation.placements)
        return drains or any(after.can_fit_now(*size) for size in self._sizes)

    def _serve_within(self, job: Job, budget: int, started: Container[str]) -> None:
        """Place what the job may have. Its requests are read only while one of them fits."""
        waiting = Counter(job.pending_slots)
        waiting.subtract(one.slots for one in self._started_of[job.group])
        line = (one for one in job.pending if one.allocation_id not in started)
        while True:
            sizes = {slots for slots, count in waiting.items() if count > 0 and 0 < slots <= budget}
            if not any(self._agents.can_fit_now(slots, job.single_agent) for slots in sizes):
                self._sizes |= {(slots, job.single_agent) for slots in sizes}
                return
            request = next(line, None)
            if request is None:
                return
            if request.slots in sizes:
                if self._agents.place_request(request):
                    budget -= request.slots
                else:
                    self._sizes.add((request.slots, job.single_agent))
            waiting[request.slots] -= 1


def _lend_idle_slots(order: Iterable[Job], placer: RequestPlacer) -> None:
    """Start what fits beyond the shares, one request of each job in turn."""
    started = {start.request.allocation_id for start in placer.starts}
    given = _started_slots(placer)
    turns = [
        _RequestsBeyondShare(job, (r for r in job.pending if r.allocation_id not in started), given)
        for job in order
        if placer.can_start_any(job, maxsize)
    ]
    while turns:
        turns = [turn for turn in turns if turn.start_next(placer)]


class _RequestsBeyondShare:
    """A job's requests that wait beyond its share."""

    def __init__(
        self, job: Job, line: Iterator[AllocationRequest], given: Mapping[int, int]
    ) -> None:
        room = remaining_slots(job)
        self._job, self._line = job, line
        self._room = maxsize if room is None else room - given[job.group]

    def start_next(self, placer: RequestPlacer) -> bool:
        """Start the next request that fits; False: there is none."""
        while not placer.is_full and placer.can_start_any(self._job, self._room):
            request = next(self._line, None)
            if request is None:
                return False
            if 0 < request.slots <= self._room and placer.place_request(request):
                self._room -= request.slots
                return True
        return False


def _started_slots(placer: RequestPlacer) -> Counter[int]:
    """The slots that each job has been given in this plan."""
    given = Counter[int]()
    for start in placer.starts:
        given[start.request.group] += start.request.slots
    return given


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
