"""The agents of a pool: each agent's slots, and the allocations that hold slots."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from control_plane.actors.ordered_map import Entries, OrderedMap
from control_plane.actors.records import OPEN, Availability
from control_plane.scheduling.model import AgentCapacity, Placement, RunningAllocation

AGENTS_PER_PART = 8
# The number of fields of an encoded agent that is open, has no label and is of kind 0.
_PLAIN = 3
# The number of fields of an encoded agent of another kind.
_WITH_KIND = 6


@dataclass(frozen=True, slots=True)
class AllocationPart:
    """The slots that an allocation holds on a single agent."""

    slots: tuple[int, ...]
    """The ids of the held slots of this agent. Empty for a zero-slot request."""
    group: int = 0
    """The number of the allocation's job."""
    start: int = 0
    """The number of the allocation among all starts of the pool."""
    leaving: bool = False
    """Whether the allocation was asked to release its slots."""
    rank: int = 0
    """The number of this agent among `places`."""
    places: tuple[Placement, ...] = ()
    """All agents of an allocation on several agents, with the number of slots on each. Empty for an
    allocation on one agent.
    """


@dataclass(frozen=True, slots=True)
class JobSlots:
    """The number of slots that a job holds on an agent."""

    held: int
    """The number of held slots."""
    leaving: int
    """The number of held slots that all allocations were asked to release."""


@dataclass(frozen=True, slots=True)
class AgentSlots:
    """The slots of an agent, and the allocations on the agent.

    An allocation on several agents has a part on each: the slots that it holds on that agent.
    """

    epoch: int
    """The number of the agent's session."""
    slots: tuple[int, ...]
    """The ids of the slots."""
    parts: Mapping[str, AllocationPart] = field(default_factory=dict)
    """The slots of each allocation on this agent, by the allocation's name `TRIAL.EPOCH`."""
    availability: Availability = OPEN
    """The slots that accept work, as users have set."""
    label: str = ""
    """The agent's label. Only jobs with this label run on the agent. "": jobs without a label."""
    kind: int = 0
    """The number of the agent's kind (agent_kinds.py)."""

    @property
    def slots_by_allocation(self) -> dict[str, tuple[int, ...]]:
        """Return the ids of the slots of each allocation, by the allocation's name."""
        return {name: part.slots for name, part in self.parts.items()}

    @property
    def first_rank_count(self) -> int:
        """Return the number of allocations with rank 0 on this agent. A gang counts on a single
        agent.
        """
        return sum(part.rank == 0 for part in self.parts.values())

    @property
    def free_slots(self) -> tuple[int, ...]:
        """Return the ids of the slots that accept work and that no allocation holds, in order."""
        held = {slot for part in self.parts.values() for slot in part.slots}
        if self.availability is OPEN:
            return tuple([slot for slot in self.slots if slot not in held])
        is_open = self.availability.is_slot_open
        return tuple(slot for slot in self.slots if slot not in held and is_open(slot))

    @property
    def held_count(self) -> int:
        """Return the number of held slots. A shared slot counts once."""
        return len({slot for part in self.parts.values() for slot in part.slots})

    @property
    def free_count(self) -> int:
        """Return the number of `free_slots`."""
        if self.availability is OPEN:
            return len(self.slots) - self.held_count
        return len(self.free_slots)

    @property
    def usable_count(self) -> int:
        """Return the number of slots that count for the pool: free slots and held slots.

        Closed slots count only while an allocation holds them.
        """
        return self.free_count + self.held_count

    @property
    def can_take_work(self) -> bool:
        """Return whether any slot accepts work, now or after a release.

        For an agent without slots, return whether the agent accepts zero-slot requests.
        """
        if not self.slots:
            return self.availability.enabled
        return any(map(self.availability.is_slot_open, self.slots))

    @property
    def aux_count(self) -> int:
        """Return the number of allocations on this agent that hold no slot."""
        return sum([not part.slots for part in self.parts.values()])

    @property
    def allocations_to_stop(self) -> tuple[str, ...]:
        """Return the sorted names of the allocations that hold slots which accept no work.

        If the agent is disabled, return all allocations. Return () if the agent is draining, which
        means disabled but with allocations that may finish.
        """
        if self.availability.draining:
            return ()
        is_open = self.availability.is_slot_open
        stopped = (
            name
            for name, part in self.parts.items()
            if not self.availability.enabled or not all(map(is_open, part.slots))
        )
        return tuple(sorted(stopped))

    def sharers(self, allocation: str) -> tuple[str, ...]:
        """Return the names of all allocations on the slots of `allocation`.

        Return only `allocation` if it has no slots. Raises KeyError for an unknown allocation.
        """
        slots = self.parts[allocation].slots
        if not slots:
            return (allocation,)
        return tuple(name for name, part in self.parts.items() if part.slots == slots)

    def job_slots(self, group: int) -> JobSlots:
        """Return the slots on this agent that a job holds. A shared slot counts once."""
        leaving: dict[int, bool] = {}
        for part in self.parts.values():
            if part.group == group:
                for slot in part.slots:
                    leaving[slot] = leaving.get(slot, True) and part.leaving
        return JobSlots(len(leaving), sum(leaving.values()))

    def with_allocation(self, allocation: str, part: AllocationPart) -> "AgentSlots":
        """Return a copy with a part of the allocation on this agent, which replaces an earlier
        part.

        Whether the slots exist and are free is not checked.
        """
        return replace(self, parts={**self.parts, allocation: part})

    def with_allocation_leaving(self, allocation: str) -> "AgentSlots":
        """Return a copy in which the allocation was asked to release the slots.

        Raises:
            KeyError: the allocation has no part on this agent.
        """
        return self.with_allocation(allocation, replace(self.parts[allocation], leaving=True))

    def without_allocation(self, allocation: str) -> "AgentSlots":
        """Return a copy without the allocation. An unknown allocation changes nothing."""
        parts = {name: part for name, part in self.parts.items() if name != allocation}
        return replace(self, parts=parts)


