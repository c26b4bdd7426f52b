"""Which agent takes a request: best fit, ties spread by a hash that everyone computes alike."""

from collections.abc import Iterable
from hashlib import md5

from control_plane.scheduling.model import Capacity, Request


def best_fit(request: Request, agents: Iterable[Capacity]) -> Capacity | None:
    """The agent with the fewest free slots that still hold the request, or None.

    Among equals the smaller (hash(request) - hash(agent)) mod 2^64 wins, then the agent's id:
    equal agents are used evenly, yet every run decides the same.
    """
    fitting = [agent for agent in agents if agent.free >= request.slots and agent.total > 0]
    return min(
        fitting,
        key=lambda agent: (agent.free, _distance(request.allocation, agent.agent), agent.agent),
        default=None,
    )


def _distance(allocation: str, agent: str) -> int:
    return (_hash(allocation) - _hash(agent)) % 2**64


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "little")
