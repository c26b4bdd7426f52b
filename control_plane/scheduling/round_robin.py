"""The round-robin scheduler: jobs take turns to start a request.

Jobs that hold the fewest slots come first. Weights, priorities and positions do not matter. Nothing
is preempted.
"""

from collections.abc import Iterator, Sequence

from control_plane.scheduling.fitting import AgentSet
from control_plane.scheduling.model import AllocationRequest, Job
from control_plane.scheduling.request_placer import RequestPlacer
from control_plane.scheduling.scheduling_result import SchedulingResult, remaining_slots


def plan(jobs: Sequence[Job], agent_set: AgentSet, starts_max: int) -> SchedulingResult:
    """Start a request of each job per round, until no job is left or `starts_max` is reached.

    Jobs with fewer held slots come first, then earlier submitted jobs. A start takes its slots in
    `agent_set`. The result has no victims, and only jobs with pending requests.

    A job drops out without further requests. A job also drops out if its next request exceeds
    `max_slots`, or did not fit the agents before this plan. A request that no longer fits is
    skipped; the next round tries the job's next request.
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
        for job, requests in turns:
            if placer.is_full:
                return _result(placer, order)
            if placer.can_start_any(job) and _serve_request(next(requests, None), placer, room):
                staying.append((job, requests))
        turns = staying
    return _result(placer, order)


def _serve_request(
    request: AllocationRequest | None, placer: RequestPlacer, room: dict[int, int | None]
) -> bool:
    """Start the request if the agents have room, and return whether the job stays in the rounds.

    The job drops out without a request, beyond `max_slots`, or if the request did not fit the
    agents before this plan. A request that no longer fits is not started, but the job stays.

    Args:
        room: the slots that each job with `max_slots` may still take, updated by the start.
    """
    if request is None or not placer.agents.could_fit_initially(*request.size):
        return False
    left = room.get(request.group)
    if left is not None and 0 < request.slots > left:
        return False
    if placer.place_request(request) and left is not None:
        room[request.group] = left - request.slots
    return True


def _result(placer: RequestPlacer, order: Sequence[Job]) -> SchedulingResult:
    """Return the result of a plan without victims and without reasons of the policy."""
    return SchedulingResult(placer.starts, [], order, placer.agents, lambda *_: "")
