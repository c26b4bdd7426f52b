"""The state of a pool: the head, the settings, and the maps of agents and jobs."""

from dataclasses import dataclass, field

from control_plane.actors import addresses
from control_plane.actors.messages.agent import AllocationRemoved
from control_plane.actors.messages.pool import PoolSettings
from control_plane.actors.ordered_map import OrderedMap
from control_plane.actors.pool.agent_slots import AGENTS_PER_PART, Agents, AgentSlots
from control_plane.actors.pool.job_queue import JobQueue
from control_plane.actors.step import StepContext
from control_plane.evolve import evolve
from control_plane.rows.stored_fields import keep_stored_name
from control_plane.scheduling.reservations import Reservation

CONTENT_FAMILIES = ("groups", "agents")
"""The names of the ordered maps with a pool's jobs and agents."""


@dataclass(frozen=True, slots=True)
class ProtectedAllocation:
    """An allocation that the scheduler does not preempt for some time."""

    allocation_id: str
    """The name of the allocation, `TRIAL.EPOCH`."""
    group: int
    """The number of the allocation's job."""
    until_ms: int
    """The end of the protection, in epoch ms."""


@dataclass(frozen=True)
class PoolState:
    """The head of a pool, with totals over the agents and jobs."""

    name: str
    agents: int = 0
    """The number of agents."""
    slots: int = 0
    """The number of slots that are free or held."""
    free: int = 0
    """The number of free slots."""
    queued: int = 0
    """The number of queued requests."""
    running: int = 0
    """The number of running allocations."""
    needs_scheduling: bool = field(default=False, metadata=keep_stored_name("unscheduled"))
    """Whether something changed since the last pass of the scheduler, so that the fold ends with a
    pass.
    """
    wait_reason: str = field(default="", metadata=keep_stored_name("waits"))
    """Why the first waiting request does not start. "": unknown, or no request waits."""
    started: int = 0
    """The number of allocations that the pool has ever started."""
    settings_changed: bool = field(default=False, metadata=keep_stored_name("changed"))
    """Whether settings changed since the last pass of the scheduler. They also concern running
    allocations.
    """
    removed: bool = False
    """Whether the pool was removed. Only its head remains."""
    reservation: Reservation | None = None
    """The agents that are reserved for a job, or None."""
    protected: tuple[ProtectedAllocation, ...] = field(
        default=(), metadata=keep_stored_name("kept")
    )
    """The allocations that started on reserved agents and are not preempted for some time."""
    reserved_slots: int = 0
    """The number of slots of the present or the last reservation."""
    no_supply_reason: str = field(default="", metadata=keep_stored_name("closed"))
    """Why the provisioner launches no instances before `no_supply_until_ms`. "": it can launch
    instances.
    """
    no_supply_until_ms: int = field(default=0, metadata=keep_stored_name("closed_until_ms"))
    """The time until which `no_supply_reason` is true, in epoch ms."""


def settings_of(context: StepContext) -> PoolSettings:
    """Return the pool's stored settings, or the default settings if no settings are stored."""
    return context.part("settings", PoolSettings) or PoolSettings()


def job_queue_of(context: StepContext) -> JobQueue:
    """Return the pool's jobs and queued requests."""
    return JobQueue(context)


def agents_of(context: StepContext) -> Agents:
    """Return the pool's agents."""
    return Agents(OrderedMap(context, "agents", AGENTS_PER_PART))


def update_totals(state: PoolState, before: AgentSlots, after: AgentSlots) -> PoolState:
    """Return the head with new totals after a change of an agent from `before` to `after`.

    The head gets `needs_scheduling`. The caller writes the agent.
    """
    return evolve(
        state,
        slots=state.slots + after.usable_count - before.usable_count,
        free=state.free + after.free_count - before.free_count,
        running=state.running + after.first_rank_count - before.first_rank_count,
        needs_scheduling=True,
    )


def release_part(state: PoolState, agent: str, allocation: str, context: StepContext) -> PoolState:
    """Release the allocation's slots on an agent, and send the agent an AllocationRemoved.

    Return the updated head, with `needs_scheduling`. The allocation must be on the agent.
    """
    agents = agents_of(context)
    before = agents.get(agent)
    assert before is not None
    part = before.parts[allocation]
    after = before.without_allocation(allocation)
    agents.put(agent, after)
    release_job_slots(part.group, before, after, context, ended=part.rank == 0)
    context.send(addresses.agent(agent), AllocationRemoved(*parse_allocation(allocation)))
    return update_totals(state, before, after)


def release_job_slots(
    group: int, before: AgentSlots, after: AgentSlots, context: StepContext, *, ended: bool
) -> None:
    """Count the slots of a job that a change of an agent from `before` to `after` released.

    A slot that another allocation of the job still holds is not released. The caller writes the
    agent.

    Args:
        group: the number of the job.
        ended: whether an allocation has released its last slots.
    """
    held, left = before.job_slots(group), after.job_slots(group)
    job_queue_of(context).release_slots(
        group, held.held - left.held, ended=ended, leaving_slots=held.leaving - left.leaving
    )


def mark_leaving(agent: str, allocation: str, context: StepContext) -> bool:
    """Mark an allocation as leaving on each agent: the allocation was asked to release all slots.

    The caller sends the request to the trial. Return True if the allocation was marked. Return
    False, without a change, if the allocation was asked before or is not on `agent`.
    """
    agents = agents_of(context)
    first = agents.get(agent)
    part = first.parts.get(allocation) if first else None
    if part is None or part.leaving:
        return False
    slots = 0
    for name in [place.agent for place in part.places] or [agent]:
        member = agents.get(name)
        if member is not None and allocation in member.parts:
            after = member.with_allocation_leaving(allocation)
            agents.put(name, after)
            slots += after.job_slots(part.group).leaving - member.job_slots(part.group).leaving
    job_queue_of(context).add_leaving_slots(part.group, slots)
    return True


def parse_allocation(allocation: str) -> tuple[int, int]:
    """Return the trial id and the epoch from an allocation's name, `TRIAL.EPOCH`.

    Raises:
        ValueError: the name has another form.
    """
    trial_id, _, epoch = allocation.partition(".")
    return int(trial_id), int(epoch)
