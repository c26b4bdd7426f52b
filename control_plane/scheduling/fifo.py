"""First in, first out: the head of the queue starts once it fits, and nothing overtakes it."""

from collections.abc import Iterable
from dataclasses import replace
from functools import lru_cache
from hashlib import md5

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


def best_fit(request: Request, agents: Iterable[Capacity]) -> Capacity | None:
    """The agent with the fewest free slots that still hold the request, or None.

    Among equals the smaller (hash(request) - hash(agent)) mod 2^64 wins, then the agent's id:
    equal agents are used evenly, yet every run decides the same.
    """
    fitting = [agent for agent in agents if agent.free >= request.slots and agent.total > 0]
    if not fitting:
        return None
    least = min([agent.free for agent in fitting])
    equal = [agent for agent in fitting if agent.free == least]
    if len(equal) == 1:
        return equal[0]
    place = _hash(request.allocation)
    return min(equal, key=lambda agent: ((place - _hash(agent.agent)) % 2**64, agent.agent))


# Agents are asked about with every start.
@lru_cache(maxsize=16_384)
def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "little")
