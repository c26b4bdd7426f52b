"""Hash rings of agents: a ring per kind of agent, on which a request finds the nearest agent."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Generic, TypeVar

# A point consists of the agent's hash and, in the low bits, the agent's number counted down. So
# among equal hashes the first name is the nearest.
_NUMBER_BITS = 24
_NUMBER_MAX = (1 << _NUMBER_BITS) - 1
_HASHES = 1 << 64

K = TypeVar("K")


class HashRings(Generic[K]):
    """A hash ring for each kind of agent: the agents in the order of their hashes, on which a
    request finds the nearest agent.

    Agents are identified by their index in the sorted `names`.

    Args:
        names: the names of all agents, sorted.
        kinds: the index and the kind of each agent that is on a ring at first.
    """

    def __init__(self, names: Sequence[str], kinds: Iterable[tuple[int, K]]) -> None:
        self._names = names
        self._points = [0] * len(names)
        self._rings: dict[K, list[int]] = {}
        for number, kind in kinds:
            self._rings.setdefault(kind, []).append(self._ring_point(number))
        for ring in self._rings.values():
            ring.sort()

    def copy(self) -> "HashRings[K]":
        """Return an independent copy. The names are shared."""
        copied = HashRings[K](self._names, ())
        copied._points = self._points
        copied._rings = {kind: ring.copy() for kind, ring in self._rings.items()}
        return copied

    @property
    def kinds(self) -> Collection[K]:
        """The kinds with at least an agent, as a view that changes with the rings."""
        return self._rings.keys()

    def agent_count(self, kind: K) -> int:
        """Return the number of agents of a kind. Raises KeyError for a kind without agents."""
        return len(self._rings[kind])

    def add_agent(self, kind: K, number: int) -> None:
        """Add an agent to the ring of a kind. The agent must not be on the ring yet.

        Args:
            number: the index of the agent in `names`. Raises IndexError for an index outside.
        """
        ring = self._rings.get(kind)
        if ring is None:
            self._rings[kind] = [self._ring_point(number)]
        else:
            insort(ring, self._ring_point(number))

    def remove_agent(self, kind: K, number: int) -> None:
        """Remove an agent from the ring of a kind. The agent must be on the ring.

        The kind disappears with its last agent. A wrong `number` removes another agent or raises
        IndexError. Raises KeyError for a kind without agents.
        """
        ring = self._rings[kind]
        if len(ring) == 1:
            del self._rings[kind]
        else:
            del ring[bisect_left(ring, self._ring_point(number))]

    def nearest_agent(self, kinds: Sequence[K], allocation: str) -> int:
        """Return the index of the nearest agent among all agents of several kinds.

        The nearest agent has the smallest (hash(allocation) - hash(agent)) mod 2^64; among equal
        hashes, the first name. Raises KeyError for a kind without agents, and ValueError without
        kinds.
        """
        if len(kinds) == 1:
            return self._agent_at(self._rings[kinds[0]], allocation, 0)
        nearest = [self._agent_at(self._rings[kind], allocation, 0) for kind in kinds]
        return min(nearest, key=self._distance_from(allocation))

    def nearest_agents(self, kinds: Sequence[K], allocation: str, count: int) -> list[int]:
        """Return the indices of the `count` nearest agents of several kinds, the nearest first.

        The kinds together must have at least `count` agents. Raises KeyError for a kind without
        agents.
        """
        nearest = [
            self._agent_at(ring, allocation, steps)
            for ring in map(self._rings.__getitem__, kinds)
            for steps in range(min(count, len(ring)))
        ]
        if len(kinds) > 1:
            nearest.sort(key=self._distance_from(allocation))
        return nearest[:count]

    def _distance_from(self, allocation: str) -> Callable[[int], tuple[int, int]]:
        """Return a sort key by which the agents that are nearest to the allocation come first."""
        point, names = _hash(allocation), self._names
        return lambda number: ((point - _agent_hash(names[number])) % _HASHES, number)

    def _agent_at(self, ring: Sequence[int], allocation: str, steps: int) -> int:
        """Return the index of the agent that is `steps` steps down the ring from the allocation's
        point.

        0 steps return the nearest agent. Raises IndexError for too many steps.
        """
        above = 0
        if len(ring) > 1:
            above = bisect_right(ring, _hash(allocation) << _NUMBER_BITS | _NUMBER_MAX)
        return _NUMBER_MAX - (ring[above - 1 - steps] & _NUMBER_MAX)

    def _ring_point(self, number: int) -> int:
        """Return the point of an agent on a ring: the hash, followed by the number counted down.

        The point is computed once for each agent.
        """
        point = self._points[number]
        if not point:
            point = _agent_hash(self._names[number]) << _NUMBER_BITS | _NUMBER_MAX - number
            self._points[number] = point
        return point


def _hash(text: str) -> int:
    """Return the first 8 bytes of the MD5 digest of the UTF-8 text, as a little-endian integer."""
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "little")


# Only hashes of agents are cached: agents recur in every plan, allocations do not.
_agent_hash = lru_cache(maxsize=16_384)(_hash)
