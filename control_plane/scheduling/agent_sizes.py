"""The sizes and kinds of the agents of a label, free or in use."""

from collections import Counter
from collections.abc import Collection, Sequence
from functools import cached_property

from control_plane.scheduling.model import ANY_KIND, AgentCapacity, RequestSize
from control_plane.scheduling.sizes import can_hold


class AgentSizes:
    """The sizes and kinds of agents. Free slots do not matter, and results are cached.

    Args:
        agents: the agents, sorted by name.
        heterogeneous: whether the agents of a gang may differ in size.
    """

    def __init__(self, agents: Sequence[AgentCapacity], heterogeneous: bool) -> None:
        self._agents = agents
        self._heterogeneous = heterogeneous
        self._counts: dict[frozenset[int], Counter[int]] = {}
        self._ever_fits: dict[RequestSize, bool] = {}
        self._slots: dict[frozenset[int], int] = {}
        self._names: dict[frozenset[int], frozenset[str]] = {}

    @cached_property
    def total_slots(self) -> int:
        """The total slots of all agents, free or in use."""
        return sum(agent.total for agent in self._agents)

    @cached_property
    def kinds(self) -> frozenset[int]:
        """The kinds of the agents."""
        return frozenset(agent.kind for agent in self._agents)

    def slots_of_others(self, refused_kinds: frozenset[int]) -> int:
        """Return the total slots of the agents of other kinds, free or in use."""
        if refused_kinds not in self._slots:
            agents = [agent for agent in self._agents if agent.kind not in refused_kinds]
            self._slots[refused_kinds] = sum([agent.total for agent in agents])
        return self._slots[refused_kinds]

    def count_others(self, refused_kinds: frozenset[int] = ANY_KIND) -> Counter[int]:
        """Return the number of agents of other kinds by total slots, without draining agents."""
        if refused_kinds not in self._counts:
            agents = [agent for agent in self._agents if agent.kind not in refused_kinds]
            sizes = Counter([agent.total for agent in agents if not agent.draining])
            self._counts[refused_kinds] = sizes
        return self._counts[refused_kinds]

    def names_of_kinds(self, kinds: frozenset[int]) -> frozenset[str]:
        """Return the names of the agents of certain kinds."""
        if kinds not in self._names:
            names = [agent.agent for agent in self._agents if agent.kind in kinds]
            self._names[kinds] = frozenset(names)
        return self._names[kinds]

    def can_ever_fit(
        self,
        slots: int,
        single_agent: bool,
        refused_kinds: frozenset[int] = ANY_KIND,
        excluded_agents: Collection[str] = (),
    ) -> bool:
        """Return whether a request would fit if no slot were in use.

        Draining agents do not count, except for a request without slots. A request without slots
        needs an agent with auxiliary places (room for allocations without slots), free or not.
        Return False without agents.

        Args:
            refused_kinds: the kinds of the agents that must not run the request.
            excluded_agents: the names of the agents that must not run the request.
        """
        size = (slots, single_agent, refused_kinds)
        excluded = self._known_agents(excluded_agents, refused_kinds) if excluded_agents else []
        if not excluded and size in self._ever_fits:
            return self._ever_fits[size]
        if slots:
            sizes = self.count_others(refused_kinds).copy()
            sizes.subtract(agent.total for agent in excluded if not agent.draining)
            # A unary plus drops the sizes that no agent is left with.
            fits = can_hold(slots, +sizes, single_agent, self._heterogeneous)
        else:
            places = sum(agent.aux_total > 0 for agent in excluded)
            fits = self._aux_agents(refused_kinds) > places
        if not excluded:
            self._ever_fits[size] = fits
        return fits

    def _known_agents(
        self, names: Collection[str], refused_kinds: frozenset[int]
    ) -> list[AgentCapacity]:
        """Return the agents with names in `names`, without agents of refused kinds."""
        known = [self._by_name[name] for name in {*names} if name in self._by_name]
        return [agent for agent in known if agent.kind not in refused_kinds]

    @cached_property
    def _by_name(self) -> dict[str, AgentCapacity]:
        return {agent.agent: agent for agent in self._agents}

    def _aux_agents(self, refused_kinds: frozenset[int]) -> int:
        """Return the number of agents of other kinds with auxiliary places, free or not."""
        return sum(agent.aux_total > 0 for agent in self._agents if agent.kind not in refused_kinds)
