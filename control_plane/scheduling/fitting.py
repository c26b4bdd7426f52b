"""Which agent takes a request: best fit, ties spread by a hash that everyone computes alike."""

from collections.abc import Iterable
from functools import lru_cache
from hashlib import md5

from control_plane.scheduling.model import Capacity, Request


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
