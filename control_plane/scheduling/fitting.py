"""Which agents take a request: one that has room, else several that nobody uses."""

from collections import Counter
from collections.abc import Iterable
from functools import cached_property

from control_plane.scheduling.model import Capacity, FittingPolicy, Place, Request
from control_plane.scheduling.rings import Rings
from control_plane.scheduling.sizes import can_hold, gang

# Free slots and all slots of an agent.
_Kind = tuple[int, int]


class Fleet:
    """The agents of one label while a plan is made: what they have, what was taken and given back.

    A request goes to the agent with the best score among those with room. `best` fit prefers the
    fewest free slots, `worst` the largest part of free slots; a request without slots is scored so
    by the places beside the slots where nobody uses the slots. Among equals the smaller
    (hash(request) - hash(agent)) mod 2^64 wins, then the agent's id: equal agents are used evenly,
    yet every run decides the same. A request that no agent has room for takes whole agents whose
    slots nobody uses; see `sizes.gang`.
    """

    def __init__(
        self,
        agents: Iterable[Capacity],
        fitting: FittingPolicy = "best",
        heterogeneous: bool = False,
    ) -> None:
        self._agents = sorted(agents, key=lambda agent: agent.agent)
        self._fitting = fitting
        self.heterogeneous = heterogeneous
        self._free = [agent.free for agent in self._agents]
        self._names = [agent.agent for agent in self._agents]
        # Full agents are on no ring: a full pool costs next to nothing.
        kinds = [
            (number, (agent.free, agent.total))
            for number, agent in enumerate(self._agents)
            if agent.free > 0
        ]
        self._rings: Rings[_Kind] = Rings(self._names, kinds)
        self._most_at_first, self._unused_at_first = self.most_free, self._unused()
        self._possible: dict[tuple[int, bool], bool] = {}
        self._fitted: dict[tuple[int, bool], bool] = {}
        self._aux_free: list[int] = []
        self._aux_rings: Rings[float] | None = None

    def copy(self) -> "Fleet":
        """The same fleet, to be changed on its own."""
        made = object.__new__(Fleet)
        made.__dict__.update(self.__dict__)
        made._free = self._free.copy()
        made._rings = self._rings.copy()
        made._aux_free = self._aux_free.copy()
        made._aux_rings = self._aux_rings and self._aux_rings.copy()
        return made

    @property
    def count(self) -> int:
        """How many agents there are."""
        return len(self._agents)

    @cached_property
    def capacity(self) -> int:
        """The slots of all agents, free or held."""
        return sum(agent.total for agent in self._agents)

    @cached_property
    def sizes(self) -> Counter[int]:
        """How many agents that take work have how many slots."""
        return Counter([agent.total for agent in self._agents if not agent.draining])

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._names)}

    @property
    def free(self) -> int:
        """The free slots of all agents."""
        return sum(self._free)

    @property
    def unused(self) -> int:
        """The slots of the agents that nobody uses."""
        return sum(size * count for size, count in self._unused().items())

    @property
    def most_free(self) -> int:
        """The free slots of the agent that has most of them."""
        return max(self._rings.kinds, default=(0, 0))[0]

    def is_possible(self, slots: int, single_agent: bool) -> bool:
        """Whether the agents could hold `slots` if nobody else used them."""
        key = (slots, single_agent)
        if key not in self._possible:
            self._possible[key] = (
                can_hold(slots, self.sizes, single_agent, self.heterogeneous)
                if slots
                else any(agent.aux_total > 0 for agent in self._agents)
            )
        return self._possible[key]

    def fits_no_more(self, slots: int, single_agent: bool) -> bool:
        """Whether a size that does not fit cannot fit after more was taken either. A gang of
        several sizes may come out even once a big agent is gone.
        """
        return not self.heterogeneous or single_agent or slots <= max(self.sizes, default=0)

    def may_spread(self, slots: int, single_agent: bool) -> bool:
        """Whether room for a request may be elsewhere than in the free slots of one agent."""
        return slots == 0 or not (single_agent or slots <= min(self.sizes, default=0))

    def fitted(self, slots: int, single_agent: bool) -> bool:
        """Whether a request would have fitted before anything was taken."""
        key = (slots, single_agent)
        if key not in self._fitted:
            if slots == 0:
                fitted = any(agent.aux_free > 0 for agent in self._agents)
            elif single_agent or slots <= self._most_at_first:
                fitted = slots <= self._most_at_first
            else:
                fitted = self._makes_gang(slots, self._unused_at_first)
            self._fitted[key] = fitted
        return self._fitted[key]

    def fits(self, slots: int, single_agent: bool) -> bool:
        """Whether a request would fit now."""
        if slots == 0:
            return bool(self._beside().kinds)
        if slots <= self.most_free:
            return True
        return not single_agent and slots > 1 and self._makes_gang(slots, self._unused())

    def fit(self, request: Request) -> tuple[Place, ...]:
        """Where the request goes, in the order of its ranks; () if it fits nowhere."""
        slots = request.slots
        if slots == 0:
            return self._fit_beside(request.allocation)
        kinds = self._best(slots)
        if kinds:
            number = self._rings.nearest(kinds, request.allocation)
            return (Place(self._names[number], slots),)
        if request.single_agent or slots == 1:
            return ()
        return self._fit_gang(request)

    def place(self, request: Request) -> tuple[Place, ...]:
        """Fits the request and takes what it gets."""
        places = self.fit(request)
        for place in places:
            self._change(self._numbers[place.agent], place.slots, -1)
        return places

    def take(self, places: Iterable[Place]) -> None:
        """Takes places. Those on agents that drain, or are not of this fleet, do not count."""
        self._change_known(places, -1)

    def give_back(self, places: Iterable[Place]) -> int:
        """Frees places, as `take` takes them. The free slots of that of the agents with most."""
        return self._change_known(places, 1)

    def _change_known(self, places: Iterable[Place], sign: int) -> int:
        most = 0
        for place in places:
            number = self._numbers.get(place.agent)
            if number is not None and not self._agents[number].draining:
                self._change(number, place.slots, sign)
                most = max(most, self._free[number])
        return most

    def _best(self, slots: int) -> list[_Kind]:
        """The kinds of the best score among those with room."""
        kinds = [kind for kind in self._rings.kinds if kind[0] >= slots]
        if len(kinds) < 2:
            return kinds
        if self._fitting == "best":
            least = min(kinds)[0]
            return [kind for kind in kinds if kind[0] == least]
        most = max(free / total for free, total in kinds)
        return [(free, total) for free, total in kinds if free / total == most]

    def _fit_gang(self, request: Request) -> tuple[Place, ...]:
        return tuple(
            Place(self._names[number], size)
            for size, count in gang(request.slots, self._unused(), self.heterogeneous)
            for number in self._rings.row((size, size), request.allocation, count)
        )

    def _fit_beside(self, allocation: str) -> tuple[Place, ...]:
        """A place beside the slots."""
        rings = self._beside()
        if not rings.kinds:
            return ()
        number = rings.nearest([max(rings.kinds)], allocation)
        return (Place(self._names[number], 0),)

    def _beside(self) -> Rings[float]:
        """Agents with places beside the slots, by score; made when first asked for."""
        if self._aux_rings is None:
            self._aux_free = [agent.aux_free for agent in self._agents]
            scores = [
                (number, self._aux_score(number))
                for number, free in enumerate(self._aux_free)
                if free > 0
            ]
            self._aux_rings = Rings(self._names, scores)
        return self._aux_rings

    def _aux_score(self, number: int) -> float:
        agent = self._agents[number]
        free, total = self._free[number], agent.total
        if free == total:
            free, total = self._aux_free[number], agent.aux_total
        return 1 / (1 + free) if self._fitting == "best" else free / total

    def _change(self, number: int, slots: int, sign: int) -> None:
        """Gives back (`sign` 1) or takes (-1) so many slots of an agent, or a place beside them."""
        rings = self._aux_rings if slots else self._beside()
        if rings is not None and self._aux_free[number] > 0:
            rings.remove(self._aux_score(number), number)
        if slots:
            self._change_slots(number, sign * slots)
        else:
            self._aux_free[number] += sign
        if rings is not None and self._aux_free[number] > 0:
            rings.add(self._aux_score(number), number)

    def _change_slots(self, number: int, slots: int) -> None:
        total, free = self._agents[number].total, self._free[number]
        if free > 0:
            self._rings.remove((free, total), number)
        free += slots
        self._free[number] = free
        if free > 0:
            self._rings.add((free, total), number)

    def _unused(self) -> dict[int, int]:
        """How many agents of each size nobody uses."""
        rings = self._rings
        return {total: rings.count((free, total)) for free, total in rings.kinds if free == total}

    def _makes_gang(self, slots: int, unused: dict[int, int]) -> bool:
        return bool(unused) and bool(gang(slots, unused, self.heterogeneous))
