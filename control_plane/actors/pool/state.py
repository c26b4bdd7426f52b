"""The state of a pool: its head, its settings, and the maps of its agents and jobs."""

from dataclasses import dataclass

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AllocationRemoved
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.ordered_map import OrderedMap
from control_plane.actors.pool.agent_slots import AGENTS_PER_PART, Agents, AgentSlots
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.scheduling.reservations import Reservation

# The families of parts that hold a pool's jobs with their requests, and its agents.
CONTENT_FAMILIES = ("groups", "agents")


@dataclass(frozen=True, slots=True)
class KeptAllocation:
    """An allocation of the job `group` that the scheduler does not preempt until `until_ms`."""

    allocation_id: str
    group: int
    until_ms: int


@dataclass(frozen=True)
class PoolState:
    """The head of a pool: totals over its parts. `unscheduled`: something changed since the last
    plan; `changed`: settings did, which also concern running allocations.

    `slots`: those that are free or held; `started` counts the starts of allocations; `waits`: why
    the first request that does not start waits. `removed`: nothing is left of the pool but this.
    `reservation`: the agents that are held for a job; `kept`: what started on such;
    `reserved_slots`: for how many slots the last of them were held. `closed`: why the provisioner
    launches nothing before `closed_until_ms`, "" if it may.
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
    reservation: Reservation | None = None
    kept: tuple[KeptAllocation, ...] = ()
    reserved_slots: int = 0
    closed: str = ""
    closed_until_ms: int = 0


def settings_of(context: StepContext) -> PoolSettings:
    """The pool's settings."""
    return context.part("settings", PoolSettings) or PoolSettings()


def job_queue_of(context: StepContext) -> JobQueue:
    """The pool's jobs and their queued requests."""
    return JobQueue(context)


def agents_of(context: StepContext) -> Agents:
    """The pool's agents."""
    return Agents(OrderedMap(context, "agents", AGENTS_PER_PART))


def update_totals(state: PoolState, before: AgentSlots, after: AgentSlots) -> PoolState:
    """Update the head's totals after a change of one agent."""
    return evolve(
        state,
        slots=state.slots + after.usable_count - before.usable_count,
        free=state.free + after.free_count - before.free_count,
        running=state.running + after.first_rank_count - before.first_rank_count,
        unscheduled=True,
    )


def release_part(state: PoolState, agent: str, allocation: str, context: StepContext) -> PoolState:
    """Release the allocation's slots on one of its agents, and tell that agent."""
    agents = agents_of(context)
    before = agents.get(agent)
    assert before is not None
    part = before.parts[allocation]
    after = before.without_allocation(allocation)
    agents.put(agent, after)
    job_queue_of(context).release_slots(
        part.group, len(part.slots), ended=part.rank == 0, leaving=part.leaving
    )
    context.send(addresses.agent(agent), AllocationRemoved(*parse_allocation(allocation)))
    return update_totals(state, before, after)


def mark_leaving(agent: str, allocation: str, context: StepContext) -> bool:
    """Record that an allocation, a part of which is on `agent`, was asked to release its slots;
    returns False if it was asked before.
    """
    agents = agents_of(context)
    found = agents.get(agent)
    part = found.parts.get(allocation) if found else None
    if part is None or part.leaving:
        return False
    slots = 0
    for name in [place.agent for place in part.places] or [agent]:
        held = agents.get(name)
        if held is not None and allocation in held.parts:
            slots += len(held.parts[allocation].slots)
            agents.put(name, held.with_allocation_leaving(allocation))
    job_queue_of(context).add_leaving_slots(part.group, slots)
    return True


def parse_allocation(allocation: str) -> tuple[int, int]:
    """The trial id and the epoch in an allocation's name."""
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
