"""The priority scheduler: most important jobs first, in queue order; others may be preempted for
them.

1 is the most important priority, 99 the least. Within a priority jobs are served by position, then
requests by ticket. Requests without slots are decided in a pass of their own, so that they never
wait for a job that waits for slots.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from operator import attrgetter

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import (
    AllocationRequest,
    AllocationStart,
    Job,
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
    """Start what fits, priority by priority. While a request waits for slots, jobs of lower
    priority get none; with `preemption` their preemptible requests are backfilled, and what still
    waits preempts what is behind it in the queue. What these agents can never hold keeps nobody
    waiting, unless more may come: the pool `can_grow`.
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


# The place of a job in the queue.
_rank = attrgetter("priority", "position", "submitted_ms", "group")


class _PriorityPass:
    """One pass, over the requests with slots or over those without.

    `live` are the agents with what was started. `_local` also has what is reserved for others and
    lacks what is preempted for them; until something is, it is the same.
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
        self._too_large: set[tuple[int, bool]] = set()
        self._first_waiting: Job | None = None
        self._made_room: set[int] = set()

    def run(self) -> None:
        """Decide, until there are as many starts as there may be."""
        asking = [job for job in self._order if any(True for _ in self._sizes(job))]
        for _, jobs in groupby(asking, key=attrgetter("priority")):
            backfilling = self._first_waiting is not None
            if self._is_full or (backfilling and not self._preemption):
                return
            self._can_make_room_at_once = self._preemption and not self._made_room
            unplaced: list[tuple[Sequence[Job], Iterable[AllocationRequest]]] = []
            for _, same in groupby(jobs, key=attrgetter("position")):
                members = list(same)
                left = () if self._can_skip(members) else self._place_requests(members, backfilling)
                if self._is_full:
                    return
                if left is not None:
                    self._first_waiting = self._first_waiting or members[0]
                    unplaced.append((members, left))
            for blocked, requests in unplaced if self._preemption else ():
                if not self._has_only_sizes_in(self._candidates.unservable_sizes, blocked):
                    self._preempt_for_each(blocked, requests or self._requests_by_ticket(blocked))

    def policy_reason(self, job: Job) -> str:
        """Why a job waits apart from missing slots."""
        if job.group in self._made_room:
            return "what makes room for it has not left yet"
        first = self._first_waiting
        return f"behind job {first.group}" if first and _rank(first) < _rank(job) else ""

    @property
    def _is_full(self) -> bool:
        return len(self.starts) >= self._starts_max

    def _place_requests(
        self, jobs: Sequence[Job], backfilling: bool
    ) -> Iterable[AllocationRequest] | None:
        """Start requests of jobs at one place of the queue, or reserve slots for those that may not
        start now. Returns the requests that wait, None if there are none. They are not read on when
        nothing of their sizes can fit, or may be taken.
        """
        line = self._requests_by_ticket(jobs)
        passed: list[AllocationRequest] = []
        for request in line:
            if not self._is_within_max_slots(request):
                if self._has_no_slots_left(jobs):
                    break
                continue
            starts = not self._made_room and (not backfilling or request.preemptible)
            if not self._take_slots(request, starts):
                if self._make_room_at_once(request, jobs):
                    continue
                passed.append(request)
                if self._has_only_blocked_sizes(jobs):
                    return chain(passed, line)
            elif self._is_full:
                break
        return passed or None

    def _requests_by_ticket(self, jobs: Sequence[Job]) -> Iterator[AllocationRequest]:
        """The requests of this pass, by ticket."""
        if len(jobs) == 1:
            requests: Iterable[AllocationRequest] = jobs[0].pending
        else:
            requests = merge(*(job.pending for job in jobs), key=lambda one: one.ticket)
        with_slots = self._with_slots
        return (
            one
            for one in requests
            if (one.slots > 0) == with_slots and self._can_become_possible(one.slots, one)
        )

    def _sizes(self, job: Job) -> Iterator[int]:
        """The sizes that the job asks for in this pass, of those that may ever fit."""
        for slots in job.pending_slots:
            if (slots > 0) == self._with_slots and self._can_become_possible(slots, job):
                yield slots

    def _can_become_possible(self, slots: int, asking: Job | AllocationRequest) -> bool:
        return self._can_grow or self.live.can_ever_fit(slots, asking.single_agent)

    def _can_skip(self, jobs: Sequence[Job]) -> bool:
        """Whether none of the jobs' requests can be placed, so that they need not be read."""
        return jobs[0].max_slots is None and self._has_only_blocked_sizes(jobs)

    def _has_only_blocked_sizes(self, jobs: Sequence[Job]) -> bool:
        """Whether nothing that the jobs ask for fits, and no room can be made for it at once."""
        return self._has_only_sizes_in(self._too_large, jobs) and (
            not self._can_make_room_at_once
            or self._has_only_sizes_in(self._candidates.unservable_sizes, jobs)
        )

    def _has_only_sizes_in(self, sizes: Container[tuple[int, bool]], jobs: Sequence[Job]) -> bool:
        """Whether the sizes that the jobs ask for are all among these."""
        for job in jobs:
            for slots in self._sizes(job):
                if (slots, job.single_agent) not in sizes:
                    return False
        return True

    def _has_no_slots_left(self, jobs: Sequence[Job]) -> bool:
        """Whether no job may take any of its sizes."""
        for job in jobs:
            room = self._remaining_slots.get(job.group)
            if room is None or any(slots <= room for slots in job.pending_slots if slots):
                return False
        return self._with_slots

    def _is_within_max_slots(self, request: AllocationRequest) -> bool:
        room = self._remaining_slots.get(request.group)
        return room is None or request.slots <= room or request.slots == 0

    def _take_slots(self, request: AllocationRequest, starts: bool) -> bool:
        """Take slots for the request, for good if it `starts`; False: it does not fit."""
        size = (request.slots, request.single_agent)
        if size in self._too_large:
            return False
        if not starts:
            self._split_local_agents()
        places = self._local.place_request(request)
        if not places:
            if self._local.is_ruled_out(*size):
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

    def _preempt_for_each(self, jobs: Sequence[Job], requests: Iterable[AllocationRequest]) -> None:
        """Preempt for each request, in order, allocations that are behind it in the queue."""
        for request in requests:
            size = (request.slots, request.single_agent)
            if not self._is_within_max_slots(request) or self._take_slots(request, starts=False):
                continue
            if size not in self._candidates.unservable_sizes:
                self._preempt_for(request, jobs)
            if self._has_only_sizes_in(self._candidates.unservable_sizes, jobs):
                return

    def _split_local_agents(self) -> None:
        """Keep reservations apart from starts from now on."""
        if self._local is self.live:
            self._local = self.live.copy()

    def _make_room_at_once(self, request: AllocationRequest, jobs: Sequence[Job]) -> bool:
        """Preempt for a request before those behind it are served, so that they do not get what
        becomes free for it; False: it waits until then.

        Only the first of a priority for which room can be made, and only if some of it leaves
        already or has the same priority. Those behind it would otherwise take the slots that are
        given up, only to be preempted in turn. Where only lower priorities make room they may start
        first, as in the original: once these leave, nobody else does.
        """
        size = (request.slots, request.single_agent)
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
        """Whether they all stay unless asked to go, and are less important."""
        return all(not one.leaving and self._priority_of[one.group] > priority for one in removed)

    def _preempt_for(self, request: AllocationRequest, jobs: Sequence[Job]) -> None:
        self._split_local_agents()
        removed = self._candidates.select_victims(request, jobs[0], self._local)
        if removed:
            self._reserve_room(request, removed)

    def _reserve_room(
        self, request: AllocationRequest, removed: Sequence[RunningAllocation]
    ) -> None:
        """Preempt what was removed for the request, and keep the room that it leaves."""
        reason = f"to make room for {request.allocation_id} of job {request.group}"
        self.victims += (Victim(one, reason) for one in removed if not one.leaving)
        self._made_room.add(request.group)
        self._too_large.clear()
        self._take_slots(request, starts=False)
