"""Hash rings of agents: agents of one kind on a ring, where a request finds the nearest."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from hashlib import md5
from typing import Generic, TypeVar

# Below the hash of an agent lies its number, counted down: of equal hashes the first name is next.
_NUMBER_BITS = 24
_NUMBER_MAX = (1 << _NUMBER_BITS) - 1
_HASHES = 1 << 64

K = TypeVar("K")


class HashRings(Generic[K]):
    """A hash ring for each kind of agent. Agents are known by their numbers in `names`, which are
    sorted.
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
        """An independent copy."""
        made = HashRings[K](self._names, ())
        made._points = self._points
        made._rings = {kind: ring.copy() for kind, ring in self._rings.items()}
        return made

    @property
    def kinds(self) -> Collection[K]:
        """The kinds that have agents."""
        return self._rings.keys()

    def agent_count(self, kind: K) -> int:
        """The number of agents of a kind."""
        return len(self._rings[kind])

    def add_agent(self, kind: K, number: int) -> None:
        """Put an agent on the ring of its kind."""
        ring = self._rings.get(kind)
        if ring is None:
            self._rings[kind] = [self._ring_point(number)]
        else:
            insort(ring, self._ring_point(number))

    def remove_agent(self, kind: K, number: int) -> None:
        """Take an agent off the ring of its kind."""
        ring = self._rings[kind]
        if len(ring) == 1:
            del self._rings[kind]
        else:
            del ring[bisect_left(ring, self._ring_point(number))]

    def nearest_agent(self, kinds: Sequence[K], allocation: str) -> int:
        """The agent of these kinds with the smallest (hash(allocation) - hash(agent)) mod 2^64."""
        if len(kinds) == 1:
            return self._agent_at(self._rings[kinds[0]], allocation, 0)
        place = _hash(allocation)
        found = [self._agent_at(self._rings[kind], allocation, 0) for kind in kinds]
        return min(found, key=lambda one: ((place - _agent_hash(self._names[one])) % _HASHES, one))

    def nearest_agents(self, kind: K, allocation: str, count: int) -> list[int]:
        """The `count` nearest agents of a kind, the nearest first."""
        ring = self._rings[kind]
        return [self._agent_at(ring, allocation, steps) for steps in range(count)]

    def _agent_at(self, ring: Sequence[int], allocation: str, steps: int) -> int:
        """The agent so many steps down the ring from the allocation's point."""
        above = 0
        if len(ring) > 1:
            above = bisect_right(ring, _hash(allocation) << _NUMBER_BITS | _NUMBER_MAX)
        return _NUMBER_MAX - (ring[above - 1 - steps] & _NUMBER_MAX)

    def _ring_point(self, number: int) -> int:
        mark = self._points[number]
        if not mark:
            mark = _agent_hash(self._names[number]) << _NUMBER_BITS | _NUMBER_MAX - number
            self._points[number] = mark
        return mark


def _hash(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "little")


# Agents are the same in every plan; allocations come and go.
_agent_hash = lru_cache(maxsize=16_384)(_hash)
