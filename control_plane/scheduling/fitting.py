"""Fitting of requests to agents: to one with enough free slots, or to several unused ones; and the
placement of a plan's starts.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from functools import cached_property

from control_plane.scheduling.hash_rings import HashRings
from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    AllocationStart,
    FittingPolicy,
    Job,
    Placement,
)
from control_plane.scheduling.sizes import can_hold, gang_shape

# An agent's free slots and all its slots.
_SlotCounts = tuple[int, int]


class RequestPlacer:
    """Places requests on a live set of agents, up to so many of them.

    Nothing is released meanwhile, so a size that did not fit once is not tried again.
    """

    def __init__(self, agent_set: "AgentSet", starts_max: int) -> None:
        self.agents = agent_set
        self.starts: list[AllocationStart] = []
        self._starts_max = starts_max
        self._too_large: set[tuple[int, bool]] = set()

    @property
    def is_full(self) -> bool:
        """Whether the plan has as many starts as it may have."""
        return len(self.starts) >= self._starts_max

    def place_request(self, request: AllocationRequest) -> bool:
        """Start the request; False: it does not fit."""
        size = (request.slots, request.single_agent)
        if size in self._too_large:
            return False
        places = self.agents.place_request(request)
        if not places:
            if self.agents.is_ruled_out(*size):
                self._too_large.add(size)
            return False
        self.starts.append(AllocationStart(request, places))
        return True

    def can_start_any(self, job: Job, slots_max: int | None = None) -> bool:
        """Whether reading the job's pending requests may find one that starts; `slots_max`: the
        slots it may take.
        """
        for slots in job.pending_slots:
            if slots_max is None or 0 < slots <= slots_max:
                size = (slots, job.single_agent)
                if size not in self._too_large and self.agents.could_fit_initially(*size):
                    return True
        return False


class AgentSet:
    """The agents of one label, with their free slots while a plan is made.

    A request goes to the agent with the best score among those with room. `best` fit prefers the
    fewest free slots, `worst` the largest part of free slots; a request without slots is scored so
    by the free auxiliary places where nobody uses the slots. Among equals the smaller
    (hash(request) - hash(agent)) mod 2^64 wins, then the agent's id: equal agents are used evenly,
    yet every run decides the same. A request that no agent has room for takes whole agents whose
    slots nobody uses; see `sizes.gang_shape`.
    """

    def __init__(
        self,
        agents: Iterable[AgentCapacity],
        fitting: FittingPolicy = "best",
        heterogeneous: bool = False,
    ) -> None:
        self._agents = sorted(agents, key=lambda agent: agent.agent)
        self._fitting = fitting
        self.heterogeneous = heterogeneous
        self._free = [agent.free for agent in self._agents]
        self._names = [agent.agent for agent in self._agents]
        # Full agents are on no ring: scheduling a full pool costs next to nothing.
        kinds = [
            (number, (agent.free, agent.total))
            for number, agent in enumerate(self._agents)
            if agent.free > 0
        ]
        self._rings: HashRings[_SlotCounts] = HashRings(self._names, kinds)
        self._most_free_initially, self._unused_initially = (
            self.most_free_slots,
            self._unused_sizes(),
        )
        self._ever_fits: dict[tuple[int, bool], bool] = {}
        self._initially_fits: dict[tuple[int, bool], bool] = {}
        self._aux_free: list[int] = []
        self._aux_rings: HashRings[float] | None = None

    def copy(self) -> "AgentSet":
        """An independent copy."""
        made = object.__new__(AgentSet)
        made.__dict__.update(self.__dict__)
        made._free = self._free.copy()
        made._rings = self._rings.copy()
        made._aux_free = self._aux_free.copy()
        made._aux_rings = self._aux_rings and self._aux_rings.copy()
        return made

    def as_found(self) -> "AgentSet":
        """The agents as a plan finds them that begins with the slots that are free now."""
        agents = [
            replace(agent, free=free) for agent, free in zip(self._agents, self._free, strict=True)
        ]
        return AgentSet(agents, self._fitting, self.heterogeneous)

    @property
    def agent_count(self) -> int:
        """The number of agents."""
        return len(self._agents)

    @cached_property
    def total_slots(self) -> int:
        """The slots of all agents, free or held."""
        return sum(agent.total for agent in self._agents)

    @cached_property
    def agent_sizes(self) -> Counter[int]:
        """The number of agents of each size, of those that take work."""
        return Counter([agent.total for agent in self._agents if not agent.draining])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}

    @property
    def free_slots(self) -> int:
        """The free slots of all agents."""
        return sum(self._free)

    @property
    def unused_slots(self) -> int:
        """The slots of the agents that nobody uses."""
        return sum(size * count for size, count in self._unused_sizes().items())

    @property
    def most_free_slots(self) -> int:
        """The free slots of the agent that has most of them."""
        return max(self._rings.kinds, default=(0, 0))[0]

    def can_ever_fit(self, slots: int, single_agent: bool) -> bool:
        """Whether the agents could hold `slots` if nobody else used them."""
        key = (slots, single_agent)
        if key not in self._ever_fits:
            self._ever_fits[key] = (
                can_hold(slots, self.agent_sizes, single_agent, self.heterogeneous)
                if slots
                else any(agent.aux_total > 0 for agent in self._agents)
            )
        return self._ever_fits[key]

    def is_ruled_out(self, slots: int, single_agent: bool) -> bool:
        """Whether a size that does not fit now cannot fit after more was taken either. A gang of
        several sizes may come out even once a big agent is gone.
        """
        return not self.heterogeneous or single_agent or slots <= max(self.agent_sizes, default=0)

    def can_spread(self, slots: int, single_agent: bool) -> bool:
        """Whether a request may be placed elsewhere than in the free slots of one agent."""
        return slots == 0 or not (single_agent or slots <= min(self.agent_sizes, default=0))

    def could_fit_initially(self, slots: int, single_agent: bool) -> bool:
        """Whether a request would have fitted before anything was taken."""
        key = (slots, single_agent)
        if key not in self._initially_fits:
            if slots == 0:
                fitted = any(agent.aux_free > 0 for agent in self._agents)
            elif single_agent or slots <= self._most_free_initially:
                fitted = slots <= self._most_free_initially
            else:
                fitted = self._can_form_gang(slots, self._unused_initially)
            self._initially_fits[key] = fitted
        return self._initially_fits[key]

    def can_fit_now(self, slots: int, single_agent: bool) -> bool:
        """Whether a request would fit now."""
        if slots == 0:
            return bool(self._zero_slot_rings().kinds)
        if slots <= self.most_free_slots:
            return True
        return not single_agent and slots > 1 and self._can_form_gang(slots, self._unused_sizes())

    def find_placements(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Find the request's places, in the order of its ranks; () if it fits nowhere."""
        slots = request.slots
        if slots == 0:
            return self._find_zero_slot_place(request.allocation_id)
        kinds = self._best_slot_counts(slots)
        if kinds:
            number = self._rings.nearest_agent(kinds, request.allocation_id)
            return (Placement(self._names[number], slots),)
        if request.single_agent or slots == 1:
            return ()
        return self._find_gang(request)

    def place_request(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Find the request's places and take them."""
        places = self.find_placements(request)
        for place in places:
            self._adjust_agent(self._numbers[place.agent], place.slots, -1)
        return places

    def take_placements(self, places: Iterable[Placement]) -> None:
        """Take places. Those on agents that drain, or are not in this set, do not count."""
        self._adjust_known_agents(places, -1)

    def release_placements(self, places: Iterable[Placement]) -> int:
        """Free places, as `take_placements` takes them. Returns the most free slots of any of their
        agents.
        """
        return self._adjust_known_agents(places, 1)

    def _adjust_known_agents(self, places: Iterable[Placement], sign: int) -> int:
        most = 0
        for place in places:
            number = self._numbers.get(place.agent)
            if number is not None and not self._agents[number].draining:
                self._adjust_agent(number, place.slots, sign)
                most = max(most, self._free[number])
        return most

    def _best_slot_counts(self, slots: int) -> list[_SlotCounts]:
        """The slot counts of the best score among those with room."""
        kinds = [kind for kind in self._rings.kinds if kind[0] >= slots]
        if len(kinds) < 2:
            return kinds
        if self._fitting == "best":
            least = min(kinds)[0]
            return [kind for kind in kinds if kind[0] == least]
        most = max(free / total for free, total in kinds)
        return [(free, total) for free, total in kinds if free / total == most]

    def _find_gang(self, request: AllocationRequest) -> tuple[Placement, ...]:
        return tuple(
            Placement(self._names[number], size)
            for size, count in gang_shape(request.slots, self._unused_sizes(), self.heterogeneous)
            for number in self._rings.nearest_agents((size, size), request.allocation_id, count)
        )

    def _find_zero_slot_place(self, allocation: str) -> tuple[Placement, ...]:
        """A place for a request without slots."""
        rings = self._zero_slot_rings()
        if not rings.kinds:
            return ()
        number = rings.nearest_agent([max(rings.kinds)], allocation)
        return (Placement(self._names[number], 0),)

    def _zero_slot_rings(self) -> HashRings[float]:
        """The agents with free auxiliary places, by score; made when first asked for."""
        if self._aux_rings is None:
            self._aux_free = [agent.aux_free for agent in self._agents]
            scores = [
                (number, self._aux_score(number))
                for number, free in enumerate(self._aux_free)
                if free > 0
            ]
            self._aux_rings = HashRings(self._names, scores)
        return self._aux_rings

    def _aux_score(self, number: int) -> float:
        agent = self._agents[number]
        free, total = self._free[number], agent.total
        if free == total:
            free, total = self._aux_free[number], agent.aux_total
        return 1 / (1 + free) if self._fitting == "best" else free / total

    def _adjust_agent(self, number: int, slots: int, sign: int) -> None:
        """Release (`sign` 1) or take (-1) so many slots of an agent, or an auxiliary place."""
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
        total, free = self._agents[number].total, self._free[number]
        if free > 0:
            self._rings.remove_agent((free, total), number)
        free += slots
        self._free[number] = free
        if free > 0:
            self._rings.add_agent((free, total), number)

    def _unused_sizes(self) -> dict[int, int]:
        """The number of agents of each size that nobody uses."""
        rings = self._rings
        return {
            total: rings.agent_count((free, total)) for free, total in rings.kinds if free == total
        }

    def _can_form_gang(self, slots: int, unused: dict[int, int]) -> bool:
        return bool(unused) and bool(gang_shape(slots, unused, self.heterogeneous))
