"""The slots of one agent, which of them take work, and who holds them, as the pool keeps them."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import chain

from control_plane.actors.ordered import Entries, Ordered
from control_plane.scheduling.model import Capacity, Holding, Place

AGENTS_PER_PART = 8
# Fields of an agent as it is written where it takes all work and has no label.
_PLAIN = 3
# Fields of a part as it is written where its allocation stays and runs there alone.
_STAYING = 3


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
class Part:
    """What an allocation holds on one agent: ids of slots.

    `group`: its job. `start` numbers the starts of the pool. `leaving`: it was asked to go.
    `places`: all agents that it holds slots on, with how many, if these are several; this one is
    number `rank` of them.
    """

    slots: tuple[int, ...]
    group: int = 0
    start: int = 0
    leaving: bool = False
    rank: int = 0
    places: tuple[Place, ...] = ()


@dataclass(frozen=True, slots=True)
class AgentSlots:
    """Slot ids of the agent's session `epoch`, and what each allocation holds of them."""

    epoch: int
    slots: tuple[int, ...]
    parts: Mapping[str, Part] = field(default_factory=dict)
    availability: Availability = OPEN
    label: str = ""

    @property
    def running(self) -> dict[str, tuple[int, ...]]:
        """The slots of each allocation."""
        return {name: part.slots for name, part in self.parts.items()}

    @property
    def leads(self) -> int:
        """How many allocations have their first rank here."""
        return sum(part.rank == 0 for part in self.parts.values())

    @property
    def free(self) -> tuple[int, ...]:
        """Ids that nobody holds and that take work, in order."""
        held = {slot for part in self.parts.values() for slot in part.slots}
        if self.availability is OPEN:
            return tuple([slot for slot in self.slots if slot not in held])
        takes = self.availability.takes
        return tuple(slot for slot in self.slots if slot not in held and takes(slot))

    @property
    def held_count(self) -> int:
        """How many slots are held."""
        return sum([len(part.slots) for part in self.parts.values()])

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
        """Whether any slot may be given to somebody once it is free, or there are only places
        beside them.
        """
        if not self.slots:
            return self.availability.enabled
        return any(map(self.availability.takes, self.slots))

    @property
    def aux_held(self) -> int:
        """How many allocations are here without a slot."""
        return sum([not part.slots for part in self.parts.values()])

    @property
    def unwelcome(self) -> tuple[str, ...]:
        """Allocations that are to leave, by name."""
        if self.availability.draining:
            return ()
        takes = self.availability.takes
        leaving = (
            name
            for name, part in self.parts.items()
            if not self.availability.enabled or not all(map(takes, part.slots))
        )
        return tuple(sorted(leaving))

    def having(self, allocation: str, part: Part) -> "AgentSlots":
        """With the allocation's part as given."""
        return replace(self, parts={**self.parts, allocation: part})

    def leaving(self, allocation: str) -> "AgentSlots":
        """With the allocation asked to go."""
        return self.having(allocation, replace(self.parts[allocation], leaving=True))

    def releasing(self, allocation: str) -> "AgentSlots":
        """Without the allocation."""
        kept = {name: part for name, part in self.parts.items() if name != allocation}
        return replace(self, parts=kept)


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

    def capacities(self, aux_per_agent: int) -> Iterator[Capacity]:
        """What the agents have that take work or that are left in peace, by name. Only those of
        parts that changed since they were looked at last are looked at again.
        """
        found = (leaf.derived(_capacities, aux_per_agent) for leaf in self._ordered.leaves())
        return chain.from_iterable(found)

    def holdings(self, group: int) -> Iterator[Holding]:
        """The allocations of a group, by the agent of their first rank."""
        for leaf in self._ordered.leaves():
            yield from leaf.derived(_holdings, None).get(group, ())

    def holder(self, allocation: str) -> str:
        """An agent that the allocation holds a part of, "" for none."""
        found = (leaf.derived(_holders, None).get(allocation) for leaf in self._ordered.leaves())
        return next(filter(None, found), "")

    def put(self, name: str, slots: AgentSlots) -> None:
        """Writes the slots of an agent."""
        self._ordered.put(name, _written(slots))

    def remove(self, name: str) -> None:
        """Forgets an agent."""
        self._ordered.remove(name)


