"""The fair-share scheduler: each job gets a share of the slots by weight.

Jobs return slots beyond their shares if other requests can use the slots. The rules are those of
Determined 0.19. Pending requests count even on a full cluster, so that shares change when a job
arrives. Requests that the agents can never fit do not count.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from heapq import merge
from sys import maxsize
from typing import Any, TypeVar

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.job_after_stops import job_after_stops
from control_plane.scheduling.model import (
    AllocationRequest,
    Job,
    RequestSize,
    RunningAllocation,
    Victim,
)
from control_plane.scheduling.request_placer import RequestPlacer
from control_plane.scheduling.scheduling_result import SchedulingResult, remaining_slots
from control_plane.scheduling.shares import ShareClaim, offer_shares
from detcloud.shared.plurals import count_text

_Item = TypeVar("_Item", AllocationRequest, RunningAllocation)


def plan(jobs: Sequence[Job], agent_set: AgentSet, starts_max: int) -> SchedulingResult:
    """Start requests within the shares and preempt allocations beyond the shares.

    The slots of starts are taken in `agent_set`. The freed slots of victims are not used by this
    plan. A request counts against its job's share if the request would fit the agents before any
    start of this plan. If earlier starts leave no room for the request, it stays pending until the
    next plan. If nothing is preempted or stopping, idle slots are lent to requests beyond the
    shares.

    Zero-slot requests start first, regardless of shares. The result has the jobs with a share,
    small demands first, and then the jobs with only impossible or zero-slot requests.

    Args:
        starts_max: the maximum number of starts.
    """
    placer = RequestPlacer(agent_set, starts_max)
    _start_zero_slot_requests(jobs, placer)
    by_group = {job.group: job for job in jobs}
    claims = offer_shares(list(_share_claims(jobs, agent_set)), agent_set.sizes.total_slots)
    offered = {claim.group: claim.offered for claim in claims}
    for claim in claims:
        job = by_group[claim.group]
        if job.held_slots < claim.offered and not placer.is_full:
            _start_requests(job, claim.offered - job.held_slots, placer)
    sharing = [by_group[claim.group] for claim in claims]
    victims = _choose_victims(sharing, claims, offered, placer)
    if not victims and not any(job.leaving_slots for job in sharing):
        _lend_idle_slots(sharing, placer)

    def policy_reason(job: Job, request: AllocationRequest, started_slots: int) -> str:
        """Return the share of a job as a reason to wait, or "" for a request within the share.

        Zero-slot requests never wait for a share.
        """
        share = offered.get(job.group, 0)
        exceeds = share < job.held_slots + started_slots + request.slots
        return _share_text(share, agent_set) if exceeds and request.slots else ""

    order = [by_group[claim.group] for claim in claims]
    without_claim = (job for job in jobs if job.pending_slots and job.group not in offered)
    order += sorted(without_claim, key=lambda job: (job.submitted_ms, job.group))
    return SchedulingResult(placer.starts, victims, order, agent_set, policy_reason)


def _start_zero_slot_requests(jobs: Sequence[Job], placer: RequestPlacer) -> None:
    """Start zero-slot requests in the order of tickets, regardless of shares.

    Stop at the first request without a free auxiliary place (room for an allocation without slots),
    and at the maximum number of starts.
    """
    per_job = [_zero_slot_requests(job) for job in jobs if job.pending_slots.get(0)]
    for request in merge(*per_job, key=lambda request: request.ticket):
        if placer.is_full or not placer.place_request(request):
            return


def _zero_slot_requests(job: Job) -> Iterator[AllocationRequest]:
    return (request for request in job.pending if request.slots == 0)


def _share_claims(jobs: Iterable[Job], agent_set: AgentSet) -> Iterator[ShareClaim]:
    """Yield the claims of all jobs that hold or request slots.

    Requests that the agents can never fit do not count, nor does demand beyond `max_slots` or the
    slots of the agents that meet the job's needs. Jobs without demand are left out.
    """
    for job in jobs:
        demand, smallest = job.held_slots, None
        for slots, count in job.pending_slots.items():
            if slots and agent_set.sizes.can_ever_fit(*job.size_of(slots)):
                demand += slots * count
                if smallest is None or slots < smallest:
                    smallest = slots
        if demand:
            registered = (job.submitted_ms, job.group)
            demand -= _impossible_slots(job, agent_set)
            if job.max_slots is not None:
                demand = min(demand, job.max_slots)
            if job.refused_kinds:
                able_slots = agent_set.sizes.slots_of_others(job.refused_kinds)
                demand = min(demand, max(job.held_slots, able_slots))
            yield ShareClaim(
                job.group, registered, demand, job.weight, job.non_preemptible_slots, smallest
            )


def _impossible_slots(job: Job, agent_set: AgentSet) -> int:
    """Return the slots of the job's requests that only excluded agents could run.

    Sizes that no agent can run do not count. A job without exclusions reads no request.
    """
    requests = job.pending if job.excluding else ()
    return sum(
        request.slots
        for request in requests
        if request.excluded_agents
        and agent_set.sizes.can_ever_fit(*request.size)
        and not agent_set.sizes.can_ever_fit(*request.size, request.excluded_agents)
    )


def _choose_victims(
    jobs: Sequence[Job],
    claims: Sequence[ShareClaim],
    offered: Mapping[int, int],
    placer: RequestPlacer,
) -> list[Victim]:
    """Choose allocations beyond the shares of jobs to preempt, if other requests can use the slots.

    1. Try the oldest allocations of each job.
    2. If their slots serve no request, or only the victims would start again, try allocations on
       the agents where these jobs hold most slots.
    3. If a request excludes agents or needs other kinds of agents, try allocations on the agents
       that the request may use.
    4. Otherwise choose no victims: idle slots would only be lent to the same jobs again.

    Jobs beyond `max_slots` give back slots in any case. Return an empty list if no job exceeds its
    share. The offers of `claims` may change.

    Args:
        jobs: the jobs with a share.
        claims: the claims of the jobs.
        offered: the share of each job, by experiment id.
        placer: the starts of the plan so far.
    """
    exceeding = [job for job in jobs if job.held_slots - job.leaving_slots > offered[job.group]]
    if not exceeding:
        return []
    unmet = _UnmetShares(jobs, offered, placer)
    order_keys = [_start_number, _agents_with_most_slots(exceeding)]
    order_keys += (_other_agents_first(avoided) for avoided in unmet.avoided_agents())
    for order_key in order_keys:
        victims = [
            victim
            for job in exceeding
            for victim in _preempt_excess(
                job, offered, placer, _start_number if _is_over_limit(job) else order_key
            )
        ]
        if unmet.can_use(victims) and _starts_other_trials(jobs, claims, victims, placer):
            return victims
    return [
        victim
        for job in exceeding
        if _is_over_limit(job)
        for victim in _preempt_excess(job, offered, placer, _start_number)
    ]


def _starts_other_trials(
    jobs: Sequence[Job],
    claims: Sequence[ShareClaim],
    victims: Sequence[Victim],
    placer: RequestPlacer,
) -> bool:
    """Return whether other trials than the victims would start after the victims have stopped.

    Offers depend on the running and the pending trials. If only the victims would start again, they
    would be preempted and started forever. Return True if the result depends on a draining agent,
    whose slots vanish and change the shares. The offers of `claims` become those after the stops.
    """
    stopping = [victim.allocation for victim in victims]
    for job in jobs if any(job.leaving_slots for job in jobs) else ():
        stopping += [running for running in job.allocations if running.leaving and running.slots]
    agents = placer.agents.copy()
    if not agents.release_allocations(stopping):
        return True
    agents = agents.as_initial()
    stopped = _by_job(stopping)
    begun = _by_job(start.request for start in placer.starts)
    changed = {
        job.group: job_after_stops(job, stopped.get(job.group, []), begun.get(job.group, []))
        for job in jobs
        if job.allocations or job.leaving_slots or job.group in begun
    }
    later_jobs = {job.group: changed.get(job.group, job) for job in jobs}
    # In a long queue most jobs hold no slots, and the plan reuses the claims of these jobs.
    later_claims = [claim for claim in claims if claim.group not in changed]
    later_claims += _share_claims(changed.values(), agents)
    later_placer = RequestPlacer(agents, maxsize)
    for claim in offer_shares(later_claims, agents.sizes.total_slots):
        job = later_jobs[claim.group]
        if job.held_slots >= claim.offered:
            continue
        before = len(later_placer.starts)
        _start_requests(job, claim.offered - job.held_slots, later_placer)
        started = Counter(start.request.slots for start in later_placer.starts[before:])
        if started - Counter(running.slots for running in stopped.get(job.group, [])):
            return True
    return False


def _by_job(items: Iterable[_Item]) -> dict[int, list[_Item]]:
    """Group requests or allocations by the experiment id of the job, in order."""
    groups: dict[int, list[_Item]] = {}
    for item in items:
        groups.setdefault(item.group, []).append(item)
    return groups


def _is_over_limit(job: Job) -> bool:
    """Return whether the job holds more than `max_slots`, without the allocations that are
    stopping.
    """
    return job.max_slots is not None and job.held_slots - job.leaving_slots > job.max_slots


def _preempt_excess(
    job: Job,
    offered: Mapping[int, int],
    placer: RequestPlacer,
    order_key: Callable[[RunningAllocation], Any],
) -> Iterator[Victim]:
    """Yield victims until the job holds no more than the job's share.

    Stopping allocations count as stopped. The job may keep more slots, because allocations that
    cannot be preempted are never chosen. Yield nothing if the job does not exceed its share.

    Args:
        offered: the share of each job, by experiment id.
        order_key: the sort key in whose order allocations are preempted.
    """
    share = offered[job.group]
    excess = job.held_slots - job.leaving_slots - share
    reason = _share_text(share, placer.agents)
    for running in sorted(job.allocations, key=order_key):
        if excess <= 0:
            return
        if running.slots and running.preemptible and not running.leaving:
            yield Victim(running, reason)
            excess -= running.slots


def _start_number(running: RunningAllocation) -> int:
    """Return the number of the start, by which older allocations sort first."""
    return running.start


def _agents_with_most_slots(
    jobs: Iterable[Job],
) -> Callable[[RunningAllocation], tuple[int, str, int]]:
    """Return a sort key by which allocations on the agents where `jobs` hold the most slots come
    first.

    Equal agents are ordered by name, then older allocations come first. The key raises ValueError
    for an allocation without placements.
    """
    held: Counter[str] = Counter()
    for job in jobs:
        for running in job.allocations:
            for place in running.placements:
                held[place.agent] += place.slots
    return lambda running: min(
        (-held[place.agent], place.agent, running.start) for place in running.placements
    )


def _other_agents_first(
    avoided: frozenset[str],
) -> Callable[[RunningAllocation], tuple[bool, int]]:
    """Return a sort key: allocations that only use `avoided` agents come last, else the oldest."""
    return lambda running: (
        avoided.issuperset(place.agent for place in running.placements),
        running.start,
    )


class _UnmetShares:
    """The sizes of requests within the shares that fit no agent, even after stopping allocations
    end.

    Nothing outside this object is changed. `excluding` are requests within the shares that exclude
    agents and find no place.

    Args:
        jobs: the jobs with a share.
        offered: the share of each job, by experiment id.
        placer: the starts of the plan so far.
    """

    def __init__(
        self, jobs: Sequence[Job], offered: Mapping[int, int], placer: RequestPlacer
    ) -> None:
        """Place the requests within the shares on a copy of the agents, and record the sizes that
        fail.

        Only requests behind the plan's starts are read and placed.
        """
        self._agents = placer.agents.copy()
        self._sizes: set[RequestSize] = set()
        self.excluding: list[AllocationRequest] = []
        for job in jobs if any(job.leaving_slots for job in jobs) else ():
            self._agents.release_allocations(
                running for running in job.allocations if running.leaving
            )
        self._started_of: dict[int, list[AllocationRequest]] = defaultdict(list)
        for start in placer.starts:
            self._started_of[start.request.group].append(start.request)
        started = {start.request.allocation_id for start in placer.starts}
        started_slots = _started_slots(placer)
        for job in jobs:
            staying = job.held_slots - job.leaving_slots + started_slots[job.group]
            budget = offered[job.group] - staying
            if self._has_open_size(job, budget):
                self._serve_within(job, budget, started)

    def can_use(self, victims: Iterable[Victim]) -> bool:
        """Return whether a request of an unmet size would fit after the victims have stopped.

        Also return True if a victim runs on a draining agent, whose slots vanish and change the
        shares. Return False without unmet sizes, unless a victim is on a draining agent.
        """
        agents = self._agents.copy()
        is_on_agents = agents.release_allocations(victim.allocation for victim in victims)
        return (
            not is_on_agents
            or any(agents.can_fit_now(*size) for size in self._sizes)
            or any(agents.find_placements(request) for request in self.excluding)
        )

    def avoided_agents(self) -> Iterator[frozenset[str]]:
        """Yield the agents that a request within the shares must not use: for the first request
        that excludes agents, and for each set of refused kinds.
        """
        for request in self.excluding[:1]:
            yield self._agents.forbidden_agents(request)
        for refused_kinds in sorted({kinds for *_, kinds in self._sizes if kinds}, key=sorted):
            yield self._agents.sizes.names_of_kinds(refused_kinds)

    def _has_open_size(self, job: Job, budget: int) -> bool:
        """Return whether a pending size of the job within `budget` slots may still be placed.

        A size that failed once fits no later request, because slots are only taken here. The
        exception is a gang on agents of different sizes (`AgentSet.is_ruled_out`).
        """
        for slots in job.pending_slots:
            if 0 < slots <= budget:
                size = job.size_of(slots)
                if size not in self._sizes or not self._agents.is_ruled_out(*size):
                    return True
        return False

    def _serve_within(self, job: Job, budget: int, started: Container[str]) -> None:
        """Place requests of the job within `budget` slots and record the sizes that do not fit.

        The requests take slots only in this object. Requests are only read as long as one of the
        job's sizes fits.

        Args:
            started: the allocation ids of the plan's starts, which are skipped.
        """
        waiting = dict(job.pending_slots)
        for started_request in self._started_of[job.group]:
            waiting[started_request.slots] -= 1
        requests = (request for request in job.pending if request.allocation_id not in started)
        while True:
            sizes = {slots for slots, count in waiting.items() if count > 0 and 0 < slots <= budget}
            if not any(self._agents.can_fit_now(*job.size_of(slots)) for slots in sizes):
                self._sizes |= {job.size_of(slots) for slots in sizes}
                for waiting_request in requests if job.excluding else ():
                    if waiting_request.excluded_agents and waiting_request.slots in sizes:
                        self.excluding.append(waiting_request)
                return
            request = next(requests, None)
            if request is None:
                return
            if request.slots in sizes:
                if self._agents.place_request(request):
                    budget -= request.slots
                elif request.excluded_agents:
                    self.excluding.append(request)
                else:
                    self._sizes.add(request.size)
            waiting[request.slots] -= 1


def _lend_idle_slots(order: Iterable[Job], placer: RequestPlacer) -> None:
    """Start requests beyond the shares while slots are free: a request of each job per round.

    `max_slots` still holds. Stop when no request fits, or at the maximum number of starts.

    Args:
        order: the jobs in the order of service.
    """
    started = {start.request.allocation_id for start in placer.starts}
    started_slots = _started_slots(placer)
    # The first round creates the borrowers lazily, because a few starts often use all slots.
    borrowers: Iterable[_Borrower] = (
        _Borrower(
            job,
            (request for request in job.pending if request.allocation_id not in started),
            started_slots,
        )
        for job in order
        if placer.can_start_any(job, maxsize)
    )
    while borrowers:
        served = []
        for borrower in borrowers:
            if not placer.agents.most_free_slots:
                return
            if borrower.start_next(placer):
                served.append(borrower)
        borrowers = served


class _Borrower:
    """A job that may start requests beyond the share, up to `max_slots`.

    Args:
        requests: the requests that are not started yet, in the order of tickets.
        started_slots: the slots of each job's starts in this plan, by experiment id. The mapping is
            only read.
    """

    def __init__(
        self, job: Job, requests: Iterator[AllocationRequest], started_slots: Mapping[int, int]
    ) -> None:
        room = remaining_slots(job)
        self._job, self._requests = job, requests
        self._room = maxsize if room is None else room - started_slots[job.group]

    def start_next(self, placer: RequestPlacer) -> bool:
        """Start the job's next request that fits: take the slots, and add the start to the placer's
        starts. Return True.

        Earlier requests that do not fit, and zero-slot requests, are skipped for good: later calls
        do not try them again. Return False if no further request fits, or at the placer's maximum
        number of starts.
        """
        while not placer.is_full and placer.can_start_any(self._job, self._room):
            request = next(self._requests, None)
            if request is None:
                return False
            if 0 < request.slots <= self._room and placer.place_request(request):
                self._room -= request.slots
                return True
        return False


def _started_slots(placer: RequestPlacer) -> Counter[int]:
    """Return the slots that each job's starts in this plan use, by experiment id."""
    slots = Counter[int]()
    for start in placer.starts:
        slots[start.request.group] += start.request.slots
    return slots


def _start_requests(job: Job, budget: int, placer: RequestPlacer) -> None:
    """Start requests of the job within `budget` slots.

    A request that fitted before the plan uses the budget even if it finds no place now, unless it
    excludes agents. Larger requests than the rest of the budget are skipped. Stop at the maximum
    number of starts.
    """
    for request in job.pending if placer.can_start_any(job, budget) else ():
        fits = placer.agents.could_fit_initially(*request.size)
        if 0 < request.slots <= budget and fits:
            # The agents with free slots may be excluded by the request.
            if placer.place_request(request) or not request.excluded_agents:
                budget -= request.slots
            if not budget or placer.is_full or not placer.can_start_any(job, budget):
                return


def _share_text(share: int, agent_set: AgentSet) -> str:
    """Return a text about a job's share, for example "its share is 3 of 8 slots"."""
    return f"its share is {share} of {count_text(agent_set.sizes.total_slots, 'slot')}"
