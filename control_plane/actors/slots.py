"""The slots of one agent, which of them take work, and who holds them, as the pool keeps them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain

from control_plane.actors.ordered import Entries, Ordered
from control_plane.scheduling.model import Capacity

AGENTS_PER_PART = 16
# Fields of an agent as it is written where it does not take all work.
_WITH_AVAILABILITY = 5


@dataclass(frozen=True, slots=True)
class Availability:
    """What of an agent takes new work, as people want it.

    Not `enabled`: none of it. `draining`: what runs there may finish, else it is asked to leave.
    `disabled`: ids of slots that take no work whatever the agent does, and that are to be left.
    """

    enabled: bool = True
    draining: bool = False
    disabled: tuple[int, ...] = ()

    def takes(self, slot: int) -> bool:
        """Whether the slot may be given to somebody."""
        return self.enabled and slot not in self.disabled


OPEN = Availability()


@dataclass(frozen=True, slots=True)
class AgentSlots:
    """Slot ids of the agent's session `epoch`, and the ids that each running allocation holds.

    `groups`: of an allocation that is in a group, that group and the number of its start.
    """

    epoch: int
    slots: tuple[int, ...]
    running: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    availability: Availability = OPEN

    @property
    def free(self) -> tuple[int, ...]:
        """Ids that nobody holds and that take work, in order."""
        held = {slot for slots in self.running.values() for slot in slots}
        if self.availability is OPEN:
            return tuple([slot for slot in self.slots if slot not in held])
        takes = self.availability.takes
        return tuple(slot for slot in self.slots if slot not in held and takes(slot))

    @property
    def held_count(self) -> int:
        """How many slots are held."""
        return sum(map(len, self.running.values()))

    @property
    def free_count(self) -> int:
        """How many ids `free` has."""
        if self.availability is OPEN:
            return len(self.slots) - self.held_count
        return len(self.free)

    @property
    def total(self) -> int:
        """How many slots count for the pool: those that are free and those that are held."""
        return self.free_count + self.held_count

    @property
    def takes_work(self) -> bool:
        """Whether any slot may be given to somebody once it is free."""
        return any(map(self.availability.takes, self.slots))

    @property
    def unwelcome(self) -> tuple[str, ...]:
        """Allocations that are to leave, by name."""
        if self.availability.draining:
            return ()
        takes = self.availability.takes
        leaving = (
            name
            for name, held in self.running.items()
            if not self.availability.enabled or not all(map(takes, held))
        )
        return tuple(sorted(leaving))

    def group_of(self, allocation: str) -> int:
        """The allocation's group, 0 for none."""
        return self.groups.get(allocation, (0, 0))[0]

    def placing(self, allocation: str, count: int, group: int = 0, start: int = 0) -> "AgentSlots":
        """With `count` free slots given to the allocation."""
        running = {**self.running, allocation: self.free[:count]}
        groups = {**self.groups, allocation: (group, start)} if group else self.groups
        return AgentSlots(self.epoch, self.slots, running, groups, self.availability)

    def releasing(self, allocation: str) -> "AgentSlots":
        """Without the allocation."""
        kept = {name: slots for name, slots in self.running.items() if name != allocation}
        groups = {name: group for name, group in self.groups.items() if name != allocation}
        return AgentSlots(self.epoch, self.slots, kept, groups, self.availability)


class Agents:
    """The pool's agents by name, an ordered map in parts."""

    def __init__(self, ordered: Ordered) -> None:
        self._ordered = ordered

    def get(self, name: str) -> AgentSlots | None:
        """The slots of an agent, or None."""
        found = self._ordered.get(name)
        return None if found is None else _parsed(found)

    def items(self) -> list[tuple[str, AgentSlots]]:
        """All agents, by name."""
        return [(name, _parsed(value)) for name, value in self._ordered.items()]

    def capacities(self) -> Iterator[Capacity]:
        """What the agents that take work have, by name. Only those of parts that changed since they
        were looked at last are looked at again.
        """
        found = (leaf.derived(_capacities) for leaf in self._ordered.leaves())
        return chain.from_iterable(found)

    def put(self, name: str, slots: AgentSlots) -> None:
        """Writes the slots of an agent."""
        self._ordered.put(name, _written(slots))

    def remove(self, name: str) -> None:
        """Forgets an agent."""
        self._ordered.remove(name)


def _capacities(entries: Entries) -> tuple[Capacity, ...]:
    found = (_capacity(name, value) for name, value in entries)
    return tuple(capacity for capacity in found if capacity is not None)


def _capacity(name: str, value: object) -> Capacity | None:
    """None: the agent takes no work."""
    assert isinstance(value, list | tuple)
    if len(value) == _WITH_AVAILABILITY:
        agent = _parsed(value)
        return Capacity(name, agent.total, agent.free_count) if agent.takes_work else None
    _, slots, running, *_ = value
    held = sum(map(len, running.values()))
    return Capacity(name, len(slots), len(slots) - held) if slots else None


def _written(slots: AgentSlots) -> list[object]:
    """Without what says nothing, since a part holds several agents."""
    value: list[object] = [slots.epoch, slots.slots, slots.running]
    given = slots.availability
    is_open = given == OPEN
    if slots.groups or not is_open:
        value.append(slots.groups)
    if not is_open:
        value.append([given.enabled, given.draining, given.disabled])
    return value


def _parsed(value: object) -> AgentSlots:
    assert isinstance(value, list | tuple)
    epoch, slots, running, *more = value
    groups = more[0] if more else {}
    availability = OPEN
    if len(more) > 1:
        enabled, draining, disabled = more[1]
        availability = Availability(enabled, draining, tuple(disabled))
    return AgentSlots(
        epoch,
        tuple(slots),
        {name: tuple(held) for name, held in running.items()},
        {name: (group, start) for name, (group, start) in groups.items()},
        availability,
    )