@dataclass(frozen=True, slots=True)
class SharedSlot:
    """A held slot that several allocations of a job may share."""

    agent: str
    """The name of the agent."""
    slot: int
    """The id of the slot."""
    sharers: int
    """The number of allocations on the slot."""
    takes_more: bool
    """Whether the slot accepts work, and no allocation was asked to release the slot."""


class Agents:
    """The pool's agents by name, in an ordered map."""

    def __init__(self, ordered: OrderedMap) -> None:
        self._ordered = ordered

    def get(self, name: str) -> AgentSlots | None:
        """Return the slots of an agent. Return None for an unknown agent."""
        value = self._ordered.get(name)
        return None if value is None else _decode_agent(value)

    def items(self) -> list[tuple[str, AgentSlots]]:
        """Return the name and slots of each agent, by name."""
        return [(name, _decode_agent(value)) for name, value in self._ordered.items()]

    def capacities(self, aux_per_agent: int) -> Iterator[AgentCapacity]:
        """Iterate over the capacities of agents that accept work or are draining, by name.

        The capacities of a leaf are cached until the leaf changes.

        Args:
            aux_per_agent: the most zero-slot requests on an agent.
        """
        capacities = (
            leaf.compute_once(_agent_capacities, aux_per_agent) for leaf in self._ordered.leaves()
        )
        return chain.from_iterable(capacities)

    def running_allocations(self, group: int) -> Iterator[RunningAllocation]:
        """Iterate over a job's running allocations, in the order of the agents with the
        first rank.
        """
        for leaf in self._ordered.leaves():
            yield from leaf.compute_once(_allocations_by_group, None).get(group, ())

    def shared_slots(self, group: int) -> Iterator[SharedSlot]:
        """Iterate over a job's slots with allocations of a single slot, by agent."""
        for leaf in self._ordered.leaves():
            yield from leaf.compute_once(_shared_slots, None).get(group, ())

    def find_agent(self, allocation: str) -> str:
        """Return the name of any agent on which the allocation has been placed.

        Return "" if no agent has the allocation.
        """
        names = (
            leaf.compute_once(_agents_by_allocation, None).get(allocation)
            for leaf in self._ordered.leaves()
        )
        return next(filter(None, names), "")

    def put(self, name: str, slots: AgentSlots) -> None:
        """Write the slots of an agent, known or new."""
        self._ordered.put(name, _encode_agent(slots))

    def remove(self, name: str) -> None:
        """Remove an agent. An unknown agent changes nothing."""
        self._ordered.remove(name)


