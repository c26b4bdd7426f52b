"""Round robin: jobs take turns, one request each, those that have the fewest slots first.

Weights, priorities and positions do not matter, and nothing is taken back.
"""

from collections.abc import Iterator, Sequence

from control_plane.scheduling.fitting import Fleet
from control_plane.scheduling.model import Job, Request
from control_plane.scheduling.outcome import Outcome, room_of
from control_plane.scheduling.placing import Placing


def plan(jobs: Sequence[Job], fleet: Fleet, starts_max: int) -> Outcome:
    """Rounds over the jobs until nobody is left in them: one leaves whose next request does not fit
    the agents as they are, whatever is chosen beside it, or would exceed its max_slots. What then
    finds no place stays behind for the next plan.
    """
    placing = Placing(fleet, starts_max)
    order = sorted(
        (job for job in jobs if job.pending_slots),
        key=lambda job: (job.held_slots, job.submitted_ms, job.group),
    )
    room = {job.group: room_of(job) for job in order if job.max_slots is not None}
    turns: list[tuple[Job, Iterator[Request]]] = [(job, iter(job.pending)) for job in order]
    while turns:
        staying: list[tuple[Job, Iterator[Request]]] = []
        for job, line in turns:
            if placing.is_full:
                return _outcome(placing, order)
            if placing.may_start(job) and _serve(next(line, None), placing, room):
                staying.append((job, line))
        turns = staying
    return _outcome(placing, order)


def _serve(request: Request | None, placing: Placing, room: dict[int, int | None]) -> bool:
    """Whether the job stays in the rounds."""
    if request is None or not placing.fleet.fitted(request.slots, request.single_agent):
        return False
    left = room.get(request.group)
    if left is not None and 0 < request.slots > left:
        return False
    if placing.place(request) and left is not None:
        room[request.group] = left - request.slots
    return True


def _outcome(placing: Placing, order: Sequence[Job]) -> Outcome:
    return Outcome(placing.starts, [], order, placing.fleet, lambda *_: "")
