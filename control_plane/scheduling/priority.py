"""Priority: the most important first, in the order of the queue; others may have to make room.

1 is the most important priority, 99 the least. Within a priority jobs are served by position, then
requests by ticket. Requests without slots are decided in a pass of their own, so that they never
wait for a job that waits for slots.
"""

from collections.abc import Container, Iterable, Iterator, Sequence
from heapq import merge
from itertools import chain, groupby
from operator import attrgetter

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request, Start, Victim
from control_plane.scheduling.outcome import Outcome, room_of
from control_plane.scheduling.victims import Victims


def plan(jobs: Sequence[Job], fleet: Fleet, preemption: bool, starts_max: int) -> Outcome:
    """Starts what fits, priority by priority. While a request waits for slots, those of lower
    priority get none; with `preemption` those that can be preempted do, and what still waits
    preempts what is behind it in the queue.
    """
    order = sorted(jobs, key=_rank)
    beside = _Pass(order, fleet, False, preemption, starts_max)
    beside.run()
    slots = _Pass(order, beside.live, True, preemption, starts_max - len(beside.starts))
    slots.run()
    return Outcome(
        [*beside.starts, *slots.starts],
        [*beside.victims, *slots.victims],
        order,
        slots.live,
        lambda job, request, _: (slots if request.slots else beside).why(job),
    )


# The place of a job in the queue.
_rank = attrgetter("priority", "position", "submitted_ms", "group")


class _Pass:
    """One pass, over the requests with slots or over those without.

    `live` has what was started. `_local` also has what is reserved for others and lacks what has to
    leave for them; until something does, it is the same.
    """

    def __init__(
        self,
        order: Sequence[Job],
        fleet: Fleet,
        with_slots: bool,
        preemption: bool,
        starts_max: int,
    ) -> None:
        self.starts: list[Start] = []
        self.victims: list[Victim] = []
        self.live = self._local = fleet
        self._order = order
        self._with_slots = with_slots
        self._preemption = preemption
        self._starts_max = starts_max
        self._candidates = Victims(order, with_slots)
        self._room = {job.group: room_of(job) for job in order if job.max_slots is not None}
        self._too_large: set[tuple[int, bool]] = set()
        self._first_waiting: Job | None = None
        self._made_room: set[int] = set()

    def run(self) -> None:
        """Decides, until there are as many starts as there may be."""
        asking = [job for job in self._order if _asks(job, self._with_slots)]
        for _, jobs in groupby(asking, key=attrgetter("priority")):
            backfilling = self._first_waiting is not None
            if self._is_full or (backfilling and not self._preemption):
                return
            unplaced: list[tuple[Sequence[Job], Iterable[Request]]] = []
            for _, same in groupby(jobs, key=attrgetter("position")):
                members = list(same)
                left = () if self._are_stuck(members) else self._place(members, backfilling)
                if self._is_full:
                    return
                if left is not None:
                    self._first_waiting = self._first_waiting or members[0]
                    unplaced.append((members, left))
            for blocked, requests in unplaced if self._preemption else ():
                if not self._are_all(self._candidates.hopeless, blocked):
                    self._make_room(blocked, requests or self._line(blocked))

    def why(self, job: Job) -> str:
        """What a job waits for beside slots."""
        if job.group in self._made_room:
            return "what makes room for it has not left yet"
        first = self._first_waiting
        return f"behind job {first.group}" if first and _rank(first) < _rank(job) else ""

    @property
    def _is_full(self) -> bool:
        return len(self.starts) >= self._starts_max

    def _place(self, jobs: Sequence[Job], backfilling: bool) -> Iterable[Request] | None:
        """Starts requests of jobs at one place of the queue, or reserves for those that may not
        start now. Returns those that find no place, None if there are none. They are not read on
        when nothing of their sizes can fit, or may be taken.
        """
        line = self._line(jobs)
        passed: list[Request] = []
        for request in line:
            if not self._has_room(request):
                if self._are_limited(jobs):
                    break
                continue
            starts = not self._made_room and (not backfilling or request.preemptible)
            if not self._reserve(request, starts):
                passed.append(request)
                if self._are_all(self._too_large, jobs):
                    return chain(passed, line)
            elif self._is_full:
                break
        return passed or None

    def _line(self, jobs: Sequence[Job]) -> Iterator[Request]:
        """The requests of this pass, by ticket."""
        if len(jobs) == 1:
            requests: Iterable[Request] = jobs[0].pending
        else:
            requests = merge(*(job.pending for job in jobs), key=lambda one: one.ticket)
        with_slots = self._with_slots
        return (one for one in requests if (one.slots > 0) == with_slots)

    def _are_stuck(self, jobs: Sequence[Job]) -> bool:
        """Whether none of their requests can be placed; they need not be looked at then."""
        return jobs[0].max_slots is None and self._are_all(self._too_large, jobs)

    def _are_all(self, sizes: Container[tuple[int, bool]], jobs: Sequence[Job]) -> bool:
        """Whether the sizes that the jobs ask for are all among these."""
        for job in jobs:
            for slots in job.pending_slots:
                if (slots > 0) == self._with_slots and (slots, job.single_agent) not in sizes:
                    return False
        return True

    def _are_limited(self, jobs: Sequence[Job]) -> bool:
        """Whether no job may take any of its sizes."""
        for job in jobs:
            room = self._room.get(job.group)
            if room is None or any(slots <= room for slots in job.pending_slots if slots):
                return False
        return self._with_slots

    def _has_room(self, request: Request) -> bool:
        room = self._room.get(request.group)
        return room is None or request.slots <= room or request.slots == 0

    def _reserve(self, request: Request, starts: bool) -> bool:
        """Takes slots for the request, for good if it `starts`; False: it does not fit."""
        size = (request.slots, request.single_agent)
        if size in self._too_large:
            return False
        if not starts:
            self._part()
        places = self._local.place(request)
        if not places:
            if self._local.fits_no_more(*size):
                self._too_large.add(size)
            return False
        if starts:
            self.starts.append(Start(request, places))
            if self._local is not self.live:
                self.live.take(places)
        room = self._room.get(request.group)
        if room is not None:
            self._room[request.group] = room - request.slots
        return True

    def _make_room(self, jobs: Sequence[Job], requests: Iterable[Request]) -> None:
        """Lets each request in turn preempt what is behind it."""
        for request in requests:
            size = (request.slots, request.single_agent)
            if not self._has_room(request) or self._reserve(request, starts=False):
                continue
            if size not in self._candidates.hopeless:
                self._preempt_for(request, jobs)
            if self._are_all(self._candidates.hopeless, jobs):
                return

    def _part(self) -> None:
        """From now on what is reserved is not what is started."""
        if self._local is self.live:
            self._local = self.live.copy()

    def _preempt_for(self, request: Request, jobs: Sequence[Job]) -> None:
        self._part()
        removed = self._candidates.make_room(request, jobs[0], self._local)
        if not removed:
            return
        reason = f"to make room for {request.allocation} of job {request.group}"
        self.victims += (Victim(one, reason) for one in removed if not one.leaving)
        self._made_room.add(request.group)
        self._too_large.clear()
        self._reserve(request, starts=False)


def _asks(job: Job, with_slots: bool) -> bool:
    without = 0 in job.pending_slots
    return len(job.pending_slots) > without if with_slots else without