def _agent_capacities(entries: Entries, aux_per_agent: int) -> tuple[AgentCapacity, ...]:
    """Return the capacities of the agents of a leaf that accept work or are draining."""
    capacities = (_capacity(name, value, aux_per_agent) for name, value in entries)
    return tuple(capacity for capacity in capacities if capacity is not None)


def _capacity(name: str, value: object, aux: int) -> AgentCapacity | None:
    """Return the capacity of an encoded agent. A draining agent has its held slots and no free
    slot.

    Return None if the agent accepts no work and is not draining.
    """
    assert isinstance(value, list | tuple)
    if len(value) == _PLAIN or (len(value) == _WITH_KIND and _is_open(*value[3:5])):
        slots, parts = value[1:3]
        kind = value[5] if len(value) == _WITH_KIND else 0
        used = len({slot for part in parts.values() for slot in part[0]})
        aux_used = sum([not part[0] for part in parts.values()])
        free, aux_free = len(slots) - used, max(0, aux - aux_used)
        return AgentCapacity(name, len(slots), free, "", aux, aux_free, kind=kind)
    agent = _decode_agent(value)
    if agent.availability.draining:
        held_count = agent.held_count
        capacity = AgentCapacity(
            name, held_count, 0, agent.label, agent.aux_count, 0, draining=True, kind=agent.kind
        )
        closed = agent.availability
        return replace(capacity, checkpoints=closed.checkpoints, reopens=closed.reopens)
    if not agent.can_take_work:
        return None
    aux_free = max(0, aux - agent.aux_count)
    usable, free = agent.usable_count, agent.free_count
    return AgentCapacity(name, usable, free, agent.label, aux, aux_free, kind=agent.kind)


def _is_open(availability: Sequence[object], label: object) -> bool:
    """Return whether an encoded availability and label are the defaults."""
    enabled, draining, disabled, *newer = availability
    return not (label or draining or disabled or newer) and bool(enabled)


def _allocations_by_group(entries: Entries, _: None) -> dict[int, list[RunningAllocation]]:
    """Return the running allocations of a leaf, by job. A gang belongs to the leaf of rank 0.

    Allocations that share a slot are returned as one, with the name and number of the first start.
    """
    by_group: dict[int, list[RunningAllocation]] = {}
    for agent, value in entries:
        for allocation, part in _first_sharers(_decode_agent(value)):
            if part.rank:
                continue
            places = part.places or (Placement(agent, len(part.slots)),)
            slots = sum([place.slots for place in places])
            holding = RunningAllocation(
                allocation, slots, part.group, part.start, leaving=part.leaving, placements=places
            )
            by_group.setdefault(part.group, []).append(holding)
    return by_group


def _first_sharers(agent: AgentSlots) -> Iterator[tuple[str, AllocationPart]]:
    """Iterate over an agent's allocations. A shared slot has only the first started allocation.

    This allocation is leaving if all allocations on the slot are leaving.
    """
    if len(agent.parts) <= agent.held_count:
        yield from agent.parts.items()
        return
    found: dict[tuple[int, ...], tuple[str, AllocationPart]] = {}
    for name, part in sorted(agent.parts.items(), key=lambda item: item[1].start):
        if not part.slots:
            yield name, part
        elif (first := found.get(part.slots)) is None:
            found[part.slots] = name, part
        else:
            found[part.slots] = (
                first[0],
                replace(first[1], leaving=first[1].leaving and part.leaving),
            )
    yield from found.values()


