"""A cache with a limited total weight, which evicts the least recently used values."""

from collections import OrderedDict
from typing import Generic, TypeVar

Name = TypeVar("Name")
Value = TypeVar("Value")


class BoundedCache(Generic[Name, Value]):
    """A cache of values by name, with a total weight of at most `weight_max`.

    Threads that share a cache need a lock.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._entries: OrderedDict[Name, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: Name) -> Value | None:
        """Return the value of a name, and mark the value as used most recently.

        Return None if the cache does not have the name.
        """
        if name not in self._entries:
            return None
        self._entries.move_to_end(name)
        return self._entries[name][0]

    def keep(self, name: Name, value: Value, weight: int) -> None:
        """Store a value under a name, in place of an earlier value of the name.

        Evict the least recently used values until the total weight is at most `weight_max`. A value
        heavier than `weight_max` evicts all values and is not kept either.
        """
        _, previous_weight = self._entries.pop(name, (None, 0))
        self._entries[name] = value, weight
        self._weight += weight - previous_weight
        while self._weight > self._weight_max:
            _, (_, evicted_weight) = self._entries.popitem(last=False)
            self._weight -= evicted_weight
