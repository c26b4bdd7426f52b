"""The priority scheduler: important jobs first, in queue order, if allowed with preemption.

1 is the most important priority, 99 the least important. Within a priority, jobs are served by
position, and their requests by ticket. Zero-slot requests are planned in a separate pass, so that
they never wait for jobs that need slots.
"""

from collections.abc import Collection, Container, Iterable, Iterator, Sequence
from dataclasses import replace
from heapq import merge
from itertools import chain, groupby
from operator import attrgetter

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    ANY_KIND,
    AllocationRequest,
    AllocationStart,
    Job,
    RequestSize,
    RunningAllocation,
    Victim,
)
from control_plane.scheduling.preemption import PreemptionCandidates
from control_plane.scheduling.scheduling_result import SchedulingResult, remaining_slots


def plan(
    jobs: Sequence[Job],
    agent_set: AgentSet,
    preemption: bool,
    starts_max: int,
    can_grow: bool = False,
) -> SchedulingResult:
    """Start the requests that fit, priority by priority. The slots of starts are taken in
    `agent_set`.

    While a request waits for slots, jobs of lower priority start nothing on agents that the request
    may use. With `preemption`, preemptible requests of lower priority may fill free slots, and a
    waiting request preempts allocations behind it in the queue. The freed slots are not used by the
    starts of this plan. A request that the agents can never fit does not block others, unless the
    pool `can_grow`.

    The result has all jobs in queue order.

    Args:
        preemption: whether allocations may be preempted.
        starts_max: the maximum number of starts.
        can_grow: whether larger agents or more agents may join the pool.
    """
    order = sorted(jobs, key=_rank)
    zero_slot_pass = _PriorityPass(order, agent_set, False, preemption, starts_max, can_grow)
    zero_slot_pass.run()
    starts_left = starts_max - len(zero_slot_pass.starts)
    slots = _PriorityPass(order, zero_slot_pass.live, True, preemption, starts_left, can_grow)
    slots.run()
    return SchedulingResult(
        [*zero_slot_pass.starts, *slots.starts],
        [*zero_slot_pass.victims, *slots.victims],
        order,
        slots.live,
        lambda job, request, _: (slots if request.slots else zero_slot_pass).policy_reason(job),
    )


_rank = attrgetter("priority", "position", "submitted_ms", "group")
"""The sort key of jobs in the queue."""


