"""The round-robin scheduler: jobs take turns, one request each, those with the fewest slots first.

Weights, priorities and positions do not matter, and nothing is preempted.
"""

from collections.abc import Iterator, Sequence

from control_plane.scheduling.fitting import AgentSet, RequestPlacer
from control_plane.scheduling.model import AllocationRequest, Job
from control_plane.scheduling.scheduling_result import SchedulingResult, remaining_slots


def plan(jobs: Sequence[Job], agent_set: AgentSet, starts_max: int) -> SchedulingResult:
    """Go round the jobs until none is left: a job drops out whose next request does not fit the
    agents as they are, whatever else is planned, or would exceed its max_slots. A request that then
    finds no place stays pending until the next plan.
    """
    placer = RequestPlacer(agent_set, starts_max)
    order = sorted(
        (job for job in jobs if job.pending_slots),
        key=lambda job: (job.held_slots, job.submitted_ms, job.group),
    )
    room = {job.group: remaining_slots(job) for job in order if job.max_slots is not None}
    turns: list[tuple[Job, Iterator[AllocationRequest]]] = [
        (job, iter(job.pending)) for job in order
    ]
    while turns:
        staying: list[tuple[Job, Iterator[AllocationRequest]]] = []
        for job, line in turns:
            if placer.is_full:
                return _result(placer, order)
            if placer.can_start_any(job) and _serve_request(next(line, None), placer, room):
                staying.append((job, line))
        turns = staying
    return _result(placer, order)


def _serve_request(
    request: AllocationRequest | None, placer: RequestPlacer, room: dict[int, int | None]
) -> bool:
    """Start a request if possible; return whether its job stays in the rounds."""
    if request is None or not placer.agents.could_fit_initially(
        request.slots, request.single_agent
    ):
        return False
    left = room.get(request.group)
    if left is not None and 0 < request.slots > left:
        return False
    if placer.place_request(request) and left is not None:
        room[request.group] = left - request.slots
    return True


def _result(placer: RequestPlacer, order: Sequence[Job]) -> SchedulingResult:
    return SchedulingResult(placer.starts, [], order, placer.agents, lambda *_: "")
