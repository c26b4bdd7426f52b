"""Priority: the most important first, in the order of the queue; others may have to make room.

1 is the most important priority, 99 the least. Within a priority jobs are served by position, then
requests by ticket. Requests without slots are decided in a pass of their own, so that they never
wait for a job that waits for slots.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from decimal import Decimal
from heapq import merge
from itertools import chain, groupby

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request, Start, Victim
from control_plane.scheduling.outcome import Outcome, room_of
from control_plane.scheduling.victims import Victims


def plan(jobs: Sequence[Job], fleet: Fleet, preemption: bool, starts_max: int) -> Outcome:
    """Starts what fits, priority by priority. While a request waits for slots, those of lower
    priority get none; with `preemption` those that can be preempted do, and what still waits
    preempts what is behind it in the queue.
    """
    order = sorted(jobs, key=rank)
    beside = _Pass(order, fleet, False, preemption, starts_max)
    beside.run()
    slots = _Pass(order, beside.live, True, preemption, starts_max - len(beside.starts))
    slots.run()
    return Outcome(
        [*beside.starts, *slots.starts],
        [*beside.victims, *slots.victims],
        order,
        slots.live,
        lambda job, request: (slots if request.slots else beside).why(job),
    )


def rank(job: Job) -> tuple[int, Decimal, int, int]:
    """The place of a job in the queue."""
    return (job.priority, job.position, job.submitted_ms, job.group)


@dataclass(slots=True)
class _Line:
    """The requests of a pass at one place of the queue, where there may be several jobs."""

    jobs: Sequence[Job]
    requests: Iterator[Request]
    sizes: set[tuple[int, bool]]
    unplaced: Iterable[Request] = ()


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
        self._waiting: list[Job] = []
        self._made_room: set[int] = set()

    def run(self) -> None:
        """Decides, until there are as many starts as there may be."""
        asking = (job for job in self._order if _asks(job, self._with_slots))
        for _, jobs in groupby(asking, key=lambda job: job.priority):
            backfilling = bool(self._waiting)
            if self._is_full or (backfilling and not self._preemption):
                return
            unplaced: list[_Line] = []
            for _, same in groupby(jobs, key=lambda job: job.position):
                line = self._line(list(same))
                self._place(line, backfilling)
                if self._is_full:
                    return
                if line.unplaced:
                    unplaced.append(line)
                    self._waiting.append(line.jobs[0])
            for line in unplaced if self._preemption else ():
                self._make_room(line)

    def why(self, job: Job) -> str:
        """What a job waits for beside slots."""
        if job.group in self._made_room:
            return "what makes room for it has not left yet"
        ahead = next((one for one in self._waiting if rank(one) < rank(job)), None)
        return f"behind job {ahead.group}" if ahead else ""

    @property
    def _is_full(self) -> bool:
        return len(self.starts) >= self._starts_max

    def _line(self, jobs: Sequence[Job]) -> _Line:
        if len(jobs) == 1:
            requests: Iterable[Request] = jobs[0].pending
        else:
            requests = merge(*(job.pending for job in jobs), key=lambda one: one.ticket)
        with_slots = self._with_slots
        sizes = {
            (slots, job.single_agent)
            for job in jobs
            for slots in job.pending_slots
            if (slots > 0) == with_slots
        }
        return _Line(jobs, (one for one in requests if (one.slots > 0) == with_slots), sizes)

    def _place(self, line: _Line, backfilling: bool) -> None:
        """Starts requests, or reserves for those that may not start now, and notes those that find
        no place. They are not read on when nothing of their sizes can fit.
        """
        passed: list[Request] = []
        line.unplaced = passed
        for request in line.requests:
            if not self._has_room(request):
                continue
            starts = not self._made_room and (not backfilling or request.preemptible)
            if not self._reserve(request, starts):
                passed.append(request)
                if line.sizes <= self._too_large:
                    line.unplaced = chain(passed, line.requests)
                    return
            elif self._is_full:
                return

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

    def _make_room(self, line: _Line) -> None:
        """Lets each request in turn preempt what is behind it."""
        for request in line.unplaced:
            size = (request.slots, request.single_agent)
            if not self._has_room(request) or self._reserve(request, starts=False):
                continue
            if not self._candidates.is_hopeless(*size):
                self._preempt_for(request, line.jobs)
            elif all(self._candidates.is_hopeless(*size) for size in line.sizes):
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
    return any((slots > 0) == with_slots for slots in job.pending_slots)
