"""A cache bounded by the weights of its values, from which those go that were used longest ago."""

from collections import OrderedDict
from typing import Generic, TypeVar

Name = TypeVar("Name")
Value = TypeVar("Value")


class BoundedCache(Generic[Name, Value]):
    """The values used last, as many as weigh `weight_max` together; one that alone weighs more is
    not kept. Threads that share it need a lock.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._entries: OrderedDict[Name, tuple[Value, int]] = OrderedDict()

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, name: Name) -> Value | None:
        """The value of this name, which was used last from now on; None if it is not kept."""
        if name not in self._entries:
            return None
        self._entries.move_to_end(name)
        return self._entries[name][0]

    def keep(self, name: Name, value: Value, weight: int) -> None:
        """Keep a value, in place of an earlier one of the name, and drop what is too much."""
        _, before = self._entries.pop(name, (None, 0))
        self._entries[name] = value, weight
        self._weight += weight - before
        while self._weight > self._weight_max:
            _, (_, dropped) = self._entries.popitem(last=False)
            self._weight -= dropped
