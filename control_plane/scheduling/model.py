"""Inputs and results of the schedulers: jobs, requests, allocations, agents and plans."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import Literal

PRIORITY_DEFAULT = 42
"""The priority of a job whose configuration names no priority."""
AUX_PER_AGENT_DEFAULT = 100
"""The default auxiliary places of an agent. An auxiliary place is room for an allocation without
slots.
"""

ANY_KIND: frozenset[int] = frozenset()
"""The refused kinds of a job that may use all agents."""
RequestSize = tuple[int, bool, frozenset[int]]
"""The slots of a request, whether all slots must be on one agent, and the refused kinds of agents.
Requests of equal size fit the same agents, unless they exclude agents by name.
"""

SchedulerKind = Literal["fair_share", "priority", "round_robin"]
FittingPolicy = Literal["best", "worst"]
"""The choice among agents with room: "best" prefers full agents, "worst" prefers empty agents."""


@dataclass(frozen=True, slots=True)
class SchedulerRules:
    """The scheduler of a pool with all options."""

    kind: SchedulerKind = "fair_share"
    """The scheduler that plans the pool."""
    preemption: bool = False
    """Whether the priority scheduler may preempt allocations."""
    fitting: FittingPolicy = "best"
    """The choice among agents with room; see `FittingPolicy`."""
    heterogeneous: bool = False
    """Whether the agents of a gang may differ in size."""


@dataclass(frozen=True, slots=True)
class AllocationRequest:
    """A pending request of a trial for slots."""

    allocation_id: str
    """The id of the allocation that starts with this request."""
    slots: int
    """The number of slots. 0 for a request that only needs an auxiliary place, which is room for an
    allocation without slots.
    """
    ticket: str = ""
    """The rank of the request: "submitted_ms.requested_ms.trial_id", zero-padded.

    Requests are served in the order of tickets.
    """
    group: int = 0
    """The experiment id of the request's job."""
    label: str = ""
    """The label of the job. Only agents with the same label can run the request."""
    single_agent: bool = False
    """Whether all slots must be on one agent."""
    preemptible: bool = True
    """Whether the allocation may be preempted once it runs."""
    excluded_agents: tuple[str, ...] = ()
    """The names of the agents that must not run the allocation."""
    refused_kinds: frozenset[int] = ANY_KIND
    """The kinds of agents (`AgentCapacity.kind`) that do not meet the needs of the job."""

    @property
    def size(self) -> RequestSize:
        """The properties by which agents with free slots are found."""
        return self.slots, self.single_agent, self.refused_kinds


@dataclass(frozen=True, slots=True)
class Placement:
    """A number of slots on a single agent."""

    agent: str
    """The name of the agent."""
    slots: int
    """0 for a zero-slot request, which uses one auxiliary place."""


@dataclass(frozen=True, slots=True)
class RunningAllocation:
    """An allocation that uses slots of the pool."""

    allocation_id: str
    """The id of the allocation."""
    slots: int
    """The slots in use. 0 for an allocation that only uses an auxiliary place, which is room for an
    allocation without slots.
    """
    group: int
    """The experiment id of the allocation's job."""
    start: int
    """The number of the allocation's start within the pool. Older allocations have smaller numbers.
    """
    preemptible: bool = True
    """Whether a scheduler may stop the allocation."""
    leaving: bool = False
    """Whether the allocation was asked to stop. Until the allocation stops, it keeps its slots."""
    placements: tuple[Placement, ...] = ()
    """The slots in use, by agent."""


