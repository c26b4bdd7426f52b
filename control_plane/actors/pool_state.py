"""What a pool is made of: its head, its settings, and the maps of its agents and jobs."""

from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.agent_messages import AllocationRemoved
from control_plane.actors.ordered import Ordered
from control_plane.actors.pool_messages import PoolSettings
from control_plane.actors.slots import AGENTS_PER_PART, Agents, AgentSlots
from control_plane.actors.step import Turn
from control_plane.actors.waiting import Waiting
from control_plane.evolve import evolve

POOLS = "pools"


@dataclass(frozen=True)
class PoolState:
    """The head: sums over the parts. `unscheduled`: something changed since the last plan, and
    `changed` if that was settings, which concern those who run.

    `slots`: those that are free or held; `started` numbers the starts of allocations; `waits`: why
    the first request that is left behind waits. `removed`: nothing is left of it but this.
    """

    name: str
    agents: int = 0
    slots: int = 0
    free: int = 0
    queued: int = 0
    running: int = 0
    unscheduled: bool = False
    waits: str = ""
    started: int = 0
    changed: bool = False
    removed: bool = False


def settings_of(turn: Turn) -> PoolSettings:
    """The pool's settings."""
    return turn.part("settings", PoolSettings) or PoolSettings()


def waiting_in(turn: Turn) -> Waiting:
    """Who waits in the pool."""
    return Waiting(turn)


def agents_of(turn: Turn) -> Agents:
    """The pool's agents."""
    return Agents(Ordered(turn, "agents", AGENTS_PER_PART))


def recounted(state: PoolState, before: AgentSlots, after: AgentSlots) -> PoolState:
    """The sums after a change of one agent."""
    return evolve(
        state,
        slots=state.slots + after.total - before.total,
        free=state.free + after.free_count - before.free_count,
        running=state.running + after.leads - before.leads,
        unscheduled=True,
    )


def freed(state: PoolState, agent: str, allocation: str, turn: Turn) -> PoolState:
    """Takes the allocation's part off one of its agents, and tells that."""
    agents = agents_of(turn)
    before = agents.get(agent)
    assert before is not None
    part = before.parts[allocation]
    after = before.releasing(allocation)
    agents.put(agent, after)
    waiting_in(turn).free(part.group, len(part.slots), ended=part.rank == 0, leaving=part.leaving)
    turn.send(addresses.agent(agent), AllocationRemoved(*parse_allocation(allocation)))
    return recounted(state, before, after)


def asked_to_go(agent: str, allocation: str, turn: Turn) -> bool:
    """Notes that the allocation, of which `agent` has a part, was asked to give its slots back;
    False if it was before.
    """
    agents = agents_of(turn)
    found = agents.get(agent)
    part = found.parts.get(allocation) if found else None
    if part is None or part.leaving:
        return False
    slots = 0
    for name in [place.agent for place in part.places] or [agent]:
        held = agents.get(name)
        if held is not None and allocation in held.parts:
            slots += len(held.parts[allocation].slots)
            agents.put(name, held.leaving(allocation))
    waiting_in(turn).leave(part.group, slots)
    return True


def parse_allocation(allocation: str) -> tuple[int, int]:
    """Trial id and epoch of an allocation's name."""
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
