"""The agents of a label and the rules of fitting, for the oracle of the schedulers."""

from collections.abc import Iterable
from copy import deepcopy
from dataclasses import dataclass
from fractions import Fraction
from hashlib import md5

from control_plane.scheduling.model import (
    AgentCapacity,
    AllocationRequest,
    Placement,
    SchedulerRules,
)


@dataclass
class Agent:
    """An agent with changing slots."""

    name: str
    total: int
    free: int
    aux_total: int
    aux_free: int
    draining: bool

    @property
    def used_slots(self) -> int:
        return self.total - self.free


class Cluster:
    """The agents of a label and the rules of fitting."""

    def __init__(self, agents: Iterable[AgentCapacity], rules: SchedulerRules) -> None:
        self.rules = rules
        self.agents = [
            Agent(a.agent, a.total, a.free, a.aux_total, a.aux_free, a.draining) for a in agents
        ]

    def fit(self, request: AllocationRequest) -> tuple[Placement, ...]:
        """Section 5: fitting."""
        shared = [a for a in self.agents if self.has_room(a, request.slots)]
        if shared:
            best = min(shared, key=lambda a: (-self.score(a, request.slots), *tie(request, a)))
            return (Placement(best.name, request.slots),)
        if request.single_agent or request.slots <= 1:
            return ()
        unused = [a for a in self.agents if a.used_slots == 0 and a.total > 0 and not a.draining]
        sizes = sorted({a.total for a in unused}, reverse=True)
        for size in sizes:
            some = sorted((a for a in unused if a.total == size), key=lambda a: tie(request, a))
            if request.slots % size == 0 and len(some) * size >= request.slots:
                return tuple(Placement(a.name, size) for a in some[: request.slots // size])
        return self.mixed_gang(request, unused, sizes) if self.rules.heterogeneous else ()

    def mixed_gang(
        self, request: AllocationRequest, unused: list[Agent], sizes: list[int]
    ) -> tuple[Placement, ...]:
        places: list[Placement] = []
        left = request.slots
        for size in sizes:
            for agent in sorted(
                (a for a in unused if a.total == size), key=lambda a: tie(request, a)
            ):
                if left >= size:
                    places.append(Placement(agent.name, size))
                    left -= size
        return tuple(places) if left == 0 else ()

    def has_room(self, agent: Agent, slots: int) -> bool:
        return agent.free >= slots > 0 or (slots == 0 and agent.aux_free > 0)

    def score(self, agent: Agent, slots: int) -> Fraction:
        free, total = agent.free, agent.total
        if agent.used_slots == 0 and slots == 0:
            free, total = agent.aux_free, agent.aux_total
        return Fraction(1, 1 + free) if self.rules.fitting == "best" else Fraction(free, total)

    def change(self, places: Iterable[Placement], sign: int) -> None:
        for place in places:
            for agent in self.agents:
                if agent.name == place.agent and not agent.draining:
                    agent.free += sign * place.slots
                    agent.aux_free += sign if place.slots == 0 else 0

    def could_ever(self, request: AllocationRequest) -> bool:
        """Return whether the request fits on idle agents."""
        idle = deepcopy(self)
        for agent in idle.agents:
            if not agent.draining:
                agent.free, agent.aux_free = agent.total, agent.aux_total
        return bool(idle.fit(request))


def tie(request: AllocationRequest, agent: Agent) -> tuple[int, str]:
    return ((number(request.allocation_id) - number(agent.name)) % 2**64, agent.name)


def number(text: str) -> int:
    return int.from_bytes(md5(text.encode(), usedforsecurity=False).digest()[:8], "little")
