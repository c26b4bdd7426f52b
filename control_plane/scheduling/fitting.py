"""Fitting of requests to agents.

A request fits on one agent with enough free slots, or on several unused agents.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from functools import cached_property

from control_plane.scheduling.agent_sizes import AgentSizes
from control_plane.scheduling.hash_rings import HashRings
from control_plane.scheduling.model import (
    ANY_KIND,
    AgentCapacity,
    AllocationRequest,
    FittingPolicy,
    Placement,
    RequestSize,
    RunningAllocation,
)
from control_plane.scheduling.sizes import gang_shape

_SlotCounts = tuple[int, int, int]
"""An agent's free slots, total slots, and kind."""


class AgentSet:
    """The agents of a label, with the slots that are free while a plan is made.

    A request goes to the agent with the best score among the agents with room. `best` fit prefers
    the fewest free slots. `worst` fit prefers the largest fraction of free slots. A zero-slot
    request needs an auxiliary place, room for an allocation without slots. On agents with no slot
    in use, its score counts auxiliary places in place of slots.

    Ties go to the smallest (hash(request) - hash(agent)) mod 2^64, then to the first name. So equal
    agents are used evenly, yet every run decides the same. For this search, agents of one kind with
    equal free and total slots are on one hash ring, in the order of their hashes.

    A request that fits no single agent gets whole unused agents; see `sizes.gang_shape`.

    Args:
        heterogeneous: whether the agents of a gang may differ in size.

    Attributes:
        sizes: the sizes and kinds of the agents, which do not change.
    """

    def __init__(
        self,
        agents: Iterable[AgentCapacity],
        fitting: FittingPolicy = "best",
        heterogeneous: bool = False,
    ) -> None:
        self._agents = sorted(agents, key=lambda agent: agent.agent)
        self.sizes = AgentSizes(self._agents, heterogeneous)
        self._fitting = fitting
        self.heterogeneous = heterogeneous
        self._free = [agent.free for agent in self._agents]
        self._names = [agent.agent for agent in self._agents]
        # Full agents are on no ring, so that scheduling a full pool is cheap.
        kinds = [
            (number, (agent.free, agent.total, agent.kind))
            for number, agent in enumerate(self._agents)
            if agent.free > 0
        ]
        self._rings: HashRings[_SlotCounts] = HashRings(self._names, kinds)
        self._initially_fits: dict[RequestSize, bool] = {}
        self._aux_free: list[int] = []
        self._aux_rings: HashRings[tuple[float, int]] | None = None

    def copy(self) -> "AgentSet":
        """Return a copy. Slots and places of the copy change independently."""
        copied = object.__new__(AgentSet)
        copied.__dict__.update(self.__dict__)
        copied._free = self._free.copy()
        copied._rings = self._rings.copy()
        copied._aux_free = self._aux_free.copy()
        copied._aux_rings = self._aux_rings and self._aux_rings.copy()
        return copied

    def as_initial(self) -> "AgentSet":
        """Return a new set that starts with the current free slots of this set.

        Auxiliary places (room for allocations without slots) are free as they were at the beginning
        of this set.
        """
        agents = [
            replace(agent, free=free) for agent, free in zip(self._agents, self._free, strict=True)
        ]
        return AgentSet(agents, self._fitting, self.heterogeneous)

    @property
    def agent_count(self) -> int:
        """The number of agents."""
        return len(self._agents)

    @cached_property
    def reopening_count(self) -> int:
        """The number of agents that accept no allocations for now, but again by themselves."""
        return sum(agent.reopens for agent in self._agents)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        """The index of each agent in the sorted names, by name."""
        return {name: number for number, name in enumerate(self._names)}

    @property
    def names(self) -> Set[str]:
        """The names of the agents."""
        return self._numbers.keys()

    def count_free_slots(self, refused_kinds: frozenset[int] = ANY_KIND) -> int:
        """Return the free slots of all agents of other kinds together."""
        agents = zip(self._agents, self._free, strict=True)
        return sum(free for agent, free in agents if agent.kind not in refused_kinds)

    def count_unused_slots(self, refused_kinds: frozenset[int] = ANY_KIND) -> int:
        """Return the total slots of agents of other kinds with no slot in use, without draining
        agents.
        """
        return sum(size * count for size, count in self._unused_sizes(refused_kinds).items())

    @property
    def most_free_slots(self) -> int:
        """The largest number of free slots on a single agent. 0 if no slot is free."""
        return max(self._rings.kinds, default=(0, 0, 0))[0]

    def most_free_slots_without(self, refused_kinds: frozenset[int]) -> int:
        """Return the largest number of free slots on a single agent of another kind.

        Return 0 if these agents have no free slot.
        """
        if not refused_kinds:
            return self.most_free_slots
        kinds = self._rings.kinds
        return max((free for free, _, kind in kinds if kind not in refused_kinds), default=0)

    def is_ruled_out(
        self, slots: int, single_agent: bool, refused_kinds: frozenset[int] = ANY_KIND
    ) -> bool:
        """Return whether a size that does not fit now cannot fit after further placements either.

        Return False only for a gang in a heterogeneous set. The gang's agents are chosen from the
        largest down, so the sizes may add up only after another request has taken a large agent.
        """
        if not self.heterogeneous or single_agent:
            return True
        return slots <= max(self.sizes.count_others(refused_kinds), default=0)

    def can_spread(
        self, slots: int, single_agent: bool, refused_kinds: frozenset[int] = ANY_KIND
    ) -> bool:
        """Return whether a request may fit although no agent has enough free slots.

        True for zero-slot requests, which need no slots. A request that may span agents must exceed
        the smallest agent that is not draining, so that a gang can be smaller agents together. If
        all agents are draining (accept no allocations), any request that may span agents returns
        True. False for a request that needs one agent.
        """
        smallest = min(self.sizes.count_others(refused_kinds), default=0)
        return slots == 0 or not (single_agent or slots <= smallest)

    def could_fit_initially(
        self, slots: int, single_agent: bool, refused_kinds: frozenset[int] = ANY_KIND
    ) -> bool:
        """Return whether a request would have fitted before any placement in this set.

        Later placements and releases do not matter. See `can_fit_now` for the rules of zero-slot
        requests and gangs.
        """
        size = (slots, single_agent, refused_kinds)
        if size not in self._initially_fits:
            able = [agent for agent in self._agents if agent.kind not in refused_kinds]
            if slots == 0:
                fitted = any(agent.aux_free > 0 for agent in able)
            elif any(slots <= agent.free for agent in able):
                fitted = True
            else:
                unused = Counter(agent.total for agent in able if 0 < agent.free == agent.total)
                fitted = not single_agent and self._can_form_gang(slots, unused)
            self._initially_fits[size] = fitted
        return self._initially_fits[size]

    def can_fit_now(
        self, slots: int, single_agent: bool, refused_kinds: frozenset[int] = ANY_KIND
    ) -> bool:
        """Return whether a request fits the current free slots. No slots are taken.

        A zero-slot request needs a free auxiliary place, room for an allocation without slots.
        Other requests need one agent with enough free slots. A request that may span agents also
        fits on whole unused agents with exactly `slots` slots together; see `sizes.gang_shape`.
        """
        if slots == 0:
            return any(kind not in refused_kinds for _, kind in self._zero_slot_rings().kinds)
        if slots <= self.most_free_slots_without(refused_kinds):
            return True
        if single_agent or slots == 1:
            return False
        return self._can_form_gang(slots, self._unused_sizes(refused_kinds))

    def find_placements(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Return placements for the request in the order of ranks. Return () if the request does
        not fit.

        Agents that the request excludes are not used. A zero-slot request gets a placement with 0
        slots. The slots stay free; `place_request` also takes them.
        """
        if not request.excluded_agents:
            return self._find_placements(request)
        with_slots = request.slots > 0
        hidden = self._hide_agents(request.excluded_agents, with_slots)
        try:
            return self._find_placements(request)
        finally:
            self._show_agents(hidden, with_slots)

    def forbidden_agents(self, request: AllocationRequest) -> frozenset[str]:
        """Return the names of excluded agents, and of agents of kinds that the request refuses."""
        refused = self.sizes.names_of_kinds(request.refused_kinds)
        return refused.union(request.excluded_agents) if request.excluded_agents else refused

    def _hide_agents(self, names: Iterable[str], with_slots: bool) -> list[tuple[int, int]]:
        """Take all free slots of the named agents, or without `with_slots` all auxiliary places.

        Return the index and the number of taken slots or places of each agent with any.
        """
        if not with_slots:
            self._zero_slot_rings()
        free = self._free if with_slots else self._aux_free
        numbers = {self._numbers[name] for name in names if name in self._numbers}
        hidden = [(number, free[number]) for number in sorted(numbers) if free[number] > 0]
        for number, count in hidden:
            self._adjust_agent(number, count if with_slots else 0, -1 if with_slots else -count)
        return hidden

    def _show_agents(self, hidden: Iterable[tuple[int, int]], with_slots: bool) -> None:
        """Undo `_hide_agents`. `hidden` is its result."""
        for number, count in hidden:
            self._adjust_agent(number, count if with_slots else 0, 1 if with_slots else count)

    def _find_placements(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Return placements for the request on any agents. Return () if it does not fit."""
        slots = request.slots
        if slots == 0:
            return self._find_zero_slot_place(request)
        counts = self._best_slot_counts(slots, request.refused_kinds)
        if counts:
            number = self._rings.nearest_agent(counts, request.allocation_id)
            return (Placement(self._names[number], slots),)
        if request.single_agent or slots == 1:
            return ()
        return self._find_gang(request)

    def place_request(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Take slots for the request and return the placements, as `find_placements` does.

        Return () if the request does not fit; nothing is taken.
        """
        places = self.find_placements(request)
        for place in places:
            self._adjust_agent(self._numbers[place.agent], place.slots, -1)
        return places

    def take_placements(self, places: Iterable[Placement]) -> None:
        """Take the slots of placements. A placement of 0 slots takes an auxiliary place.

        Draining agents and agents that are not in this set are ignored. Free slots are not checked.
        """
        self._adjust_known_agents(places, -1)

    def release_placements(self, places: Iterable[Placement]) -> int:
        """Free the slots of placements. A placement of 0 slots frees an auxiliary place.

        Draining agents and agents that are not in this set are ignored. Return the largest number
        of free slots on one of the placements' agents, 0 if all were ignored.
        """
        return self._adjust_known_agents(places, 1)

    def release_allocations(self, allocations: Iterable[RunningAllocation]) -> bool:
        """Free the slots and the auxiliary places of allocations.

        Draining agents and agents that are not in this set are ignored. Return False if all
        placements of an allocation were ignored, or an allocation has no placements.
        """
        freed: Counter[int] = Counter()
        is_complete = True
        for running in allocations:
            is_ignored = True
            for place in running.placements:
                number = self._numbers.get(place.agent)
                if number is None or self._agents[number].draining:
                    continue
                is_ignored = False
                if place.slots:
                    freed[number] += place.slots
                else:
                    self._adjust_agent(number, 0, 1)
            is_complete &= not is_ignored
        # Each agent moves between hash rings once, although thousands of allocations may end.
        for number, slots in freed.items():
            self._adjust_agent(number, slots, 1)
        return is_complete

    def _adjust_known_agents(self, places: Iterable[Placement], sign: int) -> int:
        """Add `sign` times the slots of each placement to the agent's free slots. A placement of 0
        slots changes the auxiliary places.

        Ignore draining and unknown agents. Return the most free slots on one of the adjusted
        agents, 0 if all were ignored.
        """
        most = 0
        for place in places:
            number = self._numbers.get(place.agent)
            if number is not None and not self._agents[number].draining:
                self._adjust_agent(number, place.slots, sign)
                most = max(most, self._free[number])
        return most

    def _best_slot_counts(self, slots: int, refused_kinds: frozenset[int]) -> list[_SlotCounts]:
        """Return the slot counts with the best score among agents of other kinds with enough free
        slots.

        Several slot counts may share the best score. Return an empty list if no agent has enough.
        """
        kinds = [
            counts
            for counts in self._rings.kinds
            if counts[0] >= slots and counts[2] not in refused_kinds
        ]
        if len(kinds) < 2:
            return kinds
        if self._fitting == "best":
            least = min(kinds)[0]
            return [kind for kind in kinds if kind[0] == least]
        most = max(free / total for free, total, _ in kinds)
        return [counts for counts in kinds if counts[0] / counts[1] == most]

    def _find_gang(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Return placements on whole unused agents, with exactly the slots of the request.

        Return () if no combination of agents qualifies; see `sizes.gang_shape`. No slots are taken.
        """
        refused_kinds = request.refused_kinds
        unused = self._unused_sizes(refused_kinds)
        return tuple(
            Placement(self._names[number], size)
            for size, count in gang_shape(request.slots, unused, self.heterogeneous)
            for number in self._rings.nearest_agents(
                self._unused_counts(size, refused_kinds), request.allocation_id, count
            )
        )

    def _unused_counts(self, size: int, refused_kinds: frozenset[int]) -> list[_SlotCounts]:
        """Return the slot counts of the unused agents of a size, for agents of other kinds."""
        return [
            counts
            for counts in self._rings.kinds
            if counts[0] == counts[1] == size and counts[2] not in refused_kinds
        ]

    def _find_zero_slot_place(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Return a placement for a zero-slot request. Return () if no auxiliary place is free,
        which is room for an allocation without slots.

        The place is not taken.
        """
        rings = self._zero_slot_rings()
        able = [kind for kind in rings.kinds if kind[1] not in request.refused_kinds]
        if not able:
            return ()
        best = max(score for score, _ in able)
        number = rings.nearest_agent(
            [kind for kind in able if kind[0] == best], request.allocation_id
        )
        return (Placement(self._names[number], 0),)

    def _zero_slot_rings(self) -> HashRings[tuple[float, int]]:
        """Return the agents with free auxiliary places, on a hash ring for each score; see
        `_aux_score`.

        An auxiliary place is room for an allocation without slots. The rings, on which a request
        finds the nearest agent, are built on first use. Later placements keep these rings current.
        """
        if self._aux_rings is None:
            self._aux_free = [agent.aux_free for agent in self._agents]
            scores = [
                (number, self._aux_score(number))
                for number, free in enumerate(self._aux_free)
                if free > 0
            ]
            self._aux_rings = HashRings(self._names, scores)
        return self._aux_rings

    def _aux_score(self, number: int) -> tuple[float, int]:
        """Return the score and the kind of an agent for zero-slot requests. Higher scores are
        better.

        If a slot of the agent is in use, the free slots decide, otherwise the free auxiliary places
        (room for allocations without slots). Best fit prefers the agent with the smallest number
        free. Worst fit prefers the agent with the largest free share.

        Args:
            number: the index of the agent in the sorted names.
        """
        agent = self._agents[number]
        free, total = self._free[number], agent.total
        if free == total:
            free, total = self._aux_free[number], agent.aux_total
        return (1 / (1 + free) if self._fitting == "best" else free / total), agent.kind

    def _adjust_agent(self, number: int, slots: int, sign: int) -> None:
        """Release (`sign` 1) or take (`sign` -1) slots of an agent. 0 slots mean an auxiliary
        place, room for an allocation without slots.

        The agent moves to the hash rings, on which requests find agents, for its new free slots and
        score. Free slots are not checked.

        Args:
            number: the index of the agent in the sorted names.
            slots: the number of slots, not negative.
        """
        rings = self._aux_rings if slots else self._zero_slot_rings()
        if rings is not None and self._aux_free[number] > 0:
            rings.remove_agent(self._aux_score(number), number)
        if slots:
            self._adjust_slots(number, sign * slots)
        else:
            self._aux_free[number] += sign
        if rings is not None and self._aux_free[number] > 0:
            rings.add_agent(self._aux_score(number), number)

    def _adjust_slots(self, number: int, slots: int) -> None:
        """Add `slots` to an agent's free slots and move the agent to the matching hash ring, on
        which requests find agents.

        A ring has the agents with equal free and total slots. Agents without free slots are on no
        ring. Negative `slots` take slots; the free slots are not checked.

        Args:
            number: the index of the agent in the sorted names.
        """
        agent, free = self._agents[number], self._free[number]
        if free > 0:
            self._rings.remove_agent((free, agent.total, agent.kind), number)
        free += slots
        self._free[number] = free
        if free > 0:
            self._rings.add_agent((free, agent.total, agent.kind), number)

    def _unused_sizes(self, refused_kinds: frozenset[int]) -> Counter[int]:
        """Return the number of unused agents of other kinds by total slots. Agents with a slot in
        use do not count.
        """
        sizes: Counter[int] = Counter()
        for free, total, kind in self._rings.kinds:
            if free == total and kind not in refused_kinds:
                sizes[total] += self._rings.agent_count((free, total, kind))
        return sizes

    def _can_form_gang(self, slots: int, unused: Mapping[int, int]) -> bool:
        """Return whether whole unused agents can form a gang with exactly `slots` slots.

        Not every sum counts: `sizes.gang_shape` chooses the agents.

        Args:
            unused: the number of unused agents by size.
        """
        return bool(unused) and bool(gang_shape(slots, unused, self.heterogeneous))