class _PriorityPass:
    """A pass over the requests with slots, or over the zero-slot requests.

    `starts` and `victims` are the result. `live` is the set of agents after the starts. `_local`
    also contains reservations for waiting requests and the room made by preemption. The two are a
    single set until the first reservation.

    Args:
        order: all jobs in queue order.
        with_slots: whether the pass is over the requests with slots.
    """

    def __init__(
        self,
        order: Sequence[Job],
        agent_set: AgentSet,
        with_slots: bool,
        preemption: bool,
        starts_max: int,
        can_grow: bool,
    ) -> None:
        self.starts: list[AllocationStart] = []
        self.victims: list[Victim] = []
        self.live = self._local = agent_set
        self._order = order
        self._with_slots = with_slots
        self._preemption = preemption
        self._starts_max = starts_max
        self._can_grow = can_grow
        self._candidates = PreemptionCandidates(order, with_slots)
        self._priority_of = {job.group: job.priority for job in order} if preemption else {}
        self._can_make_room_at_once = False
        self._remaining_slots = {
            job.group: remaining_slots(job) for job in order if job.max_slots is not None
        }
        self._sizes_of = self._possible_sizes()
        self._too_large: set[RequestSize] = set()
        self._first_waiting: Job | None = None
        self._kinds_refused_by_waiting: frozenset[int] = ANY_KIND
        self._closed_kinds: frozenset[int] = ANY_KIND
        self._made_room: set[int] = set()

    def run(self) -> None:
        """Plan all requests of the pass, or stop at the maximum number of starts. Called once.

        Fills `starts` and `victims`, and takes slots in `live`. Without preemption, lower
        priorities only start on kinds of agents that all waiting requests refuse. The pass ends
        after the first priority with a waiting request if no such agent has free slots.
        """
        with_requests = [job for job in self._order if job.group in self._sizes_of]
        for _, jobs in groupby(with_requests, key=attrgetter("priority")):
            backfilling = self._first_waiting is not None
            if backfilling and not self._preemption:
                self._closed_kinds = self.live.sizes.kinds - self._kinds_refused_by_waiting
            if self._is_full or self._has_only_closed_agents():
                return
            self._can_make_room_at_once = self._preemption and not self._made_room
            unplaced: list[tuple[Sequence[Job], Iterable[AllocationRequest]]] = []
            for _, at_position in groupby(jobs, key=attrgetter("position")):
                members = list(at_position)
                waiting = (
                    () if self._can_skip(members) else self._place_requests(members, backfilling)
                )
                if self._is_full:
                    return
                if waiting is not None:
                    self._note_waiting(members)
                    unplaced.append((members, waiting))
            for blocked, requests in unplaced if self._preemption else ():
                if not self._has_only_sizes_in(self._candidates.unservable_sizes, blocked):
                    self._preempt_for_each(blocked, requests or self._requests_by_ticket(blocked))

    def _note_waiting(self, jobs: Sequence[Job]) -> None:
        """Record that requests of the jobs wait."""
        for job in jobs:
            refused = self._kinds_refused_by_waiting
            refused = refused & job.refused_kinds if self._first_waiting else job.refused_kinds
            self._kinds_refused_by_waiting = refused
            self._first_waiting = self._first_waiting or job

    def _has_only_closed_agents(self) -> bool:
        """Return whether requests wait without preemption for all agents with free slots.

        In the pass over zero-slot requests, auxiliary places count in place of slots.
        """
        if not self._closed_kinds:
            return False
        least = 1 if self._with_slots else 0
        return not self.live.can_fit_now(least, True, self._closed_kinds)

    def policy_reason(self, job: Job) -> str:
        """Return the reason why a job waits apart from slots, for users.

        A job for which allocations are preempted waits until those allocations end. A job behind
        the first waiting job waits for that job. Return "" for other jobs.
        """
        if job.group in self._made_room:
            return "what makes room for it has not left yet"
        first = self._first_waiting
        return f"behind job {first.group}" if first and _rank(first) < _rank(job) else ""

    @property
    def _is_full(self) -> bool:
        """Whether the pass has reached the maximum number of starts."""
        return len(self.starts) >= self._starts_max

    def _place_requests(
        self, jobs: Sequence[Job], backfilling: bool
    ) -> Iterable[AllocationRequest] | None:
        """Start the requests of jobs at a position, or reserve slots for requests that must wait.

        Requests beyond `max_slots` neither start nor wait. Stop reading when no remaining size can
        fit; the unread requests then follow in the returned iterable. Stop at the maximum number of
        starts.

        Return the waiting requests. Return None if no request waits.

        Args:
            backfilling: whether a more important request waits, so that only preemptible requests
                start.
        """
        requests = self._requests_by_ticket(jobs)
        waiting: list[AllocationRequest] = []
        for request in requests:
            if not self._is_within_max_slots(request):
                if self._has_no_slots_left(jobs):
                    break
                continue
            starts = not self._made_room and (not backfilling or request.preemptible)
            if not self._take_slots(request, starts):
                if self._make_room_at_once(request, jobs):
                    continue
                waiting.append(request)
                if self._has_only_blocked_sizes(jobs):
                    return chain(waiting, requests)
            elif self._is_full:
                break
        return waiting or None

    def _requests_by_ticket(self, jobs: Sequence[Job]) -> Iterator[AllocationRequest]:
        """Yield the requests of jobs that belong to this pass and may ever fit, lazily and by
        ticket.

        A ticket is the rank of a request: the job's submission, then the time of the request. A
        request belongs to the pass if it has slots, or in the zero-slot pass if it has no slots. In
        a pool that can grow, every size may ever fit.
        """
        if len(jobs) == 1:
            requests: Iterable[AllocationRequest] = jobs[0].pending
        else:
            requests = merge(*(job.pending for job in jobs), key=lambda request: request.ticket)
        with_slots = self._with_slots
        return (
            request
            for request in requests
            if (request.slots > 0) == with_slots
            and self._can_become_possible(request.size, request.excluded_agents)
        )

    def _possible_sizes(self) -> dict[int, list[RequestSize]]:
        """Return each job's pending sizes that belong to this pass and may ever fit.

        The keys are the jobs' experiment ids. Jobs without such a size are left out.
        """
        sizes_of = {}
        for job in self._order:
            sizes = [
                job.size_of(slots)
                for slots in job.pending_slots
                if (slots > 0) == self._with_slots and self._can_become_possible(job.size_of(slots))
            ]
            if sizes:
                sizes_of[job.group] = sizes
        return sizes_of

    def _can_become_possible(
        self, size: RequestSize, excluded_agents: Collection[str] = ()
    ) -> bool:
        """Return whether a size may ever fit, now or after the pool has grown.

        Args:
            excluded_agents: the names of the agents that must not run the request.
        """
        return self._can_grow or self.live.sizes.can_ever_fit(*size, excluded_agents)

    def _can_skip(self, jobs: Sequence[Job]) -> bool:
        """Return whether no request of the jobs can be placed, so that reading the requests is
        needless.

        Return False if the first job has `max_slots`.
        """
        return jobs[0].max_slots is None and self._has_only_blocked_sizes(jobs)

    def _has_only_blocked_sizes(self, jobs: Sequence[Job]) -> bool:
        """Return whether no size of the jobs fits, and preemption cannot make room at once."""
        return self._has_only_sizes_in(self._too_large, jobs) and (
            not self._can_make_room_at_once
            or self._has_only_sizes_in(self._candidates.unservable_sizes, jobs)
        )

    def _has_only_sizes_in(self, sizes: Container[RequestSize], jobs: Sequence[Job]) -> bool:
        """Return whether all sizes of the jobs in this pass are in `sizes`. True without sizes."""
        for job in jobs:
            for slots, single_agent, refused in self._sizes_of.get(job.group, ()):
                if (slots, single_agent, refused | self._closed_kinds) not in sizes:
                    return False
        return True

    def _has_no_slots_left(self, jobs: Sequence[Job]) -> bool:
        """Return whether `max_slots` rules out every size of every job.

        Return False in the pass over zero-slot requests, and if a job has no `max_slots`.
        """
        for job in jobs:
            room = self._remaining_slots.get(job.group)
            if room is None or any(slots <= room for slots in job.pending_slots if slots):
                return False
        return self._with_slots

    def _is_within_max_slots(self, request: AllocationRequest) -> bool:
        """Return whether the job's `max_slots` allows the request besides the job's slots and
        starts.

        True for a job without `max_slots` and for a zero-slot request.
        """
        room = self._remaining_slots.get(request.group)
        return room is None or request.slots <= room or request.slots == 0

    def _take_slots(self, request: AllocationRequest, starts: bool) -> bool:
        """Take slots for the request. The slots count against the job's `max_slots`.

        Return False, without a change, if the request does not fit.

        Args:
            starts: whether the request starts, and is added to `starts`. Otherwise its slots are
                only reserved in `_local`.
        """
        usable = self._without_closed_kinds(request)
        size = usable.size
        if size in self._too_large:
            return False
        if not starts:
            self._split_local_agents()
        places = self._local.place_request(usable)
        if not places:
            if self._local.is_ruled_out(*size) and not request.excluded_agents:
                self._too_large.add(size)
            return False
        if starts:
            self.starts.append(AllocationStart(request, places))
            if self._local is not self.live:
                self.live.take_placements(places)
        room = self._remaining_slots.get(request.group)
        if room is not None:
            self._remaining_slots[request.group] = room - request.slots
        return True

    def _without_closed_kinds(self, request: AllocationRequest) -> AllocationRequest:
        """Return the request with the closed kinds of agents among the refused kinds."""
        if not self._closed_kinds:
            return request
        return replace(request, refused_kinds=request.refused_kinds | self._closed_kinds)

    def _preempt_for_each(self, jobs: Sequence[Job], requests: Iterable[AllocationRequest]) -> None:
        """Reserve slots or preempt allocations for each waiting request of the jobs, in order.

        Requests beyond `max_slots` are skipped. Stop when no preemption can serve any size of the
        jobs.
        """
        for request in requests:
            size = request.size
            if not self._is_within_max_slots(request) or self._take_slots(request, starts=False):
                continue
            if size not in self._candidates.unservable_sizes:
                self._preempt_for(request, jobs)
            if self._has_only_sizes_in(self._candidates.unservable_sizes, jobs):
                return

    def _split_local_agents(self) -> None:
        """Make `_local` a copy of `live`, so that reservations do not affect later starts.

        Do nothing if they are two sets already.
        """
        if self._local is self.live:
            self._local = self.live.copy()

    def _make_room_at_once(self, request: AllocationRequest, jobs: Sequence[Job]) -> bool:
        """Preempt allocations for a request before later requests are placed. Return whether this
        happened.

        Allocations are preempted only if the request is the first of its priority for which
        preemption can make room, and if at least one of the victims already stops or has the same
        priority. The victims are added to `victims`, and the slots are reserved for the request.

        Without this step, requests behind would start in the freed slots and be preempted
        themselves. If all victims have lower priority, requests behind may start first, as in
        Determined.

        Args:
            jobs: the jobs at the queue position of the request.
        """
        size = request.size
        if not self._can_make_room_at_once or size in self._candidates.unservable_sizes:
            return False
        self._split_local_agents()
        removed = self._candidates.select_victims(request, jobs[0], self._local)
        if not removed:
            return False
        self._can_make_room_at_once = False
        if self._are_lower(removed, jobs[0].priority):
            self._candidates.restore(removed, self._local)
            return False
        self._first_waiting = self._first_waiting or jobs[0]
        self._reserve_room(request, removed)
        return True

    def _are_lower(self, removed: Iterable[RunningAllocation], priority: int) -> bool:
        """Return whether all allocations belong to less important jobs and are not stopping
        already.

        Less important jobs have a number above `priority`. True without allocations.
        """
        return all(
            not running.leaving and self._priority_of[running.group] > priority
            for running in removed
        )

    def _preempt_for(self, request: AllocationRequest, jobs: Sequence[Job]) -> None:
        """Preempt allocations for a request, and reserve the slots for the request.

        If no preemption can make room, nothing is preempted, and the size may become unservable
        (`PreemptionCandidates.select_victims`).

        Args:
            jobs: the jobs at the queue position of the request.
        """
        self._split_local_agents()
        removed = self._candidates.select_victims(request, jobs[0], self._local)
        if removed:
            self._reserve_room(request, removed)

    def _reserve_room(
        self, request: AllocationRequest, removed: Sequence[RunningAllocation]
    ) -> None:
        """Add the removed allocations to the victims and reserve the slots for the request.

        Allocations that are already stopping are not added. The request's job then counts as a job
        that waits for room, and nothing else starts in this pass.

        Args:
            removed: the allocations whose slots are released in `_local`.
        """
        reason = f"to make room for {request.allocation_id} of job {request.group}"
        self.victims += (Victim(running, reason) for running in removed if not running.leaving)
        self._made_room.add(request.group)
        self._too_large.clear()
        self._take_slots(request, starts=False)