@dataclass(frozen=True, slots=True)
class Job:
    """The requests and allocations of an experiment, with shared settings.

    The snapshot includes totals, so that a scheduler need not read the ten thousand trials of a job
    to know its demand. `job_with_totals` computes the totals; schedulers do not check them.
    """

    group: int
    """The experiment id."""
    submitted_ms: int
    """The time of the submission, in epoch ms."""
    weight: float = 1.0
    """The weight of the job's share, for the fair-share scheduler. Positive."""
    priority: int = PRIORITY_DEFAULT
    """The priority, for the priority scheduler: 1 is the most important, 99 the least."""
    position: Decimal = Decimal(0)
    """The position in the queue, 0 for a job without one."""
    max_slots: int | None = None
    """The most slots that the job may hold, None for no limit."""
    label: str = ""
    """The label of the agents that may run the job."""
    single_agent: bool = False
    """Whether each request needs all of its slots on one agent."""
    pending: Iterable[AllocationRequest] = ()
    """Pending requests in the order of tickets. May be lazy, but can be iterated repeatedly."""
    allocations: Iterable[RunningAllocation] = ()
    """Running allocations. May be lazy, but can be iterated repeatedly."""
    pending_slots: Mapping[int, int] = field(default_factory=dict)
    """The number of pending requests of each size."""
    held_slots: int = 0
    """The slots of all allocations."""
    non_preemptible_slots: int = 0
    """The slots of allocations that cannot be preempted."""
    leaving_slots: int = 0
    """The slots of allocations that were asked to stop."""
    excluding: int = 0
    """The number of pending requests that exclude agents."""
    refused_kinds: frozenset[int] = ANY_KIND
    """The kinds of agents (`AgentCapacity.kind`) that do not meet the job's needs."""
    needs: str = ""
    """The job's needs of an agent, as a text for users such as "slot_type H100". "" without needs.
    """
    slot_sharers: int = 1
    """The most trials of the job that share a slot. Pending requests and allocations are counted by
    slots: trials that share a slot are one request and one allocation.
    """
    waits_since_ms: int | None = None
    """Since when the job has waited without holding slots (epoch ms). None if it does not wait or
    the time is unknown.
    """

    def size_of(self, slots: int) -> RequestSize:
        """Return the size of the job's requests for `slots` slots."""
        return slots, self.single_agent, self.refused_kinds


@dataclass(frozen=True, slots=True)
class AgentCapacity:
    """The slots of an enabled agent, and the auxiliary places, each with room for an allocation
    without slots. Disabled agents are not in a snapshot.
    """

    agent: str
    """The name of the agent."""
    total: int
    """All slots. For a draining agent, only the slots in use."""
    free: int
    """The free slots, 0 for a draining agent."""
    label: str = ""
    """The label of the agent. Only jobs with this label can use the agent."""
    aux_total: int = AUX_PER_AGENT_DEFAULT
    """All auxiliary places for zero-slot requests."""
    aux_free: int = AUX_PER_AGENT_DEFAULT
    """The free auxiliary places."""
    draining: bool = False
    """Whether the agent accepts no new allocations. Its slots in use still count for the pool."""
    checkpoints: bool = False
    """Whether trials on the draining agent are asked to save a checkpoint and leave."""
    reopens: bool = False
    """Whether the draining agent accepts allocations again without a user's command."""
    kind: int = 0
    """The number of the agent's kind. Agents of a kind meet the same needs of jobs."""


@dataclass(frozen=True, slots=True)
class AllocationStart:
    """The start of a pending request in a plan."""

    request: AllocationRequest
    """The request to start."""
    placements: tuple[Placement, ...]
    """Slots by agent, in the order of the ranks. At least one."""

    @property
    def agent(self) -> str:
        """The agent of the first rank."""
        return self.placements[0].agent


@dataclass(frozen=True, slots=True)
class Victim:
    """An allocation to preempt: the trial saves a checkpoint and ends the process."""

    allocation: RunningAllocation
    """The allocation to stop."""
    reason: str
    """A text for users."""


@dataclass(frozen=True, slots=True)
class SchedulePlan:
    """The result of a scheduling pass."""

    starts: tuple[AllocationStart, ...]
    """The requests to start, in order."""
    victims: tuple[Victim, ...] = ()
    """The allocations to preempt. The freed slots are not used by the starts of this plan."""
    wait_reason: str = ""
    """Why the first request that stays pending waits, "" if no request stays pending."""


def job_with_totals(job: Job) -> Job:
    """Return a copy of the job with totals recomputed from pending requests and allocations.

    Lazy requests and allocations are read. `waits_since_ms` and the settings stay unchanged.
    """
    allocations = tuple(job.allocations)
    return replace(
        job,
        pending=tuple(job.pending),
        allocations=allocations,
        pending_slots=Counter(request.slots for request in job.pending),
        held_slots=sum(running.slots for running in allocations),
        non_preemptible_slots=sum(
            running.slots for running in allocations if not running.preemptible
        ),
        leaving_slots=sum(running.slots for running in allocations if running.leaving),
        excluding=sum(bool(request.excluded_agents) for request in job.pending),
    )
