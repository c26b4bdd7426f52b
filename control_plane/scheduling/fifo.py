"""First in, first out: the head of the queue starts once it fits, and nothing overtakes it."""

from collections.abc import Iterable
from dataclasses import replace

from control_plane.scheduling.fitting import best_fit
from control_plane.scheduling.model import Capacity, Place, Request, SchedulePlan, Start


def plan(queue: Iterable[Request], agents: Iterable[Capacity]) -> SchedulePlan:
    """Starts from the head of `queue` until one does not fit. The queue is read no further than
    that.
    """
    free = {agent.agent: agent for agent in agents}
    starts: list[Start] = []
    for request in queue:
        chosen = best_fit(request, free.values())
        if chosen is None:
            most = max((agent.free for agent in free.values()), default=0)
            return SchedulePlan(
                tuple(starts),
                waits=f"{request.allocation} needs {request.slots} slots; {most} free",
            )
        free[chosen.agent] = replace(chosen, free=chosen.free - request.slots)
        starts.append(Start(request, (Place(chosen.agent, request.slots),)))
    return SchedulePlan(tuple(starts))