def _capacities(entries: Entries, aux_per_agent: int) -> tuple[Capacity, ...]:
    found = (_capacity(name, value, aux_per_agent) for name, value in entries)
    return tuple(capacity for capacity in found if capacity is not None)


def _capacity(name: str, value: object, aux: int) -> Capacity | None:
    """None: the agent takes no work, and what is there is to leave."""
    assert isinstance(value, list | tuple)
    if len(value) == _PLAIN:
        _, slots, parts = value
        held = [len(part[0]) for part in parts.values()]
        used, aux_used = sum(held), held.count(0)
        return Capacity(name, len(slots), len(slots) - used, "", aux, max(0, aux - aux_used))
    agent = _parsed(value)
    if agent.availability.draining:
        held_count = agent.held_count
        return Capacity(name, held_count, 0, agent.label, agent.aux_held, 0, draining=True)
    if not agent.takes_work:
        return None
    aux_free = max(0, aux - agent.aux_held)
    return Capacity(name, agent.total, agent.free_count, agent.label, aux, aux_free)


def _holdings(entries: Entries, _: None) -> dict[int, list[Holding]]:
    found: dict[int, list[Holding]] = {}
    for agent, value in entries:
        for allocation, part in _parsed(value).parts.items():
            if part.rank:
                continue
            places = part.places or (Place(agent, len(part.slots)),)
            slots = sum([place.slots for place in places])
            holding = Holding(
                allocation, slots, part.group, part.start, leaving=part.leaving, places=places
            )
            found.setdefault(part.group, []).append(holding)
    return found


def _holders(entries: Entries, _: None) -> dict[str, str]:
    found: dict[str, str] = {}
    for agent, value in entries:
        assert isinstance(value, list | tuple)
        found |= dict.fromkeys(value[2], agent)
    return found


def _written(slots: AgentSlots) -> list[object]:
    """Without what says nothing, since a part of the pool holds several agents."""
    parts = {name: _written_part(part) for name, part in slots.parts.items()}
    value: list[object] = [slots.epoch, slots.slots, parts]
    given = slots.availability
    if given != OPEN or slots.label:
        value.append([given.enabled, given.draining, given.disabled])
        value.append(slots.label)
    return value


def _written_part(part: Part) -> list[object]:
    value: list[object] = [part.slots, part.group, part.start]
    if part.leaving or part.places:
        value.append(part.leaving)
    if part.places:
        value += [part.rank, [(place.agent, place.slots) for place in part.places]]
    return value


def _parsed(value: object) -> AgentSlots:
    assert isinstance(value, list | tuple)
    epoch, slots, parts, *more = value
    availability, label = OPEN, ""
    if more:
        (enabled, draining, disabled), label = more
        availability = Availability(enabled, draining, tuple(disabled))
        availability = OPEN if availability == OPEN else availability
    read = {name: _parsed_part(part) for name, part in parts.items()}
    return AgentSlots(epoch, tuple(slots), read, availability, label)


def _parsed_part(value: list[object]) -> Part:
    slots, group, start, *more = value
    assert isinstance(slots, list | tuple)
    assert isinstance(group, int)
    assert isinstance(start, int)
    if not more:
        return Part(tuple(slots), group, start)
    leaving, *gang = more
    if not gang:
        return Part(tuple(slots), group, start, bool(leaving))
    rank, places = gang
    assert isinstance(rank, int)
    assert isinstance(places, list | tuple)
    named = tuple(Place(agent, count) for agent, count in places)
    return Part(tuple(slots), group, start, bool(leaving), rank, named)