def _shared_slots(entries: Entries, _: None) -> dict[int, list[SharedSlot]]:
    """Return the slots of a leaf with allocations of a single slot, by job."""
    by_group: dict[int, list[SharedSlot]] = {}
    for name, value in entries:
        agent = _decode_agent(value)
        for first, part in _first_sharers(agent):
            if len(part.slots) != 1 or part.places:
                continue
            sharers = [agent.parts[other] for other in agent.sharers(first)]
            is_open = agent.availability.is_slot_open(part.slots[0])
            takes_more = is_open and not any(other.leaving for other in sharers)
            shared = SharedSlot(name, part.slots[0], len(sharers), takes_more)
            by_group.setdefault(part.group, []).append(shared)
    return by_group


def _agents_by_allocation(entries: Entries, _: None) -> dict[str, str]:
    """Return the name of an agent by allocation, for the allocations of a leaf.

    If several agents of the leaf have parts of an allocation, the last agent counts.
    """
    by_allocation: dict[str, str] = {}
    for agent, value in entries:
        assert isinstance(value, list | tuple)
        by_allocation |= dict.fromkeys(value[2], agent)
    return by_allocation


def _encode_agent(slots: AgentSlots) -> list[object]:
    """Encode an agent as a list without default values.

    The form is compact, since a stored part of the ordered map contains several agents.
    """
    parts = {name: _encode_part(part) for name, part in slots.parts.items()}
    value: list[object] = [slots.epoch, slots.slots, parts]
    availability = slots.availability
    if availability != OPEN or slots.label or slots.kind:
        encoded = [availability.enabled, availability.draining, availability.disabled]
        if availability.checkpoints:
            value.append([*encoded, availability.reopens, True])
        else:
            value.append([*encoded, True] if availability.reopens else encoded)
        value.append(slots.label)
    if slots.kind:
        value.append(slots.kind)
    return value


def _encode_part(part: AllocationPart) -> list[object]:
    """Encode an allocation's part without default values."""
    value: list[object] = [part.slots, part.group, part.start]
    if part.leaving or part.places:
        value.append(part.leaving)
    if part.places:
        value += [part.rank, [(place.agent, place.slots) for place in part.places]]
    return value


def _decode_agent(value: object) -> AgentSlots:
    """Decode an agent from the list `[epoch, slots, parts, availability, label, kind]`.

    The last value or the last three values may be missing: the defaults are an open agent, "" and
    0. Values that a newer version appended are ignored.

    Raises:
        ValueError: the list has fewer than three values, or exactly four.
        AssertionError: the value is no list.
    """
    assert isinstance(value, list | tuple)
    epoch, slots, parts, *more = value
    availability, label, kind = OPEN, "", 0
    if more:
        (enabled, draining, disabled, *newer), label, *rest = more
        kind = int(rest[0]) if rest else 0
        reopens, checkpoints = bool(newer and newer[0]), len(newer) > 1 and bool(newer[1])
        availability = Availability(enabled, draining, tuple(disabled), reopens, checkpoints)
        availability = OPEN if availability == OPEN else availability
    read = {name: _decode_part(part) for name, part in parts.items()}
    return AgentSlots(epoch, tuple(slots), read, availability, label, kind)


def _decode_part(value: list[object]) -> AllocationPart:
    """Decode an allocation's part from the list of `_encode_part`, with the defaults for missing
    values.

    Values that a newer version appended are ignored.
    """
    slots, group, start, *more = value
    assert isinstance(slots, list | tuple)
    assert isinstance(group, int)
    assert isinstance(start, int)
    if not more:
        return AllocationPart(tuple(slots), group, start)
    leaving, *gang = more
    if not gang:
        return AllocationPart(tuple(slots), group, start, bool(leaving))
    rank, places = gang[:2]
    assert isinstance(rank, int)
    assert isinstance(places, list | tuple)
    named = tuple(Placement(agent, count) for agent, count in places)
    return AllocationPart(tuple(slots), group, start, bool(leaving), rank, named)
